"""Word alignments from the cross-attention of a translator, and their error rate."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from typing import Literal, get_args

import numpy as np

from diffwindow.inference.attention import text_example, trace_example
from diffwindow.messages import check_choice
from diffwindow.models.translator import Translator
from diffwindow.tasks.model_folder import ModelFolder
from diffwindow.view.trace import Array, LayerMaps

By = Literal["attention", "window"]
# a source word and a target word that translates it, both by their place from 0
Link = tuple[int, int]


def align_pair(
    trained: ModelFolder, source: str, target: str, *, by: By = "attention", layer: int | None = None
) -> list[Link]:
    """Link each target word to the source word that the step which writes it attends to most.

    `by="window"` takes the window M instead of the attention. Heads are averaged. `layer` is that of the
    decoder, counted from 1; by default the last one, or the last that has a window. Words are those between
    spaces, after Moses if the model's corpus was tokenised by it. A text without words has no links.
    """
    check_choice("by", by, get_args(By))
    if not isinstance(trained.model, Translator):
        raise ValueError(f"{trained.path} holds a {trained.entry.noun}, which has no cross-attention")
    if not source.strip() or not target.strip():
        return []
    trace = trace_example(trained, text_example(trained, source, target=target))
    maps = _layer_of([maps for maps in trace.layers if maps.role == "Cr"], by, layer)
    values = maps.weights if by == "attention" else maps.window
    assert values is not None
    # the last row writes the end, and the last key is the end of the source
    places = [_words(trace.tokens[side][:-1]) for side in (maps.queries, maps.keys)]
    by_word = _by_word(values.mean(0)[:-1, :-1], *places, mean=by == "window")
    return [(int(best), number) for number, best in enumerate(by_word.argmax(1))]


def _layer_of(cross: Sequence[LayerMaps], by: By, layer: int | None) -> LayerMaps:
    able = [maps for maps in cross if by == "attention" or maps.window is not None]
    chosen = able[-1:] if layer is None else [maps for maps in able if maps.layer == layer]
    if not chosen:
        layers = ", ".join(str(maps.layer) for maps in able) or "none"
        place = "" if layer is None else f"layer {layer} has none; "
        raise ValueError(f"alignments by {by} need cross-attention with it: {place}it is in layers: {layers}")
    return chosen[0]


def _words(tokens: Sequence[str]) -> list[int]:
    """Return the word that each token belongs to, counted from 0.

    >>> _words(["un@@", "lock", "it"])
    [0, 0, 1]
    """
    begins = (not before.endswith("@@") for before in tokens[:-1])
    return list(accumulate(begins, initial=0))


def _by_word(values: Array, queries: Sequence[int], keys: Sequence[int], *, mean: bool) -> Array:
    """Average queries of a word, and add up its keys, or average them too."""
    rows = np.eye(queries[-1] + 1, dtype=np.float32)[:, queries]
    columns = np.eye(keys[-1] + 1, dtype=np.float32)[:, keys]
    if mean:
        columns /= columns.sum(1, keepdims=True)
    by_word: Array = rows @ values @ columns.T / rows.sum(1, keepdims=True)
    return by_word


def format_pharaoh(links: Iterable[Link]) -> str:
    """Return links as Pharaoh and Moses write them: source-target, from 0.

    >>> format_pharaoh([(0, 1), (2, 0)])
    '0-1 2-0'
    """
    return " ".join(f"{source}-{target}" for source, target in links)


def alignment_error_rate(
    found: Sequence[Collection[Link]],
    sure: Sequence[Collection[Link]],
    possible: Sequence[Collection[Link]] | None = None,
) -> float:
    """Return 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), over all sentences (Och and Ney 2003).

    `possible` links hold the sure ones; by default they are the same.

    >>> alignment_error_rate([[(0, 0), (1, 1)]], [[(0, 0), (2, 1)]])
    0.5
    """
    hits = total = 0
    for a, s, p in zip(found, sure, sure if possible is None else possible, strict=True):
        hits += len({*a} & {*s}) + len({*a} & ({*p} | {*s}))
        total += len({*a}) + len({*s})
    if not total:
        raise ValueError("there are no links, so their error rate is unknown")
    return 1.0 - hits / total
