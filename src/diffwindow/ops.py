"""Window attention as an operation: validate, then dispatch on `impl=`.

The window itself is never an argument. It travels as its boundaries' projected queries and keys, so that a
kernel can build it block by block and nothing of size queries × keys need exist.
"""

from typing import Literal, NamedTuple, Unpack, cast, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from diffwindow import functional
from diffwindow.checks import (
    DISCRETE_RULES,
    Boundaries,
    CallOptions,
    DiscreteRule,
    Options,
    check_interval,
    check_options,
    check_tables,
    check_tensors,
    read_options,
    show_options,
    window_threshold,
)
from diffwindow.kernels import flex, interval, operator, single_query, triton
from diffwindow.messages import check_choice
from diffwindow.soft_window import Maps, SoftWindow, Span, apply_rule, compose_window, point_window

__all__ = [
    "IMPLS",
    "SUPPORT",
    "Boundaries",
    "Impl",
    "Maps",
    "Options",
    "SoftWindow",
    "Span",
    "choose_impl",
    "compose_window",
    "interval_attention",
    "support_report",
    "visible_mask",
    "window_attention",
    "window_maps",
]

Impl = Literal["auto", "reference", "cpu", "triton"]
IMPLS: tuple[str, ...] = get_args(Impl)

# What a call may ask for that some kernels lack, as errors name it. All have the other options, and the
# reference has everything.
Feature = Literal[
    "gradients of attn_bias",
    "heads of more than 512 bytes",
    "transforms of torch.func",
    "window rules",
    "ordered boundaries",
    "phrases",
    "gradients of an interval's attn_bias",
    "dropout of intervals",
    "tables of distances",
]


class Support(NamedTuple):
    """What a backend of `kernels` can compute."""

    devices: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    lacks: tuple[Feature, ...]
    # Where it runs too, but only if it is asked for by name.
    on_request: tuple[str, ...] = ()


# In the order in which "auto" tries them.
SUPPORT: dict[str, Support] = {
    "cpu": Support(
        devices=("cpu",),
        dtypes=(torch.float32, torch.bfloat16),
        lacks=(
            "transforms of torch.func",
            "window rules",
            "ordered boundaries",
            "phrases",
            "gradients of an interval's attn_bias",
        ),
    ),
    "triton": Support(
        devices=("cuda",),
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
        lacks=get_args(Feature),
        on_request=("cpu",) if triton.interpreted() else (),
    ),
}


def support_report() -> dict[str, str]:
    """Describe for each backend where it runs, on what types, and which features it lacks."""
    rows = {}
    for impl, support in SUPPORT.items():
        dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in support.dtypes)
        rows[f'impl="{impl}"'] = (
            f"on {', '.join(support.devices)}: {dtypes}; without {', '.join(support.lacks)}"
        )
    return rows


# The queries and keys of an additive window's local score.
Local = tuple[Float[Tensor, "b h q local"], Float[Tensor, "b h k local"]]


