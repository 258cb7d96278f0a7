"""Figures of a trace for papers: one head, the mean of heads, or all of them in a grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffwindow.view.figures import Panel, attention_figure
from diffwindow.view.trace import Array, AttentionTrace, Head, LayerMaps, tokens_by_side

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROLES = {"Enc": "encoder", "Cr": "cross-attention", "Dec": "decoder"}


def trace_figure(
    trace: AttentionTrace,
    role: str | None,
    layer: int | None,
    head: Head,
    *,
    against: AttentionTrace | None = None,
) -> Figure:
    """Draw the window and the attention of a layer, and the attention of another model's layer."""
    maps = choose_layer(trace, role, layer)
    try:
        other = None if against is None else against[maps.role, maps.layer]
    except KeyError as error:
        raise ValueError(f"the other model lacks the layer of the figure: {error.args[0]}") from None
    if other is not None and other.weights.shape[1:] != maps.weights.shape[1:]:
        shapes = [f"{one.weights.shape[1]} by {one.weights.shape[2]}" for one in (maps, other)]
        raise ValueError(f"the two models read {' and '.join(shapes)} tokens; they need the same tokenizer")
    gold = trace.gold
    outline = (gold.query, gold.first, gold.last) if gold and gold.role == maps.role else None
    rows = []
    for one in range(len(maps.weights)) if head == "all" else [head]:
        name = "mean of heads" if one == "mean" else f"head {one + 1}"
        panels = [(f"attention of {trace.label}, {name}", of_head(maps.weights, one))]
        if maps.window is not None:
            panels.insert(0, (f"window, {name}", of_head(maps.window, one)))
        if against is not None and other is not None:
            # heads of two models do not correspond, so their mean stands beside each
            theirs = f"attention of {against.label}, mean of heads"
            panels.append((theirs, of_head(other.weights, "mean")))
        rows.append([Panel(title, values, outline) for title, values in panels])
    tokens = tokens_by_side(trace)
    title = f"{trace.title}\n" if trace.title else ""
    return attention_figure(
        rows,
        queries=tokens[maps.queries],
        keys=tokens[maps.keys],
        names=("query", "key") if maps.queries == maps.keys else (maps.queries, maps.keys),
        title=f"{title}{ROLES.get(maps.role, maps.role)}, layer {maps.layer}, {maps.kind}",
    )


def choose_layer(trace: AttentionTrace, role: str | None, layer: int | None) -> LayerMaps:
    """Return the layer that is asked for, or the first with a window, or the first."""
    among = [
        maps
        for maps in trace.layers
        if (role is None or maps.role == role) and (layer is None or maps.layer == layer)
    ]
    if not among:
        known = ", ".join(f"{maps.role} {maps.layer}" for maps in trace.layers) or "no layer"
        raise ValueError(f"there is no layer {layer or ''} of {role or 'any role'}; this trace has {known}")
    return next((maps for maps in among if maps.window is not None), among[0])


def of_head(array: Array, head: Head) -> Array:
    """Return the map of a head, or the mean of all."""
    if head == "mean":
        mean: Array = array.mean(0)
        return mean
    assert isinstance(head, int)
    if not 0 <= head < len(array):
        raise ValueError(f"head={head} is not one of the {len(array)} heads, which count from 0")
    one: Array = array[head]
    return one
