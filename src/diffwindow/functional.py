"""The paper's equations in plain PyTorch: the oracle that every kernel is tested against.

Shapes, here and everywhere: b batch, h heads, q queries, k keys, d model width, e head width, w value width,
s segments, v vocabulary. Positions count from 0. A boolean `mask` is True where a query may look. Equation
numbers are those of the paper.

`phi` is a distribution over the keys that points at a boundary of the window; F, its prefix sums, is the
probability that the boundary lies at or before a key, and G, its suffix sums, that it lies at or after it.
"""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffwindow.checks import (
    EXPECTATIONS,
    MOST_KEYS,
    Expectation,
    check_count,
    check_dropout,
    check_floats,
    check_gates,
    check_mask,
    check_one_structure,
    check_origin,
    check_positions,
    check_scale,
    check_segment_size,
    check_sinks,
    check_tolerance,
    check_whole,
)
from diffwindow.messages import check_choice


def discrete_window(left: int | Int[Tensor, "..."], right: int | Int[Tensor, "..."], num_keys: int) -> Tensor:
    """Mark the keys from `left` to `right`, both included: m_i = 1 if l ≤ i ≤ r, else 0 (Eq. 3).

    As in the paper, `left > right` is an empty window; `soft_window` takes its boundaries in either order.

    >>> discrete_window(3, 8, 10)
    tensor([0., 0., 0., 1., 1., 1., 1., 1., 1., 0.])
    """
    check_count("num_keys", num_keys)
    for name, bound in (("left", left), ("right", right)):
        check = check_positions if isinstance(bound, Tensor) else check_whole
        check(name, bound)
    inside = interval_mask(torch.as_tensor(left), torch.as_tensor(right), num_keys)
    return inside.to(torch.get_default_dtype())


def interval_mask(
    start: Int[Tensor, "..."],
    end: Int[Tensor, "..."],
    num_keys: int,
    *,
    sinks: int = 0,
    origin: Int[Tensor, " b"] | None = None,
) -> Bool[Tensor, "... k"]:
    """Mark the keys from `start` to `end`, both included, and the first `sinks` keys from `origin` on.

    `start` and `end` broadcast to `[b h q]`; `origin` is 0 by default, and so is what lies before key 0.

    >>> interval_mask(torch.tensor([3, 4]), torch.tensor([4, 3]), 6, sinks=1).int()
    tensor([[1, 0, 0, 1, 1, 0],
            [1, 0, 0, 0, 0, 0]], dtype=torch.int32)
    """
    position = torch.arange(num_keys, device=start.device)
    inside = (start[..., None] <= position) & (position <= end[..., None])
    if sinks == 0:
        return inside
    return inside | sink_mask(num_keys, sinks, None if origin is None else origin.view(-1, 1, 1)).to(
        start.device
    )


def sink_mask(
    num_keys: int, sinks: int, origin: Int[Tensor, "*lead"] | None = None
) -> Bool[Tensor, "*lead k"]:
    """Mark the first `sinks` keys from `origin` on; an origin before key 0 counts as 0.

    >>> sink_mask(6, 2, torch.tensor([0, 3])).int()
    tensor([[1, 1, 0, 0, 0, 0],
            [0, 0, 0, 1, 1, 0]], dtype=torch.int32)
    """
    position = torch.arange(num_keys, device=None if origin is None else origin.device)
    first = 0 if origin is None else origin[..., None].long().clamp(0, num_keys)
    # no more than kernels count, so that the number fits a tensor
    return (first <= position) & (position - first < min(sinks, MOST_KEYS))


