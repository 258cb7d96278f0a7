"""The verb `predict`."""

from __future__ import annotations

from dataclasses import asdict

from diffwindow.cli.library import files, inference_model
from diffwindow.cli.options import AsJsonLines, Device, RunFolder
from diffwindow.cli.streams import InputFile, OutputFile, collapse_spaces, report_interrupted_output, stream


def predict(
    run: RunFolder,
    input: InputFile = None,
    output: OutputFile = None,
    as_json: AsJsonLines = False,
    device: Device = "auto",
) -> None:
    """Classify text: per line the best label, then every label with its probability.

    Columns are separated by tabs: label, then label=probability for each label.
    """
    model = inference_model.load(run, device=device)
    # another kind of model is an error before the first line is read
    model.predict([])

    def shown(prediction: inference_model.Prediction) -> str:
        if as_json:
            return files.to_json(asdict(prediction))
        each = (f"{collapse_spaces(label)}={p:.6f}" for label, p in prediction.probabilities.items())
        return "\t".join([collapse_spaces(prediction.label), *each])

    with report_interrupted_output(output):
        stream(input, output, lambda texts: map(shown, model.predict(texts)))
