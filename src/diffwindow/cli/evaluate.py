"""The verb `evaluate`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffwindow.cli.errors import check_folder, interruptible

if TYPE_CHECKING:
    from diffwindow.data.store import Store
    from diffwindow.decoding.translate import Search
    from diffwindow.evaluation.evaluate import Evaluation
    from diffwindow.tasks.trained_model import Trained

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a model folder.")]
Beam = Annotated[int | None, typer.Option(min=1, help="Beam size; that of the run by default.")]
LengthPenalty = Annotated[
    float | None, typer.Option(help="Power of the length that divides log p; that of the run by default.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto takes a GPU if there is one.")]


def evaluate(
    run: RunFolder,
    data: Annotated[Path | None, typer.Option(help="A prepared corpus; that of the run by default.")] = None,
    split: Annotated[str, typer.Option(help="Which part of the corpus.")] = "test",
    against: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Another run, compared on the same examples.")
    ] = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a trained model: accuracy, perplexity per word, or three kinds of BLEU and chrF.

    Two runs are compared by sacreBLEU's paired bootstrap (translation) or McNemar's exact test (labels).
    Several processes share the work: torchrun --nproc-per-node 2 -m diffwindow evaluate …
    """
    for folder in (run, against) if against else (run,):
        check_folder(folder)
    from diffwindow.evaluation.evaluate import compare
    from diffwindow.evaluation.evaluate import evaluate as evaluated
    from diffwindow.files import to_json
    from diffwindow.progress import show_progress
    from diffwindow.sharing import sharing
    from diffwindow.training.distributed import connected

    def opened(folder: Path, stage: str) -> tuple[Trained, Callable[[], Evaluation]]:
        """Open everything first, so that a mistake in either run is reported before one is scored."""
        trained = open_trained(folder, device)
        task = trained.task(store)
        search = search_of(folder, beam=beam, length_penalty=length_penalty)

        def report(done: int, total: int) -> None:
            progress(stage, done / total)

        return trained, partial(evaluated, trained, task, split, search, progress=report)

    with (
        interruptible("nothing was scored"),
        connected("cpu") as world,
        sharing(),
        show_progress(wanted=world.main) as progress,
    ):
        with world.together():
            store = open_store(run, data)
            # hashed here, so that damaged files stop all processes
            store.split(split)
            trained, score = opened(run, "translating")
            second = opened(against, "translating the other") if against else None
        found = score()
        report: dict[str, Any] = {
            "run": str(run),
            "corpus": str(store.folder),
            "split": split,
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


def open_trained(folder: Path, device: str) -> Trained:
    """Open the model of a run folder or a model folder, on a device."""
    import torch

    from diffwindow.tasks.trained_model import Trained

    if device == "auto":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    trained = Trained.load(folder)
    try:
        trained.model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {device}: {str(error).splitlines()[0]}") from None
    return trained


def open_store(run: Path, data: Path | None) -> Store:
    """Open the given corpus, or that of the run."""
    from diffwindow.data.store import Store
    from diffwindow.training.run_folder import CONFIG, Run

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


# the length of a text, and the distance from subject to verb
RANGES = {"by_length": "length", "by_distance": "distance"}


def as_text(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a report."""
    model = f"{report['attention']}, {report['parameters']:,} parameters"
    yield f"{report['run']}: {model}, split {report['split']}"
    yield from _metrics(report["metrics"])
    if "against" in report:
        other = report["against"]
        yield f"{other['run']}: {other['attention']}"
        yield from _metrics(other["metrics"])
        yield "difference, first minus second"
        for name, values in other["comparison"].items():
            # accuracies are fractions, and shown in per cent
            points = 100 if name == "accuracy" else 1
            shown = {key: points * value if key == "difference" else value for key, value in values.items()}
            figures = ", ".join(_figure(key, value) for key, value in shown.items() if key != "signature")
            yield f"  {name:20} {figures}{_signature(values)}"


def _metrics(metrics: dict[str, Any]) -> Iterator[str]:
    for name, value in metrics.items():
        if name == "by_attractors":
            for count, group in value.items():
                known = "unknown number of" if count == "-1" else count
                noun = "attractor" if count == "1" else "attractors"
                yield f"  {f'with {known} {noun}':20} {_accuracy(group)}"
        elif name in RANGES:
            for tokens, group in value.items():
                yield f"  {f'{RANGES[name]} {tokens}':20} {_accuracy(group)}"
        elif name == "windows":
            for fit in value:
                yield f"  {'layer ' + str(fit['layer']):20} {_window(fit)}"
        elif isinstance(value, dict) and "low" in value:
            yield f"  {name:20} {_accuracy(value)}"
        elif isinstance(value, dict):
            yield f"  {name:20} {value['value']:.2f}{_signature(value)}"
        else:
            yield f"  {name:20} {value:,}" if isinstance(value, int) else f"  {name:20} {value:.4f}"


def _accuracy(group: dict[str, Any]) -> str:
    interval = f"{100 * group['low']:.2f}-{100 * group['high']:.2f}"
    counts = f"{group['correct']:,} of {group['total']:,}"
    return f"{100 * group['value']:6.2f} % (95 % interval {interval}; {counts})"


def _window(fit: dict[str, Any]) -> str:
    inside = f"attention inside the gold window {fit['attention_inside']:.3f}"
    chance = f"uniform attention {fit['chance']:.3f}"
    if fit["overlap"] is None:
        return f"{inside} ({chance})"
    return f"{inside}, window overlap {fit['overlap']:.3f}, best head {fit['best_head']:.3f} ({chance})"


def shown_p(p: float) -> str:
    """Return a p-value as text, with a bound if it is tiny.

    >>> shown_p(0.16), shown_p(1e-9)
    ('0.160', '<0.001')
    """
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def _figure(key: str, value: float) -> str:
    if key == "p":
        return f"p {shown_p(value)}"
    return f"{key} {value:+.2f}" if key == "difference" else f"{key} {value:.4f}"


def _signature(value: dict[str, Any]) -> str:
    return f"  [{value['signature']}]" if "signature" in value else ""