@show_options(CallOptions)
def window_attention(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b h k e"],
    v: Float[Tensor, "b h k w"],
    boundaries: Boundaries,
    local: Local | None = None,
    *,
    impl: Impl = "auto",
    **options: Unpack[CallOptions],
) -> Float[Tensor, "b h q w"]:
    """Attend through a learned window M, which is multiplicative or, with `local`, additive.

    Multiplicative is (softmax(scale · q kᵀ) ⊙ M) v, additive softmax(scale · (q kᵀ + q_local k_localᵀ ⊙ M))
    v. The output is `[b h q w]`; a query that sees no key gives zeros.

    Args:
        q: The queries of the scores, `[b h q e]`: batch, heads, queries, head width.
        k: Their keys, `[b h k e]`.
        v: The values, `[b h k w]`; their width may differ from that of the keys.
        boundaries: The queries `[b h q n]` and keys `[b h k n]` of the pointers to the window's left and
            right boundary; each pair has its own width n.
        local: The queries `[b h q n]` and keys `[b h k n]` of the local score, for an additive window.
        attn_mask: Booleans that broadcast to `[b h q k]`, True where a query may look.
        attn_bias: Floats that broadcast to `[b h q k]` and are added to the scores, not to those of the
            pointers; -inf hides a key from both.
        is_causal: Let query i look at keys 0…i only; an `attn_mask` applies too.
        segment_size: Let this many keys share their value of M; 1 is a window by token.
        segment_origin: Integers `[b]`, the key where each sequence starts, from which segments and sinks
            count; 0 by default.
        expectation: "paper" counts two boundaries on one key twice (M ≤ 2), "exact" once (M ≤ 1);
            "ordered" is Eq. 6 alone, without windows whose left boundary is behind the right.
        normalize: Divide the weights of a multiplicative window by their sum, which makes them
            softmax(s + log M). M below 8 roundings (1e-6 in fp32) then counts as 0.
        sinks: Set M to 1 at this many first keys of each sequence, whatever the pointers say, for a
            multiplicative window; they are visible unless a mask hides them. They count in keys, also within
            a segment, and neither `expectation` nor `window_tolerance` changes them.
        window_tolerance: Set M to 0 where it is below this, so that kernels can skip keys. It changes a
            multiplicative output by at most the tolerance times the largest |v|, an additive score by at most
            the tolerance times the local score; a normalised output has no such bound, for where all large
            scores lie outside the window, small M decide.
        window_rule: For inference: "soft" is the window as it was trained; "argmax", "half" and "joint" make
            it discrete, as `SoftWindow.discrete` does; "none" sets M = 1.
        gates: For windows of whole phrases, in place of segments: the probability that a phrase ends in each
            gap between neighbouring keys, `[b k−1]` or `[b h k−1]`. Gates of 1 are a window by token.
        scale: The factor of all scores; 1/√width by default.
        dropout_p: The share of weights to drop; in a multiplicative window that is not normalised, before
            the product with M.
        impl: "cpu" (C++ kernels), "triton", "reference" (plain PyTorch) or "auto", which chooses.

    >>> q = k = v = torch.ones(1, 1, 3, 2)
    >>> boundaries = Boundaries(q_left=q, k_left=k, q_right=q, k_right=k)
    >>> window_attention(q, k, v, boundaries, is_causal=True)[0, 0, :, 0]
    tensor([2.0000, 1.0000, 0.7407])
    >>> window_attention(q, k, v, boundaries, local=(q, k), is_causal=True)[0, 0, :, 0].round(decimals=4)
    tensor([1., 1., 1.])
    """
    return attend(q, k, v, boundaries, local, read_options(options, window_attention), impl)


def attend(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b h k e"],
    v: Float[Tensor, "b h k w"],
    boundaries: Boundaries,
    local: Local | None,
    options: Options,
    impl: Impl,
) -> Float[Tensor, "b h q w"]:
    """Compute `window_attention` with options that were read before."""
    if impl in ("auto", "cpu") and options.window_rule == "soft":
        out = single_query.attend(q, k, v, boundaries, local, options)
        if out is not None:
            return out
    check_tensors(q, k, v, boundaries, local)
    check_options(q, k, options, additive=local is not None)
    if options.normalize and options.window_rule in DISCRETE_RULES:
        return _attend_within(q, k, v, boundaries, options, impl)
    widest = max(x.shape[-1] * x.element_size() for x in (q, v, *boundaries, *(local or ())))
    backend = choose_impl(impl, q, _needs(widest, options))
    # One seed for all: gradient mode may change the implementation between a forward and its recomputation.
    seed = functional.draw_seed(q) if options.dropout_p > 0 else None
    if backend != "reference":
        return operator.window_attention(q, k, v, boundaries, local, options, seed, backend)
    return _attend_plainly(q, k, v, boundaries, local, options, seed)


