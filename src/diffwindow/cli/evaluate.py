"""The verb `evaluate`."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffwindow.cli.data import File
from diffwindow.cli.errors import check_folder, interruptible
from diffwindow.cli.options import AsJson, Beam, Device, LabelColumn, LengthPenalty, TextColumn
from diffwindow.cli.streams import STANDARD, file_or_dash, input_lines

if TYPE_CHECKING:
    from diffwindow.data.store import Store
    from diffwindow.decoding.translate import Search
    from diffwindow.evaluation.evaluate import Evaluation
    from diffwindow.tasks.trained_model import Trained


def evaluate(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run folder, or a model folder.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A prepared corpus or a folder with its raw files; that of the run by default."),
    ] = None,
    split: Annotated[str, typer.Option(help="Which part of the corpus.")] = "test",
    source: Annotated[File, typer.Option(help="New sentences to translate, with --reference.")] = None,
    reference: Annotated[File, typer.Option(help="Their translations by people.")] = None,
    labels: Annotated[File, typer.Option(help="New labelled text: .tsv, .csv or JSON lines.")] = None,
    text: Annotated[File, typer.Option(help="New text for a language model.")] = None,
    hypothesis: Annotated[
        File,
        typer.Option(
            parser=file_or_dash,
            metavar="FILE",
            help="Translations by any system, with --reference and without a run; - is stdin.",
        ),
    ] = None,
    target_lang: Annotated[
        str | None, typer.Option(help="Language of the translations, if the corpus does not know it.")
    ] = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    against: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Another run, compared on the same examples.")
    ] = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Score a trained model: accuracy, perplexity per word, or three kinds of BLEU and chrF.

    Two runs are compared by sacreBLEU's paired bootstrap (translation) or McNemar's exact test (labels).
    Several processes share the work: torchrun --nproc-per-node 2 -m diffwindow evaluate …
    """
    if hypothesis:
        if run or source or labels or text or data or not reference:
            raise ValueError("--hypothesis goes with --reference and --target-lang alone, without a run")
        _score_files(hypothesis, reference, target_lang, as_json=as_json)
        return
    if run is None:
        raise ValueError("give the folder of a run, or --hypothesis with --reference")
    if (source is None) != (reference is None):
        raise ValueError("--source and --reference go together: new sentences and their translations")
    given = {"--data": data, "--source": source, "--labels": labels, "--text": text}
    chosen = [name for name, path in given.items() if path]
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(chosen)} are two test sets; give one")
    for name, path in {**given, "--reference": reference}.items():
        if path == STANDARD:
            raise ValueError(f"{name} - is stdin, but a test set is read more than once; save it to a file")
    for folder in (run, against) if against else (run,):
        check_folder(folder)
    from diffwindow.cli.evaluation_report import as_text
    from diffwindow.data.readers import Columns
    from diffwindow.data.store import is_store
    from diffwindow.evaluation.evaluate import compare
    from diffwindow.evaluation.evaluate import evaluate as evaluated
    from diffwindow.evaluation.new_files import SPLIT, NewFiles, new_store
    from diffwindow.files import to_json
    from diffwindow.progress import show_progress
    from diffwindow.sharing import sharing
    from diffwindow.training.distributed import connected

    raw = data if data and not is_store(data) else None
    new = NewFiles(source, reference, labels, text, raw, Columns(text_column, label_column))
    split = SPLIT if new.paths and not raw else split

    def opened(folder: Path, stage: str) -> tuple[Trained, Callable[[], Evaluation]]:
        """Open everything first, so that a mistake in either run is reported before one is scored."""
        trained = open_trained(folder, device, target_lang)
        # each run reads new files with its own tokenizer; a store has one tokenizer
        own = store if store is not None else stack.enter_context(new_store(trained, new, split))
        task = trained.task(own)
        search = search_of(folder, beam=beam, length_penalty=length_penalty)

        def report(done: int, total: int) -> None:
            progress(stage, done / total)

        return trained, partial(evaluated, trained, task, split, search, progress=report)

    with (
        interruptible("nothing was scored"),
        connected("cpu") as world,
        sharing(),
        show_progress(wanted=world.main) as progress,
        ExitStack() as stack,
    ):
        with world.together():
            store = None if new.paths else open_store(run, data)
            if store is not None:
                # hashed here, so that damaged files stop all processes
                store.split(split)
            trained, score = opened(run, "translating")
            second = opened(against, "translating the other") if against else None
        found = score()
        report: dict[str, Any] = {
            "run": str(run),
            "corpus": ", ".join(map(str, [store.folder] if store is not None else new.paths)),
            "split": None if store is None else split,
            "attention": trained.model.config.attention,
            "parameters": sum(parameter.numel() for parameter in trained.model.parameters()),
            "metrics": found.metrics,
        }
        if second:
            other, score_other = second
            found_other = score_other()
            report["against"] = {
                "run": str(against),
                "attention": other.model.config.attention,
                "metrics": found_other.metrics,
                "comparison": compare(found, found_other),
            }
    if world.main:
        print(to_json(report, indent=2) if as_json else "\n".join(as_text(report)))


