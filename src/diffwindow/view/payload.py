"""The data of a page: traces as JSON, their arrays quantised and compressed."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from diffwindow.checks import WindowRule
from diffwindow.functional import soft_window
from diffwindow.view.trace import AttentionTrace, LayerMaps, sizes, tokens_by_side

# base64 characters of one trace, above which its values get 8 bits instead of 16, and of a whole page
TRACE_BUDGET = 1_800_000
PAGE_BUDGET = 24_000_000
Payload = dict[str, Any]


class Quantised(NamedTuple):
    """An array as whole numbers, what the largest of them stands for, and the largest error."""

    data: Payload
    values: NDArray[np.float64]
    error: float


def quantise(array: NDArray[Any], bits: int) -> Quantised:
    """Round an array of values from 0 up to whole numbers of 8 or 16 bits, shares of its largest value.

    >>> quantise(np.array([0.0, 0.5, 1.0]), 8).values.round(3).tolist()
    [0.0, 0.502, 1.0]
    """
    scale = float(np.max(array, initial=0.0)) or 1.0
    levels = 2**bits - 1
    exact = np.asarray(array, np.float64)
    whole = np.clip(np.rint(exact / scale * levels), 0, levels)
    packed = zlib.compress(whole.astype(np.dtype(f"u{bits // 8}").newbyteorder("<")).tobytes(), 9)
    values = whole * (scale / levels)
    data = {"bits": bits, "scale": scale, "data": base64.b64encode(packed).decode("ascii")}
    return Quantised(data, values, float(np.abs(values - exact).max(initial=0.0)))


class Encoded(NamedTuple):
    """A trace for the page, its size in characters, and the largest errors of weights and windows."""

    layers: list[Payload]
    size: int
    weights_error: float
    window_error: float


def encode(trace: AttentionTrace, bits: int) -> Encoded:
    """Quantise all maps of a trace."""
    layers, size, weights_error, window_error = [], 0, 0.0, 0.0
    for maps in trace.layers:
        arrays = _quantise(maps, bits)
        weights_error = max(weights_error, arrays["weights"].error)
        window_error = max(window_error, _window_error(maps, arrays))
        layers.append(
            {
                "role": maps.role,
                "layer": maps.layer,
                "kind": maps.kind,
                "queries": maps.queries,
                "keys": maps.keys,
                "shape": list(maps.weights.shape),
                "segment_size": maps.segment_size,
                "segment_origin": maps.segment_origin,
                "expectation": maps.expectation,
                "window_tolerance": maps.window_tolerance,
                "sinks": maps.sinks,
                "window_rule": maps.window_rule,
                **{name: array.data for name, array in arrays.items()},
            }
        )
        size += sum(len(array.data["data"]) for array in arrays.values())
    return Encoded(layers, size, weights_error, window_error)


def _quantise(maps: LayerMaps, bits: int) -> dict[str, Quantised]:
    arrays = {"weights": quantise(maps.weights, bits)}
    if maps.phi_left is not None and maps.phi_right is not None:
        # prefix sums, because the errors of rounded φ would add up along the keys
        arrays["left"] = quantise(maps.phi_left.cumsum(-1, dtype=np.float64), bits)
        arrays["right"] = quantise(maps.phi_right.cumsum(-1, dtype=np.float64), bits)
    if maps.window is not None and (maps.phrases or maps.window_rule != "soft"):
        # the page composes soft windows of tokens and segments only
        arrays["window"] = quantise(maps.window, bits)
    return arrays


def _window_error(maps: LayerMaps, arrays: Mapping[str, Quantised]) -> float:
    """Return the largest difference between a window and what the page makes of its pointers."""
    if maps.window is None or "window" in arrays:
        return 0.0
    phi = [torch.from_numpy(np.diff(arrays[side].values, axis=-1, prepend=0.0)) for side in ("left", "right")]
    window = soft_window(
        *phi,
        segment_size=maps.segment_size,
        segment_origin=torch.full((len(maps.window),), maps.segment_origin),
        expectation=maps.expectation,
        window_tolerance=maps.window_tolerance,
        sinks=maps.sinks,
        mask=torch.from_numpy(maps.visible()),
    )
    return float(np.abs(window.numpy() - maps.window).max(initial=0.0))


def page_data(
    trace: AttentionTrace,
    *,
    against: AttentionTrace | None = None,
    checkpoints: Mapping[str, AttentionTrace] | None = None,
    rules: Mapping[WindowRule, AttentionTrace] | None = None,
) -> Payload:
    """Return the data of a page; what would make it too large is left out, with a notice.

    First the rules for windows at test time go, then checkpoints.
    """
    if not trace.layers:
        raise ValueError("this trace is empty: capture a model while it runs")
    checkpoints, rules = checkpoints or {}, rules or {}
    for name, other in (*checkpoints.items(), *rules.items()):
        if sizes(other.layers) != sizes(trace.layers):
            raise ValueError(f"{name} has read another sentence than the rest")
    bits, encoded = 16, encode(trace, 16)
    if encoded.size > TRACE_BUDGET:
        bits, encoded = 8, encode(trace, 8)
    second = None if against is None else encode(against, bits)
    size = encoded.size + (second.size if second else 0)
    if size > PAGE_BUDGET:
        raise ValueError(
            f"the page would have {size / 1e6:.0f} MB, more than {PAGE_BUDGET / 1e6:.0f}; take a shorter text"
        )
    ruled = {rule: encode(other, bits) for rule, other in rules.items()}
    if size + sum(one.size for one in ruled.values()) > PAGE_BUDGET:
        ruled = {}
    size += sum(one.size for one in ruled.values())
    room = int((PAGE_BUDGET - size) // max(encoded.size, 1))
    chosen = spread(list(checkpoints), room)
    earlier = {name: encode(checkpoints[name], bits) for name in chosen}
    snapshots = [*earlier.items(), ("final model" if earlier else trace.label, encoded)]
    runs = [_run(trace, snapshots, list(ruled.items()))]
    if against is not None and second is not None:
        runs.append(_run(against, [(against.label, second)]))
    everything = [*earlier.values(), encoded, *ruled.values(), *([second] if second else [])]
    notices = [_precision(bits, everything)]
    if rules and not ruled:
        notices.append(
            f"Windows at test time are left out: the page is limited to {PAGE_BUDGET / 1e6:.0f} MB."
        )
    if len(chosen) < len(checkpoints):
        notices.append(
            f"{len(chosen)} of {len(checkpoints)} checkpoints are here, evenly spaced: "
            f"the page is limited to {PAGE_BUDGET / 1e6:.0f} MB."
        )
    return {"title": trace.title or trace.label, "runs": runs, "notices": notices, "live": None}


def _run(
    trace: AttentionTrace,
    snapshots: Sequence[tuple[str, Encoded]],
    rules: Sequence[tuple[str, Encoded]] = (),
) -> Payload:
    return {
        "label": trace.label,
        "tokens": {
            side: {"labels": labels, "words": word_numbers(labels)}
            for side, labels in tokens_by_side(trace).items()
        },
        "gold": None if trace.gold is None else asdict(trace.gold),
        "snapshots": [{"label": name, "layers": encoded.layers} for name, encoded in snapshots],
        "rules": [{"label": name, "layers": encoded.layers} for name, encoded in rules],
    }


def _precision(bits: int, encoded: Sequence[Encoded]) -> str:
    weights = max(one.weights_error for one in encoded)
    window = max(one.window_error for one in encoded)
    windows = f" and of a window {window:.1g}" if window else ""
    error = f"the largest error of an attention weight is {weights:.1g}{windows}"
    return f"Values are stored in {bits} bits; {error}."


def spread(names: Sequence[str], count: int) -> list[str]:
    """Choose `count` names, evenly spaced, the first and the last among them.

    >>> spread(["1", "2", "3", "4", "5"], 3)
    ['1', '3', '5']
    """
    if count >= len(names):
        return list(names)
    if count < 1:
        return []
    places = np.rint(np.linspace(0, len(names) - 1, count)).astype(int)
    return [names[place] for place in places]


def word_numbers(labels: Sequence[str]) -> list[int]:
    """Return the number of each token's word, by the marks of common tokenizers.

    >>> word_numbers(["un@@", "lock", "it"]), word_numbers(["un", "##lock", "it"])
    ([0, 0, 1], [0, 0, 1])
    >>> word_numbers(["<s>", "▁un", "lock", "▁it"])
    [0, 1, 1, 2]
    """
    marked = any(label[:1] in ("▁", "Ġ") for label in labels)
    numbers: list[int] = []
    for place, label in enumerate(labels):
        before = labels[place - 1] if place else ""
        joined = before.endswith("@@") or label.startswith("##")
        if marked and place:
            joined = label[:1] not in ("▁", "Ġ") and not _special(label) and not _special(before)
        numbers.append(numbers[-1] + (not joined) if numbers else 0)
    return numbers


def _special(label: str) -> bool:
    return len(label) > 2 and (label[0] + label[-1]) in ("<>", "[]")