@show_options(CallOptions)
def window_maps(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b h k e"],
    boundaries: Boundaries,
    local: Local | None = None,
    **options: Unpack[CallOptions],
) -> Maps:
    """Compute the weights and the window of `window_attention`, whose arguments these are, in plain PyTorch.

    All maps are `[b h q k]`; the weights are after dropout.

    >>> q = k = torch.ones(1, 1, 3, 2)
    >>> window_maps(q, k, Boundaries(q, k, q, k), is_causal=True).weights[0, 0]
    tensor([[2.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.2222, 0.2963, 0.2222]])
    """
    chosen = read_options(options, window_maps)
    # there are no values here; the keys stand for them
    check_tensors(q, k, k, boundaries, local)
    check_options(q, k, chosen, additive=local is not None)
    return _maps(q, k, boundaries, local, chosen)


def interval_attention(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b g k e"],
    v: Float[Tensor, "b g k w"],
    start: Int[Tensor, "..."] | None = None,
    end: Int[Tensor, "..."] | None = None,
    *,
    sinks: int = 0,
    origin: Int[Tensor, " b"] | None = None,
    key_table: Float[Tensor, "rows e"] | None = None,
    value_table: Float[Tensor, "rows w"] | None = None,
    attn_mask: Bool[Tensor, "..."] | None = None,
    attn_bias: Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    impl: Impl = "auto",
) -> Float[Tensor, "b h q w"]:
    """Attend within a hard window of each query and head: softmax(scale · q kᵀ) v over the keys inside.

    Inside are the keys from `start` to `end` and the first `sinks` keys. It is also a multiplicative window
    with normalize=True whose M is 0 or 1. A query that sees no key gives zeros, and zero gradients.

    Args:
        q: The queries, `[b h q e]`: batch, heads, queries, head width.
        k: The keys, `[b g k e]`; h is a multiple of g, and h/g neighbouring heads of `q` share a head of `k`.
        v: The values, `[b g k w]`; their width may differ from that of the keys.
        start: The first key inside, integers that broadcast to `[b h q]`; below 0 is 0, and so is None.
        end: The last key inside, likewise; past the last key, and None, is the last key; before `start` is no
            key.
        sinks: How many first keys are inside of every window, whatever its `start`.
        origin: Integers `[b]`, the key from which sinks count: the first real key of a left-padded row; 0 by
            default.
        key_table: Relative positions (Shaw et al. 2018), `[2 size + 1, e]`: row size + d is added to the keys
            at distance d of a query, which is clipped at `size`. The queries are the last of the keys.
        value_table: The same for the values, `[2 size + 1, w]`.
        attn_mask: Booleans that broadcast to `[b h q k]`, True where a query may look.
        attn_bias: Floats that broadcast to `[b h q k]` and are added to the scores; -inf hides a key.
        is_causal: Let query i look at keys 0…i only, sinks among them, however many keys there are, as
            `window_attention` does; an `attn_mask` applies too.
        scale: The factor of the scores; 1/√width by default.
        dropout_p: The share of weights to drop.
        impl: "cpu" (C++ kernels), "triton" (torch's `flex_attention`, compiled for a GPU), "reference" (plain
            PyTorch) or "auto", which chooses.

    >>> q, k = torch.ones(1, 2, 1, 4), torch.ones(1, 1, 6, 4)
    >>> v = torch.arange(6.0).view(1, 1, 6, 1)
    >>> interval_attention(q, k, v, torch.tensor([[3], [5]]), torch.tensor([[4], [9]]), sinks=1).flatten()
    tensor([2.3333, 2.5000])
    """
    call = interval.Call(
        q, k, v, key_table, value_table, start, end, origin, attn_mask, attn_bias, None, is_causal, sinks,
        scale, dropout_p,
    )  # fmt: skip
    if impl in ("auto", "cpu"):
        out = interval.attend_one(call)
        if out is not None:
            return out
    options = Options(attn_mask, attn_bias, is_causal, scale=scale, dropout_p=dropout_p)
    check_interval(q, k, v, start, end, sinks, origin)
    check_tables(q, k, v, key_table, value_table)
    check_options(q, k, options, additive=False)
    widest = max(x.shape[-1] * x.element_size() for x in (q, v))
    needs = _needs(widest, options, interval=True)
    if key_table is not None or value_table is not None:
        needs = (*needs, "tables of distances")
    attend = _INTERVAL_BACKENDS[choose_impl(impl, q, needs)]
    if dropout_p > 0:
        call = call._replace(seed=functional.draw_seed(q))
    return attend(call)


