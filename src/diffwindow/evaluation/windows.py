"""Measure windows: how much they leave out, where they look, and how well they fit gold spans."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from diffwindow import ops
from diffwindow.attention.base import Keys, Queries, watch
from diffwindow.attention.visibility import EVERYTHING, Visibility
from diffwindow.attention.window import WindowAttention, window_attentions
from diffwindow.checks import check_tolerance
from diffwindow.data.store import Store
from diffwindow.models.classifier import Classifier
from diffwindow.models.model import evaluating
from diffwindow.soft_window import Maps, compose_window
from diffwindow.special_tokens import PAD
from diffwindow.tasks.classification import Classification, ClassificationBatch
from diffwindow.tasks.task import B, Task, sweep
from diffwindow.view.trace import AttentionTrace, LayerMaps


def soft_overlap(window: NDArray[np.float64], gold: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return Σ min(M, g) / Σ max(M, g) over keys, which is intersection over union where M is hard.

    M counts as at most 1, for the paper's window reaches 2 where its boundaries meet.

    >>> gold = np.array([False, True, True, False])
    >>> soft_overlap(np.array([[0.0, 2.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]), gold).tolist()
    [0.5, 0.5]
    """
    clipped, target = np.minimum(window, 1.0), gold.astype(float)
    union = np.maximum(clipped, target).sum(-1)
    overlap: NDArray[np.float64] = np.minimum(clipped, target).sum(-1) / np.maximum(union, 1e-12)
    return overlap


