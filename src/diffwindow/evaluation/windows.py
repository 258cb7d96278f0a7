"""Learned windows against gold ones: where an agreement classifier attends from the verb's position."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from diffwindow.attention.stacked_attention import Maps
from diffwindow.data.store import Store
from diffwindow.figures.attention_maps import Panel
from diffwindow.metrics.window_overlap import gold_windows, inside, soft_overlap
from diffwindow.models.classifier import Classifier
from diffwindow.models.eval_mode import evaluating
from diffwindow.ops import WindowMaps
from diffwindow.special_tokens import PAD
from diffwindow.tasks.classification import Classification, ClassificationBatch
from diffwindow.tasks.task import sweep

# the first and the last word of a gold window; the last is the query
GOLD_COLUMNS = ("subject_start", "verb_position")


@dataclass(frozen=True)
class WindowFit:
    """Means over the sentences of a split, for the query at the verb's position, in one layer.

    `overlap` is that of the window with the gold one, averaged over heads (None where the attention has no
    window), `best_head` that of the head that does best, `attention_inside` the share of attention that
    falls inside the gold window. `chance` is the value of uniform attention, for all of them.
    """

    layer: int
    overlap: float | None
    best_head: float | None
    attention_inside: float
    chance: float
    overlap_by_head: list[float]
    inside_by_head: list[float]


def has_gold_windows(store: Store, max_length: int | None) -> bool:
    """Return whether a corpus has gold windows that fit the tokens of a model that reads up to `max_length`.

    Their positions count words, so tokens must be words, and the model must read whole texts.
    """
    columns = next(iter(store.splits.values())).columns
    whole = store.tokenizer.kind == "words" and max_length is None
    return whole and all(name in columns for name in GOLD_COLUMNS)


def window_fits(task: Classification, model: Classifier, split: str) -> list[WindowFit]:
    """Measure every layer on a whole split."""
    columns = task.store.split(split).columns
    starts, verbs = (columns[name].astype(np.int64) for name in GOLD_COLUMNS)

    def measure(rows: np.ndarray, batch: ClassificationBatch) -> list[_Measured]:
        gold = gold_windows(starts[rows], verbs[rows], batch.tokens.shape[1])
        real = (batch.tokens != PAD).sum(1).cpu().numpy()
        return [_measure(maps, verbs[rows], gold, real) for maps in model.attention_maps(batch.tokens)["Enc"]]

    with evaluating(model) as device:
        batches = [
            measured for _, measured in sweep(task, split, device, measure, max_tokens=task.valid_tokens)
        ]
    return [_fit(number, list(layer)) for number, layer in enumerate(zip(*batches, strict=True), 1)]


class _Measured(NamedTuple):
    """Measures per row of a batch and head; `overlap` has no heads if the attention has no window."""

    overlap: NDArray[np.float64]
    inside: NDArray[np.float64]
    chance: NDArray[np.float64]


def _measure(
    maps: Maps, verbs: NDArray[np.int64], gold: NDArray[np.bool_], real: NDArray[np.int64]
) -> _Measured:
    weights, window = (maps.weights, maps.window) if isinstance(maps, WindowMaps) else (maps, maps[:, :0])

    def at_verb(tensor: Tensor) -> NDArray[np.float64]:
        rows: NDArray[np.float64] = tensor.cpu().double().numpy()[np.arange(len(verbs)), :, verbs]
        return rows

    return _Measured(
        soft_overlap(at_verb(window), gold[:, None]),
        inside(at_verb(weights), gold[:, None]),
        gold.sum(1) / real,
    )


def _fit(layer: int, batches: list[_Measured]) -> WindowFit:
    overlap, in_gold, chance = (np.concatenate(column).mean(0) for column in zip(*batches, strict=True))
    return WindowFit(
        layer,
        overlap=float(overlap.mean()) if len(overlap) else None,
        best_head=float(overlap.max()) if len(overlap) else None,
        attention_inside=float(in_gold.mean()),
        chance=float(chance),
        overlap_by_head=overlap.tolist(),
        inside_by_head=in_gold.tolist(),
    )


def window_panels(
    task: Classification, windowed: Classifier, plain: Classifier, split: str, index: int
) -> tuple[list[str], list[Panel]]:
    """Return a sentence's tokens, and panels of its window, its attention, and a plain model's, in layer 1.

    Each model shows the head that does best on the whole split: by overlap with the gold windows, or by the
    attention inside them. A frame marks the gold window of the verb.
    """
    row = task.store.split(split)
    start, verb = (int(row.columns[name][index]) for name in GOLD_COLUMNS)
    with evaluating(windowed), evaluating(plain):
        tokens = task.collate(split, np.array([index])).tokens
        ours, other = windowed.attention_maps(tokens)["Enc"][0], plain.attention_maps(tokens)["Enc"][0]
    if not isinstance(ours, WindowMaps) or isinstance(other, WindowMaps):
        raise ValueError(
            f"{windowed.config.attention} and {plain.config.attention}: one needs a window in layer 1"
        )
    head = int(np.argmax(window_fits(task, windowed, split)[0].overlap_by_head))
    plain_head = int(np.argmax(window_fits(task, plain, split)[0].inside_by_head))
    matrices = (
        (f"window, {windowed.config.attention} head {head + 1}", ours.window[0, head]),
        (f"attention, {windowed.config.attention} head {head + 1}", ours.weights[0, head]),
        (f"attention, {plain.config.attention} head {plain_head + 1}", other[0, plain_head]),
    )
    labels = [*task.store.tokenizer.tokens(tokens[0, :-1].tolist()), "[verb]"]
    return labels, [Panel(name, values.numpy(), outline=(verb, start, verb)) for name, values in matrices]


def as_rows(fits: list[WindowFit]) -> list[dict[str, Any]]:
    """Return plain data for JSON."""
    return [asdict(fit) for fit in fits]