def visible_mask(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b g k e"],
    *,
    attn_mask: Bool[Tensor, "..."] | None = None,
    attn_bias: Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
) -> Bool[Tensor, "..."] | None:
    """Join a mask, the keys that a bias hides and the causal mask (query i sees keys 0…i).

    None means that everything is visible.
    """
    masks = [] if attn_mask is None else [attn_mask]
    if attn_bias is not None:
        masks.append(attn_bias != float("-inf"))
    if is_causal:
        masks.append(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril())
    if not masks:
        return None
    joined = masks[0]
    for mask in masks[1:]:
        joined = joined & mask
    return joined


def choose_impl(impl: str, q: Tensor, needs: tuple[Feature, ...] = ()) -> str:
    """Resolve "auto" for such tensors and needs; raise if an implementation asked for by name cannot run."""
    check_choice("impl", impl, IMPLS)
    if impl == "reference":
        return "reference"
    if impl != "auto":
        if (reason := _why_not(impl, q.dtype, q.device.type, needs)) is not None:
            raise ValueError(f'impl="{impl}" is not available: {reason}; use impl="auto"')
        return impl
    for name, support in SUPPORT.items():
        if q.device.type in support.devices and _why_not(name, q.dtype, q.device.type, needs) is None:
            return name
    return "reference"


def _why_not(impl: str, dtype: torch.dtype, device: str, needs: tuple[Feature, ...]) -> str | None:
    """Say why an implementation cannot serve such a call, or None if it can."""
    support = SUPPORT[impl]
    devices = support.devices + support.on_request
    if device not in devices:
        return f"the tensors are on {device}, not on {' or '.join(devices)}"
    if dtype not in support.dtypes:
        return f"{dtype} is not {' or '.join(str(each) for each in support.dtypes)}"
    if missing := [feature for feature in needs if feature in support.lacks]:
        return f"its kernels do not support {missing[0]}"
    return operator.backend(impl).why_not()


def _is_transformed() -> bool:
    """Tell whether a transform of torch.func is running."""
    return peek_interpreter_stack() is not None


# What torch.compiler.assume_constant_result does, without its import of torch._dynamo, which takes as long as
# torch itself. Compiled code is guarded by the state of the transforms; forward mode is read outside of this,
# so that it is guarded too.
for _constant in (_why_not, _is_transformed):
    _constant._dynamo_marked_constant = True  # type: ignore[union-attr]


def _needs(widest: int, options: Options, *, interval: bool = False) -> tuple[Feature, ...]:
    """List what a call asks for that some kernels lack; its widest head has `widest` bytes."""
    bias = options.attn_bias
    needs_bias = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    asked: dict[Feature, bool] = {
        "gradients of attn_bias": needs_bias and not interval,
        "gradients of an interval's attn_bias": needs_bias and interval,
        "dropout of intervals": options.dropout_p > 0 and interval,
        "heads of more than 512 bytes": widest > 512,
        "transforms of torch.func": _is_transformed() or forward_ad._current_level >= 0,
        "window rules": options.window_rule != "soft",
        "ordered boundaries": options.expectation == "ordered",
        "phrases": options.gates is not None,
    }
    return tuple(feature for feature, wanted in asked.items() if wanted)


def _attend_within(
    q: Tensor, k: Tensor, v: Tensor, boundaries: Boundaries, options: Options, impl: Impl
) -> Tensor:
    """Attend within the discrete windows of a rule, which are normalised."""
    window = _point(boundaries, _visible(q, k, options), options)
    start, end = window.discrete(cast(DiscreteRule, options.window_rule))
    return interval_attention(
        q,
        k,
        v,
        start,
        end,
        sinks=options.sinks,
        origin=options.segment_origin,
        attn_mask=options.attn_mask,
        attn_bias=options.attn_bias,
        is_causal=options.is_causal,
        scale=options.scale,
        dropout_p=options.dropout_p,
        impl=impl,
    )