def segment_bounds(
    num_keys: int, segment_size: int, origin: Int[Tensor, "*lead"] | None = None
) -> tuple[Int[Tensor, "*lead k"], Int[Tensor, "*lead k"]]:
    """Return the first and the last key of each key's segment, which are the bounds of J (Eq. 10).

    The grid of segments starts at `origin`.

    >>> [bound.tolist() for bound in segment_bounds(5, 2)]
    [[0, 0, 2, 2, 4], [1, 1, 3, 3, 4]]
    """
    check_count("num_keys", num_keys)
    check_segment_size(segment_size)
    if origin is not None:
        check_positions("origin", origin)
    position = torch.arange(num_keys, device=None if origin is None else origin.device)
    # of the grids that are the same, the one whose start cannot overflow
    start = 0 if origin is None else origin[..., None].long() % segment_size
    first = start + (position - start).div(segment_size, rounding_mode="floor") * segment_size
    return first.clamp(min=0), (first + segment_size - 1).clamp(max=num_keys - 1)


def segments_of(
    phi: Float[Tensor, "*lead k"], segment_size: int, origin: Int[Tensor, " b"] | None
) -> tuple[Int[Tensor, "*lead k"], Int[Tensor, "*lead k"]]:
    """Return `segment_bounds` in the shape of `phi`, whose first dimension `origin` runs along."""
    if origin is not None:
        origin = origin.view(-1, *[1] * (phi.dim() - 2))
    first, last = segment_bounds(phi.shape[-1], segment_size, origin)
    return first.to(phi.device).expand_as(phi), last.to(phi.device).expand_as(phi)


def rightward(
    phi: Float[Tensor, "*lead k"], segment_size: int = 1, *, segment_origin: Int[Tensor, " b"] | None = None
) -> Float[Tensor, "*lead k"]:
    """Sum φ from the left up to each key, F = φᵀL, or up to the end of its segment, F = φᵀJ (Eq. 5, 10).

    >>> rightward(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    tensor([0.1000, 0.3000, 0.6000, 1.0000])
    >>> rightward(torch.tensor([0.1, 0.2, 0.3, 0.4]), segment_size=2)
    tensor([0.3000, 0.3000, 1.0000, 1.0000])
    """
    check_floats("phi", phi)
    check_segment_size(segment_size)
    check_origin(segment_origin, phi)
    prefix = phi.cumsum(-1)
    if segment_size == 1:
        return prefix
    _, last = segments_of(phi, segment_size, segment_origin)
    return prefix.gather(-1, last)


def leftward(
    phi: Float[Tensor, "*lead k"], segment_size: int = 1, *, segment_origin: Int[Tensor, " b"] | None = None
) -> Float[Tensor, "*lead k"]:
    """Sum φ from the right down to each key, G = φᵀLᵀ, or to the start of its segment, φᵀJᵀ (Eq. 5, 10).

    >>> leftward(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    tensor([1.0000, 0.9000, 0.7000, 0.4000])
    """
    check_floats("phi", phi)
    check_segment_size(segment_size)
    check_origin(segment_origin, phi)
    suffix = phi.flip(-1).cumsum(-1).flip(-1)
    if segment_size == 1:
        return suffix
    first, _ = segments_of(phi, segment_size, segment_origin)
    return suffix.gather(-1, first)


def soft_window(
    phi_left: Float[Tensor, "*lead k"],
    phi_right: Float[Tensor, "*lead k"],
    *,
    segment_size: int = 1,
    segment_origin: Int[Tensor, " b"] | None = None,
    expectation: Expectation = "paper",
    window_tolerance: float = 0.0,
    sinks: int = 0,
    mask: Bool[Tensor, "..."] | None = None,
    gates: Float[Tensor, "*phrases gaps"] | None = None,
) -> Float[Tensor, "*lead k"]:
    """Compose two boundary distributions into a window: M = F_l ⊙ G_r + F_r ⊙ G_l (Eq. 9, 11).

    The paper's M counts the case that both boundaries fall on one key (or in one segment) twice; "exact"
    takes it off once, so that M is the probability that a key lies between two independent boundaries.
    "ordered" has the first term alone (Eq. 6), which vanishes where the left boundary is behind the right.

    M below `window_tolerance` is set to 0, with a gradient of 0. After that M is set to 1, with a gradient of
    0, at those of the first `sinks` keys from `segment_origin` on that `mask` shows. With `gates` it is a
    window of whole phrases, as `phrase_window` has it.

    >>> one_hot = torch.eye(10)
    >>> soft_window(one_hot[8], one_hot[3])
    tensor([0., 0., 0., 1., 1., 1., 1., 1., 1., 0.])
    >>> soft_window(one_hot[8], one_hot[3], sinks=2)
    tensor([1., 1., 0., 1., 1., 1., 1., 1., 1., 0.])
    """
    check_floats("phi_left", phi_left)
    check_floats("phi_right", phi_right)
    check_choice("expectation", expectation, EXPECTATIONS)
    check_tolerance("window_tolerance", window_tolerance)
    check_sinks(sinks)
    if gates is None:
        window = _segment_window(phi_left, phi_right, segment_size, segment_origin, expectation)
    else:
        check_one_structure(segment_size, phrases=True)
        window = phrase_window(phi_left, phi_right, gates, expectation=expectation)
    if window_tolerance > 0:
        window = window.masked_fill(window < window_tolerance, 0.0)
    return show_sinks(window, sinks, segment_origin, mask)


