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
)
from diffwindow.decoding import Decoding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from diffwindow.data.store import Store
    from diffwindow.evaluation.evaluate import Evaluation
    from diffwindow.models.classifier import Classifier
    from diffwindow.tasks.classification import Classification
    from diffwindow.tasks.model_folder import ModelFolder

ATTENTIONS = ("Global", "Enc(MW)", "Enc(AW)")
FRAME = "query by key; framed: the gold window, from the subject phrase to the verb"
# one layer and few sentences, so that the models differ: with more of either, all learn them perfectly
LAYERS, ROWS, UPDATES, BATCH_ROWS = 1, 2000, 600, 64
WIDTH = 80
# differences less certain than this are not called differences
CERTAIN = 0.01


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
    attention_inside: float
    window_overlap: float | None
    best_head: float | None
    chance: float


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
    first = evaluated[0][1]
    table = [
        _make_row(trained, evaluation, evaluation_evaluate.compare(evaluation, first))
        for trained, evaluation in evaluated
    ]
    figure, sentence = _draw(evaluated[-1], evaluated[0], store, out)
    settings = {"seed": seed, "layers": LAYERS, "updates": updates, "rows": rows}
    files.write_json(out / "demo.json", {**settings, "table": [asdict(row) for row in table]})
    print("\n".join(_format_lines(table, first.metrics["accuracy"]["total"])))
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


def _evaluate(run: Path, store: Store) -> tuple[ModelFolder, Evaluation]:
    trained = tasks_model_folder.ModelFolder.read(run)
    return trained, evaluation_evaluate.evaluate_model(trained, trained.task(store), "test", Decoding())


def _make_row(trained: ModelFolder, evaluation: Evaluation, against: dict[str, Any]) -> Row:
    accuracy, fit = evaluation.metrics["accuracy"], evaluation.metrics["windows"][0]
    return Row(
        attention=trained.model.config.attention,
        parameters=trained.model.config.count_parameters(),
        accuracy=100 * accuracy["value"],
        low=100 * accuracy["low"],
        high=100 * accuracy["high"],
        by_attractors=_by_attractors(evaluation.metrics["by_attractors"]),
        p_against_first=against["accuracy"]["p"],
        attention_inside=fit["attention_inside"],
        window_overlap=fit["overlap"],
        best_head=fit["best_head"],
        chance=fit["chance"],
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
    inside = ", ".join(f"{row.attention_inside:.2f} in {row.attention}" for row in table)
    notes = [
        f"p: McNemar's exact test against {table[0].attention}. {', '.join(counts)}: accuracy with that many "
        "nouns of the other number between subject and verb.",
        f"Attention of the verb's place that falls on the subject phrase and what follows it: {inside}; "
        f"uniform attention has {table[0].chance:.2f}.",
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


def _draw(
    windowed: tuple[ModelFolder, Evaluation], plain: tuple[ModelFolder, Evaluation], store: Store, out: Path
) -> tuple[Path, str]:
    """Draw a test sentence that the plain model gets wrong and the window model right; return it too."""
    (ours, evaluation), (other, other_evaluation) = windowed, plain
    assert evaluation.right is not None
    assert other_evaluation.right is not None
    attractors = store.split("test").columns["attractors"]
    index, told = choose_sentence(evaluation.right, other_evaluation.right, attractors)
    models = cast("Classifier", ours.model), cast("Classifier", other.model)
    tokens, panels = evaluation_windows.window_panels(
        cast("Classification", ours.task(store)), *models, "test", index
    )
    path = out / "windows.png"
    view_figures.save_figure(
        view_figures.attention_figure([panels], queries=tokens, keys=tokens, title=f"{told}\n{FRAME}"), path
    )
    return path, f"{' '.join(tokens)} ({told})"


def choose_sentence(
    right: NDArray[np.bool_], other_right: NDArray[np.bool_], attractors: NDArray[np.integer]
) -> tuple[int, str]:
    """Choose the first sentence that only the first model gets right, with two attractors if there is one."""
    alone = right & ~other_right
    for few in (2, 1, 0):
        if (chosen := alone & (attractors >= few)).any():
            return int(chosen.argmax()), "the plain model is wrong here, the window model right"
    return int(attractors.argmax()), "there is no sentence that only the window model gets right"