def _score_files(hypothesis: Path, reference: Path, language: str | None, *, as_json: bool) -> None:
    """Score the translations of any system against references, line by line."""
    from diffwindow.cli.evaluation_report import metric_lines
    from diffwindow.data.recipe import check_language
    from diffwindow.evaluation.evaluate import score_texts
    from diffwindow.files import to_json

    if language:
        check_language(language, "target")
    if hypothesis == reference == STANDARD:
        raise ValueError("--hypothesis and --reference are both -, which is stdin; give a file for one")
    texts = []
    for path in (hypothesis, reference):
        with input_lines(path) as content:
            texts.append(list(content))
    if not texts[0] or len(texts[0]) != len(texts[1]):
        raise ValueError(
            f"{hypothesis} has {len(texts[0]):,} lines and {reference} has {len(texts[1]):,}; "
            "each translation needs its reference"
        )
    metrics = score_texts(*texts, language=language) | {"sentences": len(texts[0])}
    report = {"hypothesis": str(hypothesis), "reference": str(reference), "metrics": metrics}
    lines = [f"{hypothesis} against {reference}", *metric_lines(metrics)]
    print(to_json(report, indent=2) if as_json else "\n".join(lines))


def open_trained(folder: Path, device: str, target_lang: str | None = None) -> Trained:
    """Open the model of a run folder or a model folder, on a device; `target_lang` changes its record."""
    import torch

    from diffwindow.tasks.trained_model import Trained

    if device == "auto":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    trained = Trained.load(folder)
    if target_lang:
        trained = trained.with_language("target", target_lang)
    try:
        trained.model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {device}: {str(error).splitlines()[0]}") from None
    return trained


def open_store(run: Path, data: Path | None) -> Store:
    """Open the given corpus, or that of the run."""
    from diffwindow.data.store import Store
    from diffwindow.training.run_folder import CONFIG, Run

    check_folder(run)
    if (run / CONFIG).is_file():
        return Run.open(run).open_store(data)
    if data is None:
        raise ValueError(f"{run} is not a run folder, so its corpus is unknown; give one with --data DIR")
    return Store.open(data)


def search_of(run: Path, *, beam: int | None, length_penalty: float | None) -> Search:
    """Return the search of a run, changed by the options of the command line."""
    from diffwindow.decoding.translate import Search
    from diffwindow.training.config import SearchConfig
    from diffwindow.training.run_folder import CONFIG, Run

    own = Run.open(run).config.search if (run / CONFIG).is_file() else SearchConfig()
    return Search(
        beam=own.beam if beam is None else beam,
        length_penalty=own.length_penalty if length_penalty is None else length_penalty,
    )
