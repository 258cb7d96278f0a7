"""The verb `demo`: three attentions on the generated agreement corpus, compared."""

from __future__ import annotations

import textwrap
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from diffwindow.cli.errors import report_training_errors
from diffwindow.cli.evaluation_report import format_p
from diffwindow.cli.library import (
    data_corpora,
    data_prepare,
    data_recipe,
    evaluation_evaluate,
    evaluation_windows,
    files,
    models_weights,
    tasks_model_folder,
    training_overrides,
    training_run,
    view_figures,
    view_reading,
)
from diffwindow.decoding import Decoding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from diffwindow.data.store import Store
    from diffwindow.evaluation.evaluate import Evaluation
    from diffwindow.evaluation.windows import VerbReadings
    from diffwindow.models.classifier import Classifier
    from diffwindow.models.config import ModelConfig
    from diffwindow.tasks.classification import Classification
    from diffwindow.view.reading import Reading

ATTENTIONS = ("Global", "Enc(MW)", "Enc(AW)")
# one layer and few sentences, so that the models differ: with more of either, all learn them perfectly
LAYERS, ROWS, UPDATES, BATCH_ROWS = 1, 2000, 600, 64
WIDTH = 80
# differences less certain than this are not called differences
CERTAIN = 0.01
TITLE = "What each model reads to choose the number of the verb; framed: the subject. Green: the window"


@dataclass(frozen=True)
class Row:
    """A line of the comparison, in per cent and shares."""

    attention: str
    parameters: int
    accuracy: float
    low: float
    high: float
    by_attractors: dict[str, float]
    p_against_first: float
    attention_on_subject: float


@dataclass(frozen=True)
class Evaluated:
    """A model's config, what it answers, and what it reads at the verb."""

    config: ModelConfig
    evaluation: Evaluation
    readings: VerbReadings


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the corpus, the three runs and the figure.")] = Path(
        "demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of corpus, weights and batches.")] = 1,
    updates: Annotated[int, typer.Option(min=1, help="Updates of each model.")] = UPDATES,
    rows: Annotated[int, typer.Option(min=10, help="Training sentences.")] = ROWS,
) -> None:
    """Train a plain, a multiplicative and an additive window model to make verbs agree; compare.

    Takes about a minute on two cores. The sentences are generated, so the right window is known: from the
    subject phrase to the verb. The same command resumes.
    """
    started = time.monotonic()
    files.make_folder(out)
    with report_training_errors():
        store = _prepare_corpus(out, seed=seed, rows=rows)
        runs = [_train(out, attention, store, seed=seed, updates=updates) for attention in ATTENTIONS]
    evaluated = [_evaluate(run, store) for run in runs]
    table = [_make_row(one, evaluated[0].evaluation) for one in evaluated]
    figure, sentence = _draw(evaluated[-1], evaluated[0], store, out)
    settings = {"seed": seed, "layers": LAYERS, "updates": updates, "rows": rows}
    files.write_json(out / "demo.json", {**settings, "table": [asdict(row) for row in table]})
    print("\n".join(_format_lines(table, len(store.split("test")))))
    print(f"\nfigure: {figure}")
    print(textwrap.fill(sentence, WIDTH, initial_indent="  ", subsequent_indent="  "))
    print(f"figures of the table: {out / 'demo.json'}\nruns: {', '.join(map(str, runs))}")
    print(f"{time.monotonic() - started:.0f} s")


def _train(out: Path, attention: str, store: Store, *, seed: int, updates: int) -> Path:
    settings: dict[str, Any] = {
        "attention": attention,
        "data.path": str(store.folder.resolve()),
        "train.seed": seed,
        "train.max_updates": updates,
        "train.max_rows": BATCH_ROWS,
        "model.num_layers": LAYERS,
    }
    typer.echo(f"{attention}: {updates} updates", err=True)
    folder = out / attention
    # its corpus is prepared already
    model = training_run.train(training_overrides.resolve("agreement", (), settings), folder)
    if (trained := models_weights.verify(model).get("update")) != updates:
        raise ValueError(f"{folder} was trained for {trained} updates, not {updates}; choose another --out")
    return folder


def _prepare_corpus(out: Path, *, seed: int, rows: int) -> Store:
    """Generate the sentences, unless they are there: as many to test on as to train on."""

    def recipe() -> data_recipe.Recipe:
        small, larger = (
            data_corpora.recipe_of("agreement", rows=size, seed=seed) for size in (rows, 10 * rows)
        )
        return replace(small, splits=small.splits | {"test": larger.splits["test"]})

    store = data_prepare.open_or_prepare(out / "data", recipe)
    sentences, own_seed = len(store.split("train")), store.manifest.settings.variant.get("seed")
    if (sentences, own_seed) != (rows, seed):
        raise ValueError(
            f"{store.folder} has {sentences:,} sentences of seed {own_seed}, not {rows:,} of seed {seed}; "
            "choose another --out"
        )
    return store


def _evaluate(run: Path, store: Store) -> Evaluated:
    trained = tasks_model_folder.ModelFolder.read(run)
    task, model = cast("Classification", trained.task(store)), cast("Classifier", trained.model)
    return Evaluated(
        model.config,
        evaluation_evaluate.evaluate_model(trained, task, "test", Decoding()),
        evaluation_windows.read_at_verbs(task, model, "test"),
    )


