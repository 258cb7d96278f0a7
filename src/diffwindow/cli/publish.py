"""The verbs `export` and `push`: a trained model for other programs and other people."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from diffwindow.cli.errors import check_folder
from diffwindow.cli.library import LazyModule, files, hf_hub, inference_model
from diffwindow.cli.options import RunFolder, WindowRule
from diffwindow.extras import require

hub_errors = LazyModule("huggingface_hub.errors")


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="Folder for encoder.onnx, step.onnx and tokenizer.json.")],
    window_rule: WindowRule = "soft",
) -> None:
    """Write a translator as ONNX graphs, which run without Python or PyTorch."""
    check_folder(run)
    files.check_folder_place(out)
    require("onnx", "onnxscript")
    model = inference_model.load(run, device="cpu", window_rule=cast(Any, window_rule))
    # torch's exporter warns of packages that our graphs do not use, and of its own deprecated calls
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        written = model.export(out)
    for path in written:
        print(f"{path}  {path.stat().st_size / 1e6:.2f} MB")


def push(
    run: RunFolder,
    repo_id: Annotated[str, typer.Argument(metavar="USER/NAME", help="The repository on the hub.")],
    scores: Annotated[
        Path | None, typer.Option(help="What `evaluate RUN --json` printed, for the model's card.")
    ] = None,
    picture: Annotated[bool, typer.Option(help="Whether the card shows a window of the model.")] = True,
    private: Annotated[bool | None, typer.Option(help="Who may see a new repository.")] = None,
    branch: Annotated[str | None, typer.Option(help="A branch to push to; main by default.")] = None,
) -> None:
    """Push a model to the Hugging Face hub, with a card made from its run.

    Log in first with `hf auth login`, or set HF_TOKEN.
    """
    check_folder(run)
    require("huggingface_hub", "transformers")
    try:
        commit = hf_hub.push_run(run, repo_id, scores=scores, picture=picture, private=private, branch=branch)
    except hub_errors.HTTPError as error:
        advice = "check the name and the network, and log in with `hf auth login`"
        raise ValueError(f"{run} was not pushed to {repo_id}: {error}; {advice}") from None
    print(commit)
