"""Width and position of windows, by layer and head, over many sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from diffwindow.arguments import check_tolerance
from diffwindow.functional import segment_bounds
from diffwindow.metrics.window_tiles import OutsideCounts, count_outside
from diffwindow.view.trace import AttentionTrace, LayerMaps

# a role, a layer from 1 and a head from 0
Key = tuple[str, int, int]


@dataclass(frozen=True)
class HeadStatistics:
    """Means over the queries of a corpus that see a key; positions are in keys from the query.

    `start` and `end` are the expected first and last key of the window: of the two boundaries in order, or of
    their segments. `width` = end − start + 1, with its standard deviation over queries. In cross-attention,
    positions count from the diagonal.
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

    Each boundary is a key drawn from its pointer, so with F_l and F_r the pointers' prefix sums, the later
    of the two is at or before key i with probability F_l F_r, the earlier with 1 − (1 − F_l)(1 − F_r).
    """
    if tolerance is not None:
        check_tolerance("tolerance", tolerance)
    totals: dict[Key, NDArray[np.float64]] = {}
    outside: dict[Key, OutsideCounts] = {}
    for trace in traces:
        for maps in trace.layers:
            if maps.window is None:
                continue
            for head, rows in enumerate(_measured(maps)):
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
    """Count what lies outside of a head's window; a decoder's queries do not see the keys after them."""
    assert maps.window is not None
    window = torch.from_numpy(maps.window[head])
    queries, keys = window.shape
    visible = torch.ones(queries, keys, dtype=torch.bool)
    return count_outside(window, visible.tril(keys - queries) if maps.role == "Dec" else visible, tolerance)


def _summary(key: Key, total: NDArray[np.float64], outside: OutsideCounts | None) -> HeadStatistics:
    role, layer, head = key
    count = max(total[0], 1.0)
    width, start, end, entropy, squares = total[1:] / count
    deviation = math.sqrt(max(squares - width**2, 0.0))
    shares = (None, None) if outside is None else (outside.keys_share, outside.tiles_share)
    return HeadStatistics(role, layer, head, int(total[0]), width, deviation, start, end, entropy, *shares)


def _measured(maps: LayerMaps) -> list[NDArray[np.float64]]:
    """Return width, start, end and entropy of each query that sees a key: a [4, queries] array per head."""
    assert maps.phi_left is not None
    assert maps.phi_right is not None
    left, right = (phi.astype(np.float64).cumsum(-1) for phi in (maps.phi_left, maps.phi_right))
    seen = left[..., -1] > 0.5
    _, queries, keys = left.shape
    origin = torch.tensor(maps.segment_origin)
    first, last = (bound.double().numpy() for bound in segment_bounds(keys, maps.segment_size, origin))
    slope = (keys - 1) / (queries - 1) if maps.role == "Cr" and queries > 1 else 1.0
    # a self-attention that has a cache has fewer queries than keys: they are the last of them
    place = np.arange(queries) * slope + (keys - queries if maps.role != "Cr" else 0)
    if maps.role == "Dec":
        # a segment that goes on after the query ends there
        last = np.minimum(last, place[:, None])
    start, end = _expected(first, 1 - (1 - left) * (1 - right)), _expected(last, left * right)
    entropy = _entropy(maps.weights)
    found = np.stack([end - start + 1, start - place, end - place, entropy])
    return [found[:, head, seen[head]] for head in range(len(left))]


def _expected(values: NDArray[np.float64], sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of a value per key, where the keys' distribution has these prefix sums."""
    mean: NDArray[np.float64] = (np.diff(sums, axis=-1, prepend=0.0) * values).sum(-1)
    return mean


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