def _make_row(evaluated: Evaluated, first: Evaluation) -> Row:
    metrics = evaluated.evaluation.metrics
    accuracy = metrics["accuracy"]
    return Row(
        attention=evaluated.config.attention,
        parameters=evaluated.config.count_parameters(),
        accuracy=100 * accuracy["value"],
        low=100 * accuracy["low"],
        high=100 * accuracy["high"],
        by_attractors=_by_attractors(metrics["by_attractors"]),
        p_against_first=evaluation_evaluate.compare(evaluated.evaluation, first)["accuracy"]["p"],
        attention_on_subject=float(evaluated.readings.on_subject.mean()),
    )


def _by_attractors(groups: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the accuracy by number of attractors; three or more are counted together, since they are few."""
    kinds = {"0": ["0"], "1": ["1"], "2": ["2"], "3+": [count for count in groups if int(count) >= 3]}
    return {
        name: 100 * sum(one["correct"] for one in some) / sum(one["total"] for one in some)
        for name, counts in kinds.items()
        if (some := [groups[count] for count in counts if count in groups])
    }


def _format_lines(table: list[Row], sentences: int) -> list[str]:
    """Return the lines to print: what was shown, then the figures, 80 columns wide at most."""
    counts = list(table[0].by_attractors)
    body = [["attention", "parameters", "right, %", "95 %", "p", *counts]]
    for row in table:
        by_count = [f"{row.by_attractors[count]:.1f}" for count in counts]
        p = "" if row is table[0] else format_p(row.p_against_first)
        interval = f"{row.low:.1f}-{row.high:.1f}"
        body.append([row.attention, f"{row.parameters:,}", f"{row.accuracy:.1f}", interval, p, *by_count])
    widths = [max(len(line[column]) for line in body) for column in range(len(body[0]))]
    printed = [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in body
    ]
    on_subject = ", ".join(f"{100 * row.attention_on_subject:.0f} % in {row.attention}" for row in table)
    notes = [
        f"p: McNemar's exact test against {table[0].attention}. {', '.join(counts)}: accuracy with that many "
        "nouns of the other number between subject and verb.",
        f"Attention at the verb that falls on its subject: {on_subject}.",
    ]
    wrapped = [line for note in notes for line in textwrap.wrap(note, WIDTH)]
    return [*textwrap.wrap(_summarize(table, sentences), WIDTH), "", *printed, "", *wrapped]


def _summarize(table: list[Row], sentences: int) -> str:
    """Return one sentence: what the comparison shows, or that it shows nothing."""
    plain, window = table[0], table[-1]
    rates = (
        f"the window model is right in {window.accuracy:.1f} % of {sentences:,} sentences, the plain one in "
        f"{plain.accuracy:.1f} %"
    )
    text = format_p(window.p_against_first)
    bound = f"< {text[1:]}" if text.startswith("<") else f"= {text}"
    if window.p_against_first < CERTAIN:
        return f"{rates[0].upper()}{rates[1:]} (one seed, p {bound})."
    return f"This seed shows no difference: {rates} (p {bound})."


def _draw(ours: Evaluated, plain: Evaluated, store: Store, out: Path) -> tuple[Path, str]:
    """Draw what both models read in a sentence that only the window model gets right; return it too."""
    right, plain_right = ours.evaluation.right, plain.evaluation.right
    assert right is not None
    assert plain_right is not None
    split = store.split("test")
    gain = ours.readings.on_subject - plain.readings.on_subject
    index, told = choose_sentence(right, plain_right, gain, split.columns["attractors"])
    example = split[index]
    words = [*store.tokenizer.tokens(cast("NDArray[Any]", example["text"])[:-1].tolist()), "[verb]"]
    readings = [
        _read(one, index, len(words), store.labels[int(example["label"]) ^ (not correct)], correct=correct)
        for one, correct in ((plain, bool(plain_right[index])), (ours, bool(right[index])))
    ]
    path = out / "windows.png"
    view_figures.save_figure(
        view_reading.reading_figure(words, readings, marked=int(ours.readings.subject[index]), title=TITLE),
        path,
    )
    return path, f"{' '.join(words)} ({told})"


def _read(one: Evaluated, index: int, length: int, answer: str, *, correct: bool) -> Reading:
    readings = one.readings
    return view_reading.Reading(
        f"{one.config.attention}: “{answer}”, {'right' if correct else 'wrong'}",
        readings.attention[index, :length],
        None if readings.window is None else readings.window[index, :length],
    )


def choose_sentence(
    right: NDArray[np.bool_],
    other_right: NDArray[np.bool_],
    gain: NDArray[np.floating],
    attractors: NDArray[np.integer],
) -> tuple[int, str]:
    """Choose among the sentences that only the first model gets right, with attractors if there is one.

    It is the one where the first model's attention to the subject is ahead of the other's by most.
    """
    alone = right & ~other_right
    told = "the plain model is wrong here, the window model right"
    if not alone.any():
        alone, told = attractors >= 0, "there is no sentence that only the window model gets right"
    best = alone & (attractors > 0) if (alone & (attractors > 0)).any() else alone
    return max(best.nonzero()[0].tolist(), key=lambda index: float(gain[index])), told