def _attend_plainly(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    boundaries: Boundaries,
    local: Local | None,
    options: Options,
    seed: Tensor | None,
) -> Tensor:
    """Compute the output in plain PyTorch."""
    maps = _maps(q, k, boundaries, local, options, seed)
    return functional.attend(maps.weights, v, mask=_visible(q, k, options))


def _visible(q: Tensor, k: Tensor, options: Options) -> Tensor | None:
    return visible_mask(
        q, k, attn_mask=options.attn_mask, attn_bias=options.attn_bias, is_causal=options.is_causal
    )


def _maps(
    q: Tensor,
    k: Tensor,
    boundaries: Boundaries,
    local: Local | None,
    options: Options,
    seed: Tensor | None = None,
) -> Maps:
    """Compute the equations in plain PyTorch; dropout without a seed draws one."""
    mask = _visible(q, k, options)
    scale, dropout_p = options.scale, options.dropout_p
    window = apply_rule(_point(boundaries, mask, options), options.window_rule)
    score = functional.scores(q, k, scale, mask=mask)
    if options.attn_bias is not None:
        score = score + options.attn_bias
    if local is None:
        weigh = functional.normalized_weights if options.normalize else functional.multiplicative_weights
        weights = weigh(score, window.values, mask=mask, dropout_p=dropout_p, seed=seed)
    else:
        local_score = functional.scores(*local, scale, mask=mask)
        weights = functional.additive_weights(
            score, local_score, window.values, mask=mask, dropout_p=dropout_p, seed=seed
        )
    return Maps(weights, window)


def _point(boundaries: Boundaries, mask: Tensor | None, options: Options) -> SoftWindow:
    """Return the soft window of a call."""
    dtype = functional.at_least_fp32(boundaries.q_left).dtype
    gates = options.gates
    return point_window(
        boundaries,
        mask=mask,
        scale=options.scale,
        segment_size=options.segment_size,
        segment_origin=options.segment_origin,
        expectation=options.expectation,
        window_tolerance=window_threshold(options.window_tolerance, dtype, normalize=options.normalize),
        sinks=options.sinks,
        # all heads of a sequence share gates without heads
        gates=gates[:, None] if gates is not None and gates.dim() == 2 else gates,
    )


def _reference(call: operator.Call) -> Tensor:
    """Compute the operator of the kernels in plain PyTorch."""
    boundaries = Boundaries(call.q_left, call.k_left, call.q_right, call.k_right)
    local = None if call.q_local is None or call.k_local is None else (call.q_local, call.k_local)
    shared = {name: getattr(call, name) for name in Options._fields if name in call._fields}
    options = Options(**shared, expectation="exact" if call.exact else "paper")
    return _attend_plainly(call.q, call.k, call.v, boundaries, local, options, call.seed)


operator.use_reference(_reference)


def _attend_interval_plainly(call: interval.Call) -> Tensor:
    """Compute interval attention in plain PyTorch."""
    q, k, start, end = call.q, call.k, call.start, call.end
    visible = visible_mask(q, k, attn_mask=call.attn_mask, attn_bias=call.attn_bias, is_causal=call.is_causal)
    if start is not None or end is not None:
        start = k.new_zeros((), dtype=torch.int64) if start is None else start
        end = k.new_full((), k.shape[2], dtype=torch.int64) if end is None else end
        inside = functional.interval_mask(start, end, k.shape[2], sinks=call.sinks, origin=call.origin)
        visible = inside if visible is None else inside & visible
    return functional.interval_attention(
        q, k, call.v, visible, key_table=call.key_table, value_table=call.value_table, bias=call.attn_bias,
        scale=call.scale, dropout_p=call.dropout_p, seed=call.seed,
    )  # fmt: skip


interval.use_reference(_attend_interval_plainly)
_INTERVAL_BACKENDS = {"cpu": interval.attend, "triton": flex.attend, "reference": _attend_interval_plainly}
