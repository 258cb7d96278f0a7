"""Figures of a trace for papers: one head, the mean of heads, or all of them in a grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffwindow.view.figures import Panel, attention_grid
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
    names = {"ours": trace.label, "theirs": "" if against is None else against.label}
    gold = trace.gold
    outline = (gold.query, gold.first, gold.last) if gold and gold.role == maps.role else None
    if head == "all":
        rows = [
            _panels(maps, other, names, head=number, name=f"head {number + 1}", outline=outline)
            for number in range(len(maps.weights))
        ]
    else:
        name = "mean of heads" if head == "mean" else f"head {head + 1}"
        rows = [_panels(maps, other, names, head=head, name=name, outline=outline)]
    tokens = tokens_by_side(trace)
    title = f"{trace.title}\n" if trace.title else ""
    return attention_grid(
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


def _panels(
    maps: LayerMaps,
    other: LayerMaps | None,
    names: dict[str, str],
    *,
    head: Head,
    name: str,
    outline: tuple[int, int, int] | None,
) -> list[Panel]:
    panels = []
    if maps.window is not None:
        panels.append(Panel(f"window, {name}", of_head(maps.window, head), outline=outline))
    panels.append(
        Panel(f"attention of {names['ours']}, {name}", of_head(maps.weights, head), outline=outline)
    )
    if other is not None:
        # heads of two models do not correspond, so their mean stands beside each
        weights = of_head(other.weights, "mean")
        panels.append(Panel(f"attention of {names['theirs']}, mean of heads", weights, outline=outline))
    return panels