def inside(weights: NDArray[np.float64], gold: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the share of attention that falls inside the gold window; weights need not sum to one.

    >>> inside(np.array([[0.5, 0.25, 0.25]]), np.array([False, True, True])).tolist()
    [0.5]
    """
    share: NDArray[np.float64] = (weights * gold).sum(-1) / np.maximum(weights.sum(-1), 1e-12)
    return share


def gold_windows(starts: NDArray[np.integer], ends: NDArray[np.integer], num_keys: int) -> NDArray[np.bool_]:
    """Mark the keys from start to end, both included: [b k].

    >>> gold_windows(np.array([1]), np.array([2]), 4).tolist()
    [[False, True, True, False]]
    """
    key = np.arange(num_keys)
    marked: NDArray[np.bool_] = (key >= starts[:, None]) & (key <= ends[:, None])
    return marked


# queries × keys that a kernel takes at a time, or about that
TILE = 64


class OutsideCounts(NamedTuple):
    """Pairs of query and key that are visible, tiles that hold any, and how many of both lie outside.

    A pair lies outside if M is below the tolerance, a tile if all of its visible pairs do.
    """

    pairs: int = 0
    pairs_outside: int = 0
    tiles: int = 0
    tiles_outside: int = 0

    def plus(self, other: OutsideCounts) -> OutsideCounts:
        """Add two counts."""
        return OutsideCounts(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def keys_share(self) -> float:
        """The share of visible pairs outside."""
        return self.pairs_outside / max(self.pairs, 1)

    @property
    def tiles_share(self) -> float:
        """The share of tiles outside."""
        return self.tiles_outside / max(self.tiles, 1)


def count_outside(
    window: Float[Tensor, "*lead q k"], visible: Bool[Tensor, "*lead q k"], tolerance: float
) -> OutsideCounts:
    """Count what lies outside of a window, in tiles that start at the first query and key.

    >>> import torch
    >>> window = torch.eye(128)
    >>> counts = count_outside(window, torch.ones(128, 128).bool(), tolerance=0.5)
    >>> counts.keys_share, counts.tiles_share
    (0.9921875, 0.5)
    """
    inside = visible & (window >= tolerance)
    pairs, tiles, pairs_inside, tiles_inside = (
        int(x.sum()) for seen in (visible, inside) for x in (seen, _any_in_tile(seen))
    )
    return OutsideCounts(pairs, pairs - pairs_inside, tiles, tiles - tiles_inside)


def _any_in_tile(seen: Bool[Tensor, "*lead q k"]) -> Bool[Tensor, "*lead tq tk"]:
    if not seen.numel():
        return seen
    images = seen.flatten(0, -3) if seen.dim() > 2 else seen[None]
    return F.max_pool2d(images.float(), TILE, ceil_mode=True) > 0


def mean_window(
    attention: WindowAttention,
    queries: Queries,
    keys: Keys,
    visibility: Visibility = EVERYTHING,
) -> Float[Tensor, ""]:
    """Return the mean of M over the keys that a query sees, averaged over queries, heads and the batch.

    Queries that are padding count as well. Uniform attention to values of one gives it to each query, in
    memory linear in the length.
    """
    q, k, v, boundaries, _ = attention.split_heads(queries, keys)
    options = attention.options._replace(
        attn_mask=visibility.visible(q, k) if visibility.attn_bias is not None else visibility.attn_mask,
        is_causal=visibility.is_causal,
        segment_origin=visibility.segment_origin,
        gates=attention.gates_of(visibility),
        normalize=False,
    )
    zero_q, zero_k = q.new_zeros(*q.shape[:3], 1), k.new_zeros(*k.shape[:3], 1)
    ones = v.new_ones(*v.shape[:3], 1)
    return ops.attend(zero_q, zero_k, ones, boundaries, None, options, attention.impl).float().mean()


# enough for a share to two digits, and few beside a validation
EXAMPLES = 16


def outside_shares(task: Task[B], model: nn.Module, split: str) -> dict[str, float]:
    """Return the shares of keys and of tiles below the tolerance of the model's windows.

    They are measured on examples spread evenly over the split, one at a time, because a window has
    queries × keys values. Return nothing if no window has a tolerance.
    """
    windows = window_attentions(model)
    if not any(module.options.window_tolerance for module in windows):
        return {}
    counts = OutsideCounts()

    def watcher(attention: WindowAttention, queries: Tensor, keys: Tensor, visibility: Visibility) -> None:
        nonlocal counts
        if not attention.options.window_tolerance:
            return
        soft = attention.maps(queries, keys, visibility).window
        assert soft is not None
        window = soft.values
        seen = visibility.visible(attention.query_heads(queries)[0], attention.key_heads(keys)[0])
        visible = torch.ones_like(window, dtype=torch.bool) if seen is None else seen.expand_as(window)
        counts = counts.plus(count_outside(window, visible, attention.options.window_tolerance))

    number = len(task.lengths(split)[0])
    rows = sorted(set(np.linspace(0, number - 1, EXAMPLES).round().astype(int).tolist())) if number else []
    with evaluating(model) as device, watch(windows, watcher):
        for row in rows:
            task.loss(model, task.collate(split, np.array([row])).to(device))
    return {"keys_outside": counts.keys_share, "tiles_outside": counts.tiles_share}


# a role, a layer from 1 and a head from 0
Key = tuple[str, int, int]


@dataclass(frozen=True)
class HeadStatistics:
    """Means over the queries of a corpus that see a key; positions are in keys from the query.

    `start` and `end` are the expected first and last key of the window: of the two boundaries in order, or of
    their segments. `width` = end − start + 1, with its standard deviation over queries, without sinks. In
    cross-attention, positions count from the diagonal.
    `entropy` is that of the attention, in bits. `keys_outside` is the share of visible keys where the window
    is below a tolerance, and `tiles_outside` that of tiles of 64 queries × 64 keys where it is so throughout,
    which kernels can skip; both are None without a tolerance.
    """

    role: str
    layer: int
    head: int
    queries: int
    width: float
    width_deviation: float
    start: float
    end: float
    entropy: float
    keys_outside: float | None = None
    tiles_outside: float | None = None


def window_statistics(
    traces: Iterable[AttentionTrace], *, tolerance: float | None = None
) -> list[HeadStatistics]:
    """Summarise the windows of many traces of one model; without a tolerance the layers' own counts.

    Width, start and end of each query are those of its `SoftWindow`.
    """
    if tolerance is not None:
        check_tolerance("tolerance", tolerance)
    totals: dict[Key, NDArray[np.float64]] = {}
    outside: dict[Key, OutsideCounts] = {}
    for trace in traces:
        for maps in trace.layers:
            if maps.window is None:
                continue
            for head, rows in enumerate(_measure_layer(maps)):
                key = (maps.role, maps.layer, head)
                totals[key] = totals.get(key, np.zeros(6)) + np.array(
                    [rows.shape[1], *rows.sum(1), (rows[0] ** 2).sum()]
                )
                if limit := maps.window_tolerance if tolerance is None else tolerance:
                    counts = _outside(maps, head, limit)
                    outside[key] = outside.get(key, OutsideCounts()).plus(counts)
    if not totals:
        raise ValueError("no attention has a window; train with one, as Enc(AW)")
    return [_summary(key, total, outside.get(key)) for key, total in totals.items()]


def _outside(maps: LayerMaps, head: int, tolerance: float) -> OutsideCounts:
    """Count what lies outside of a head's window."""
    assert maps.window is not None
    window = torch.from_numpy(maps.window[head])
    return count_outside(window, torch.from_numpy(maps.visible()), tolerance)


def _summary(key: Key, total: NDArray[np.float64], outside: OutsideCounts | None) -> HeadStatistics:
    role, layer, head = key
    count = max(total[0], 1.0)
    width, start, end, entropy, squares = total[1:] / count
    deviation = math.sqrt(max(squares - width**2, 0.0))
    shares = (None, None) if outside is None else (outside.keys_share, outside.tiles_share)
    return HeadStatistics(role, layer, head, int(total[0]), width, deviation, start, end, entropy, *shares)


def _measure_layer(maps: LayerMaps) -> list[NDArray[np.float64]]:
    """Return width, start, end and entropy of each query that sees a key: a [4, queries] array per head."""
    assert maps.phi_left is not None
    assert maps.phi_right is not None
    heads, queries, keys = maps.phi_left.shape
    window = compose_window(
        torch.from_numpy(maps.phi_left).double(),
        torch.from_numpy(maps.phi_right).double(),
        mask=torch.from_numpy(maps.visible()),
        segment_size=maps.segment_size,
        segment_origin=torch.full((heads,), maps.segment_origin),
    )
    slope = (keys - 1) / (queries - 1) if maps.role == "Cr" and queries > 1 else 1.0
    # a self-attention that has a cache has fewer queries than keys: they are the last of them
    place = np.arange(queries) * slope + (keys - queries if maps.role != "Cr" else 0)
    width, start, end = (x.numpy() for x in (window.width, window.start, window.end))
    seen = maps.phi_left.sum(-1) > 0.5
    entropy = _entropy(maps.weights)
    found = np.stack([width, start - place, end - place, entropy])
    return [found[:, head, seen[head]] for head in range(heads)]


def _entropy(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    total = weights.sum(-1, keepdims=True, dtype=np.float64)
    share = weights / np.where(total > 0, total, 1.0)
    logs = np.log2(share, out=np.zeros_like(share), where=share > 0)
    entropy: NDArray[np.float64] = -(share * logs).sum(-1)
    return entropy


def as_table(rows: list[HeadStatistics]) -> list[str]:
    """Show the statistics as lines of text, aligned."""
    head = ["role", "layer", "head", "width", "±", "start", "end", "entropy", "queries"]
    if any(row.keys_outside is not None for row in rows):
        head += ["keys outside", "tiles outside"]
    body = [head]
    for row in rows:
        numbers = (row.width, row.width_deviation, row.start, row.end, row.entropy)
        cells = [
            f"{number:+.2f}" if place in (2, 3) else f"{number:.2f}" for place, number in enumerate(numbers)
        ]
        shares = ["" if share is None else f"{share:.3f}" for share in (row.keys_outside, row.tiles_outside)]
        line = [row.role, str(row.layer), str(row.head + 1), *cells, f"{row.queries:,}", *shares]
        body.append(line[: len(head)])
    widths = [max(len(line[column]) for line in body) for column in range(len(head))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in body]


# of one batch: overlap and inside by row and head (none for overlap without a window), chance by row
_Measured = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
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
        return [_measure(maps, verbs[rows], gold, real) for maps in _encoder_maps(model, batch)]

    batches = [measured for _, measured in sweep(task, model, split, measure)]
    return [_fit(number, list(layer)) for number, layer in enumerate(zip(*batches, strict=True), 1)]


def _encoder_maps(model: Classifier, batch: ClassificationBatch) -> list[Maps]:
    """Run the encoder and return the maps of each layer, for all sentences of the batch."""
    layers: list[Maps] = []
    attentions = [block.attention for block in model.attention_blocks()["Enc"]]
    with watch(attentions, lambda attention, *call: layers.append(attention.maps(*call))):
        model.encode(batch.tokens, gates=batch.gates)
    return layers


def _measure(
    maps: Maps, verbs: NDArray[np.int64], gold: NDArray[np.bool_], real: NDArray[np.int64]
) -> _Measured:
    window = maps.weights[:, :0] if maps.window is None else maps.window.values

    def at_verb(tensor: Tensor) -> NDArray[np.float64]:
        rows: NDArray[np.float64] = tensor.cpu().double().numpy()[np.arange(len(verbs)), :, verbs]
        return rows

    return (
        soft_overlap(at_verb(window), gold[:, None]),
        inside(at_verb(maps.weights), gold[:, None]),
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


@dataclass(frozen=True)
class VerbReadings:
    """What a model reads at the place of each sentence's verb, in layer 1: means over heads, 0 on padding."""

    attention: Float[np.ndarray, "rows keys"]
    # None where the attention has no window
    window: Float[np.ndarray, "rows keys"] | None
    # of the noun with which the verb agrees
    subject: Int[np.ndarray, " rows"]

    @property
    def on_subject(self) -> Float[np.ndarray, " rows"]:
        """Return the share of attention that falls on the subject."""
        shares: Float[np.ndarray, " rows"] = self.attention[np.arange(len(self.subject)), self.subject]
        return shares


def read_at_verbs(task: Classification, model: Classifier, split: str) -> VerbReadings:
    """Read every sentence of a split that has gold windows."""
    columns = task.store.split(split).columns
    verbs, subject = (columns[name].astype(np.int64) for name in ("verb_position", "subject_head"))

    def read(rows: np.ndarray, batch: ClassificationBatch) -> list[NDArray[np.float32]]:
        maps = _encoder_maps(model, batch)[0]
        shown = [maps.weights] if maps.window is None else [maps.weights, maps.window.values]
        return [one.mean(1).cpu().float().numpy()[np.arange(len(rows)), verbs[rows]] for one in shown]

    batches = sweep(task, model, split, read)
    found = [np.zeros((len(verbs), int(verbs.max()) + 1), np.float32) for _ in batches[0][1]]
    for rows, shown in batches:
        for whole, part in zip(found, shown, strict=True):
            whole[rows, : part.shape[1]] = part
    return VerbReadings(found[0], found[1] if len(found) == 2 else None, subject)