def _segment_window(
    phi_left: Tensor,
    phi_right: Tensor,
    segment_size: int,
    segment_origin: Tensor | None,
    expectation: Expectation,
) -> Tensor:
    """Compose a window by token or by segments."""
    f_left = rightward(phi_left, segment_size, segment_origin=segment_origin)
    g_left = leftward(phi_left, segment_size, segment_origin=segment_origin)
    f_right = rightward(phi_right, segment_size, segment_origin=segment_origin)
    g_right = leftward(phi_right, segment_size, segment_origin=segment_origin)
    window = f_left * g_right
    if expectation != "ordered":
        window = window + f_right * g_left
    if expectation == "exact" and segment_size == 1:
        window = window - phi_left * phi_right
    elif expectation == "exact":
        # F and G share exactly the segment of the key, so F + G − Σφ is its mass.
        mass_left = f_left + g_left - phi_left.sum(-1, keepdim=True)
        mass_right = f_right + g_right - phi_right.sum(-1, keepdim=True)
        window = window - mass_left * mass_right
    return window


def show_sinks(
    window: Float[Tensor, "*lead k"],
    sinks: int,
    origin: Int[Tensor, " b"] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*lead k"]:
    """Set M to 1 at those of the first `sinks` keys from `origin` on that `mask` shows.

    >>> show_sinks(torch.zeros(4), 2)
    tensor([1., 1., 0., 0.])
    """
    if sinks == 0:
        return window
    first = None if origin is None else origin.view(-1, *[1] * (window.dim() - 2))
    shown = sink_mask(window.shape[-1], sinks, first).to(window.device)
    return window.masked_fill(shown if mask is None else shown & mask, 1.0)


def share_phrase(gates: Float[Tensor, "*lead gaps"]) -> Float[Tensor, "*lead k k"]:
    """Return the probability that two keys share a phrase: T_ij = Π (1 − g_m) over the gaps m between them.

    `gates` has, for each gap between neighbouring keys, the probability that a phrase ends there,
    independently of the others; there is one gap less than there are keys.

    >>> share_phrase(torch.tensor([0.0, 0.25]))
    tensor([[1.0000, 1.0000, 0.7500],
            [1.0000, 1.0000, 0.7500],
            [0.7500, 0.7500, 1.0000]])
    """
    check_floats("gates", gates)
    num_keys = gates.shape[-1] + 1
    # row i of the upper triangle is the product of the gaps from key i on
    stay = F.pad(1 - gates, (1, 0), value=1.0)[..., None, :]
    later = torch.ones(num_keys, num_keys, dtype=torch.bool, device=gates.device).triu(1)
    upper = torch.where(later, stay, 1.0).cumprod(-1).triu()
    return upper + upper.triu(1).mT


def phrase_bounds(
    ends: Bool[Tensor, "*lead gaps"],
) -> tuple[Int[Tensor, "*lead k"], Int[Tensor, "*lead k"]]:
    """Return the first and the last key of each key's phrase; `ends` is True in gaps where a phrase ends.

    >>> [bound.tolist() for bound in phrase_bounds(torch.tensor([False, True, False]))]
    [[0, 0, 2, 2], [1, 1, 3, 3]]
    """
    key = torch.arange(ends.shape[-1] + 1, device=ends.device)
    first = torch.where(F.pad(ends, (1, 0), value=True), key, 0).cummax(-1).values
    last = torch.where(F.pad(ends, (0, 1), value=True), key, key[-1])
    return first, last.flip(-1).cummin(-1).values.flip(-1)


def phrase_window(
    phi_left: Float[Tensor, "*lead q k"],
    phi_right: Float[Tensor, "*lead q k"],
    gates: Float[Tensor, "*phrases gaps"],
    *,
    expectation: Expectation = "paper",
) -> Float[Tensor, "*lead q k"]:
    """Compose two boundary distributions into a window of whole phrases, whose ends are known by `gates`.

    With T of `share_phrase`, F̃_j = Σ_{i≤j} φ_i + Σ_{i>j} φ_i T_ij is the mass at or before the end of j's
    phrase, G̃_j the mass at or after its start, and M = F̃_l ⊙ G̃_r + F̃_r ⊙ G̃_l. The gates on one side of j
    are independent of those on the other, so the products are expectations over all segmentations. "exact"
    takes off once what is counted twice: that both boundaries are in the phrase of the key.

    Gates of 1 are `soft_window` by token; gates of 1 every n keys and 0 between, that by segments of n.

    >>> one_hot = torch.eye(5)
    >>> phrase_window(one_hot[1:2], one_hot[3:4], torch.tensor([0.0, 1.0, 1.0, 0.0]))
    tensor([[1., 1., 1., 1., 1.]])
    """
    check_floats("phi_left", phi_left)
    check_floats("phi_right", phi_right)
    check_choice("expectation", expectation, EXPECTATIONS)
    check_gates(gates, phi_left.shape[-1])
    if not phi_left.shape[-1]:
        return phi_left * phi_right
    together = share_phrase(gates.to(phi_left.dtype))
    after, before = together.tril(-1), together.triu(1)
    with _no_autocast(phi_left):
        return _phrase_window(phi_left, phi_right, before, after, expectation)


def _phrase_window(
    phi_left: Tensor, phi_right: Tensor, before: Tensor, after: Tensor, expectation: Expectation
) -> Tensor:
    """Compose a window from the probabilities that a key shares its phrase with each before and after it."""
    # A: mass before the key, in its phrase; B: mass after it
    a_left, b_left = phi_left @ before, phi_left @ after
    a_right, b_right = phi_right @ before, phi_right @ after
    f_left, g_left = rightward(phi_left) + b_left, leftward(phi_left) + a_left
    f_right, g_right = rightward(phi_right) + b_right, leftward(phi_right) + a_right
    if expectation == "ordered":
        return f_left * g_right
    window = f_left * g_right + f_right * g_left
    if expectation == "paper":
        return window
    both = phi_left * phi_right
    # both on one side of the key, by where the nearer of them is
    twice_before = (both + phi_left * a_right + a_left * phi_right) @ before
    twice_after = (both + phi_left * b_right + b_left * phi_right) @ after
    beside = phi_left * (a_right + b_right) + phi_right * (a_left + b_left)
    return window - (both + beside + a_left * b_right + b_left * a_right + twice_before + twice_after)


def masked_softmax(
    logits: Float[Tensor, "*lead k"], mask: Bool[Tensor, "..."] | None
) -> Float[Tensor, "*lead k"]:
    """Softmax over the keys that `mask` allows; a row that allows none is zero, with zero gradients."""
    check_floats("logits", logits)
    if mask is None:
        return logits.softmax(-1)
    check_mask("mask", mask)
    # The lowest finite value rather than -inf: a row of them is uniform, not NaN, before it is zeroed.
    visible = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    return visible.softmax(-1).masked_fill(~mask, 0.0)


def scores(
    q: Float[Tensor, "*lead q e"],
    k: Float[Tensor, "*lead k e"],
    scale: float | None = None,
    *,
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*lead q k"]:
    """Score each query against each key, scale · q kᵀ, in fp32 at least (Eq. 1, 12); None is 1/√e.

    With a mask, keys that no query sees, and queries that see none, score 0, whatever they hold: a NaN
    there would reach the gradients.
    """
    check_floats("q", q)
    check_floats("k", k)
    check_scale(scale)
    if mask is not None:
        check_mask("mask", mask)
        q, k = q.masked_fill(~mask.any(-1)[..., None], 0.0), zero_unseen_keys(k, mask)
    with _no_autocast(q):
        return (
            at_least_fp32(q) @ at_least_fp32(k).mT * (default_scale(q.shape[-1]) if scale is None else scale)
        )


def default_scale(width: int) -> float:
    """Return 1/√e; heads of no width score 0, whatever the scale."""
    return 1 / math.sqrt(max(width, 1))


def boundary(
    q: Float[Tensor, "*lead q e"],
    k: Float[Tensor, "*lead k e"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*lead q k"]:
    """Point at a boundary: φ = softmax(scale · q kᵀ) over the visible keys (Eq. 7, 8).

    The mask is needed here too: the sums of φ would carry what it hides to other keys.
    """
    return masked_softmax(scores(q, k, scale, mask=mask), mask)


def multiplicative_weights(
    score: Float[Tensor, "*lead q k"],
    window: Float[Tensor, "*lead q k"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    seed: Int[Tensor, ""] | None = None,
) -> Float[Tensor, "*lead q k"]:
    """Confine attention to the window: A = softmax(s) ⊙ M (Eq. 13), which need not sum to one."""
    check_floats("window", window)
    return dropout(masked_softmax(score, mask), dropout_p, seed) * window


def normalized_weights(
    score: Float[Tensor, "*lead q k"],
    window: Float[Tensor, "*lead q k"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    seed: Int[Tensor, ""] | None = None,
) -> Float[Tensor, "*lead q k"]:
    """Confine attention to the window with weights that sum to one: A = softmax(s + log M).

    A key with M = 0 is not seen: its weight and its gradients are 0. So is a row without any other key.

    >>> window = torch.tensor([[0.0, 0.5, 1.0]])
    >>> normalized_weights(torch.tensor([[99.0, 0.0, 0.0]]), window)
    tensor([[0.0000, 0.3333, 0.6667]])
    """
    check_floats("score", score)
    check_floats("window", window)
    # a subnormal M counts as 0: dividing by it would overflow
    seen = ~(window < torch.finfo(window.dtype).tiny)
    seen = seen if mask is None else seen & mask
    logits = score.detach() + window.detach().masked_fill(~seen, 1.0).log()
    # The log of the sum, up to rounding. A key outside the window may score higher, so it is not the score's.
    shift = logits.masked_fill(~seen, torch.finfo(score.dtype).min).logsumexp(-1, keepdim=True)
    # M stays a factor, so that its gradient needs no division by a small M.
    weights = (score - shift).masked_fill(~seen, float("-inf")).exp() * window
    total = weights.sum(-1, keepdim=True)
    return dropout(weights / total.masked_fill(total == 0, 1.0), dropout_p, seed)


def additive_weights(
    score: Float[Tensor, "*lead q k"],
    local_score: Float[Tensor, "*lead q k"],
    window: Float[Tensor, "*lead q k"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    seed: Int[Tensor, ""] | None = None,
) -> Float[Tensor, "*lead q k"]:
    """Add a local score within the window: A = softmax(s + o ⊙ M) (Eq. 14-17)."""
    check_floats("score", score)
    check_floats("local_score", local_score)
    check_floats("window", window)
    return dropout(masked_softmax(score + local_score * window, mask), dropout_p, seed)


def attend(
    weights: Float[Tensor, "*lead q k"],
    v: Float[Tensor, "*lead k e"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*lead q e"]:
    """Take the weighted sum of the values, O = A V (Eq. 2), in fp32 at least; the result has the type of `v`.

    With a mask, values that no query sees count as 0, so that NaN in padding stays there.
    """
    check_floats("weights", weights)
    check_floats("v", v)
    v = zero_unseen_keys(v, mask)
    with _no_autocast(v):
        return (weights @ v.to(weights.dtype)).to(v.dtype)


def interval_attention(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b g k e"],
    v: Float[Tensor, "b g k w"],
    inside: Bool[Tensor, "..."] | None = None,
    *,
    key_table: Float[Tensor, "rows e"] | None = None,
    value_table: Float[Tensor, "rows w"] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: Int[Tensor, ""] | None = None,
) -> Float[Tensor, "b h q w"]:
    """Attend to the keys that are inside alone: softmax(scale · q kᵀ) v over them, zeros without any.

    Each head of `k` and `v` serves h/g neighbouring heads of `q`. With tables, keys are k_j + a_{j−i} and
    values v_j + b_{j−i} for query i (Shaw et al. 2018).
    """
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    score = scores(q, k, scale, mask=inside)
    if key_table is not None:
        seeing = q if inside is None else q.masked_fill(~inside.any(-1)[..., None], 0.0)
        score = score + distance_scores(seeing, key_table, k.shape[2], scale)
    weights = masked_softmax(score if bias is None else score + bias, inside)
    weights = dropout(weights, dropout_p, seed)
    if value_table is None:
        return attend(weights, v, mask=inside)
    with _no_autocast(v):
        by_token = weights @ zero_unseen_keys(v, inside).to(weights.dtype)
        return (by_token + distance_values(weights, value_table)).to(v.dtype)


def relative_positions(num_queries: int, num_keys: int, device: torch.device) -> Int[Tensor, "q k"]:
    """Return how far each key lies to the right of each query, where the queries are the last of the keys.

    >>> relative_positions(2, 3, torch.device("cpu"))
    tensor([[-1,  0,  1],
            [-2, -1,  0]])
    """
    key = torch.arange(num_keys, device=device)
    return key - key[num_keys - num_queries :, None]


def table_rows(num_queries: int, num_keys: int, size: int, device: torch.device) -> Int[Tensor, "q k"]:
    """Return the row of each pair's distance, clipped at `size`, in a table from −size to size.

    >>> table_rows(2, 3, 1, torch.device("cpu"))
    tensor([[0, 1, 2],
            [0, 0, 1]])
    """
    return relative_positions(num_queries, num_keys, device).clamp(-size, size) + size


def distance_scores(
    q: Float[Tensor, "b h q e"], table: Float[Tensor, "rows e"], num_keys: int, scale: float | None = None
) -> Float[Tensor, "b h q k"]:
    """Return scale · q_i·a_{j−i}, where `table` holds a for each clipped distance (Shaw et al. 2018).

    Queries are compared with the rows of the table, so nothing of size queries × keys × width exists.
    """
    by_row = scores(q, table.expand(*q.shape[:2], -1, -1), scale)
    rows = table_rows(q.shape[2], num_keys, table.shape[0] // 2, q.device)
    return by_row.gather(-1, rows.expand(*q.shape[:2], -1, -1))


def distance_values(
    weights: Float[Tensor, "b h q k"], table: Float[Tensor, "rows w"]
) -> Float[Tensor, "b h q w"]:
    """Return Σ_j A_ij b_{j−i}, where `table` holds b for each clipped distance (Shaw et al. 2018)."""
    # the weight that a query gives to each distance, which is what the table's rows get
    by_distance = weights.new_zeros(*weights.shape[:3], table.shape[0])
    rows = table_rows(weights.shape[2], weights.shape[3], table.shape[0] // 2, weights.device)
    by_distance = by_distance.scatter_add(-1, rows.expand_as(weights), weights)
    with _no_autocast(weights):
        return by_distance @ table.to(weights.dtype)


def repeat_heads(x: Float[Tensor, "b g k e"], num_heads: int) -> Float[Tensor, "b h k e"]:
    """Repeat each head of grouped keys or values for the query heads that share it."""
    return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], 1)


def zero_unseen_keys(
    x: Float[Tensor, "*lead k e"], mask: Bool[Tensor, "..."] | None
) -> Float[Tensor, "*lead k e"]:
    """Zero the rows of keys or values that the mask hides from every query."""
    if mask is None:
        return x
    check_mask("mask", mask)
    seen = mask.any(-2) if mask.dim() > 1 else mask
    return x.masked_fill(~seen[..., None], 0.0)


def at_least_fp32(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Widen half precision to fp32, in which sums and softmax are taken; fp32 and fp64 stay."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def draw_seed(x: Float[Tensor, "..."]) -> Int[Tensor, ""]:
    """Draw the seed of one call's dropout from torch's generator, so that torch.manual_seed repeats it."""
    return torch.randint(2**63 - 1, (), device=x.device)


def kept_weights(
    shape: tuple[int, ...], dropout_p: float, seed: Int[Tensor, ""]
) -> Bool[Tensor, "*lead q k"]:
    """Return which weights of such a shape dropout keeps: each by the seed, its row and its key alone.

    The kernels keep the same ones, so that a result does not depend on the implementation.
    """
    check_positions("seed", seed)
    *rows, num_keys = shape
    row = torch.arange(math.prod(rows), device=seed.device).view(*rows, 1)
    bits = _mix64(seed ^ _mix64(row))
    low, high = bits.to(torch.int32), (bits >> 32).to(torch.int32)
    key = torch.arange(num_keys, dtype=torch.int32, device=seed.device)
    random = _mix32(_mix32(low + key) ^ high)
    # torch.sym_int takes a traced probability too; the sign is turned to compare as unsigned numbers do
    threshold: int = min(torch.sym_int(dropout_p * 2**32), 2**32 - 1)
    return (random ^ -(2**31)) >= threshold - 2**31


def dropout(
    x: Float[Tensor, "*lead k"], dropout_p: float, seed: Int[Tensor, ""] | None = None
) -> Float[Tensor, "*lead k"]:
    """Zero a share of the elements and divide the others by what is left of 1; without a seed, draw one.

    >>> sorted(set(dropout(torch.ones(4, 8), 0.5).flatten().tolist()))
    [0.0, 2.0]
    """
    check_dropout("dropout_p", dropout_p)
    if not dropout_p > 0:
        return x
    kept = kept_weights(x.shape, dropout_p, draw_seed(x) if seed is None else seed)
    return x * kept * (1 / (1 - dropout_p) if dropout_p < 1 else 0.0)


def join_residual(
    x: Float[Tensor, "*lead d"],
    branch: Float[Tensor, "*lead d"],
    weight: Float[Tensor, " d"],
    bias: Float[Tensor, " d"],
    *,
    eps: float = 1e-5,
    dropout_p: float = 0.0,
    seed: Int[Tensor, ""] | None = None,
) -> Float[Tensor, "*lead d"]:
    """Join a branch with what it starts from, and normalise: norm(x + dropout(branch))."""
    return F.layer_norm(x + dropout(branch, dropout_p, seed), weight.shape, weight, bias, eps)


# Torch has no unsigned arithmetic: products wrap, factors are the usual ones as signed numbers, and what an
# arithmetic shift copies from the sign is masked.
def _mix64(x: Tensor) -> Tensor:
    """Mix 64 bits as splitmix64 does."""
    x = x - 0x61C8864680B583EB
    x = (x ^ (x >> 30 & 2**34 - 1)) * -0x40A7B892E31B1A47
    x = (x ^ (x >> 27 & 2**37 - 1)) * -0x6B2FB644ECCEEE15
    return x ^ (x >> 31 & 2**33 - 1)


def _mix32(x: Tensor) -> Tensor:
    """Mix 32 bits as Wellons' lowbias32 does."""
    x = (x ^ (x >> 16 & 2**16 - 1)) * 0x7FEB352D
    x = (x ^ (x >> 15 & 2**17 - 1)) * -0x7B935975
    return x ^ (x >> 16 & 2**16 - 1)


def _no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Switch autocast off, on devices that have it; meta does not."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
