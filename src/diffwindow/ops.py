"""Window attention as two operations: validate, then dispatch on `impl=`.

The window itself is never an argument. It travels as its boundaries' projected queries and keys, so that a
kernel can build it block by block and nothing of size queries × keys need exist.
"""

import difflib
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffwindow import functional
from diffwindow.functional import EXPECTATIONS, Expectation
from diffwindow.kernels import cpu

Impl = Literal["auto", "reference", "cpu", "triton"]
IMPLS: tuple[str, ...] = get_args(Impl)


class Boundaries(NamedTuple):
    """The projected queries and keys of a window's two pointers; each pair has its own head width."""

    q_left: Float[Tensor, "b h q left"]
    k_left: Float[Tensor, "b h k left"]
    q_right: Float[Tensor, "b h q right"]
    k_right: Float[Tensor, "b h k right"]


class WindowMaps(NamedTuple):
    """What a window attention does with each pair of query and key, as `[b h q k]` tensors."""

    weights: Float[Tensor, "b h q k"]
    window: Float[Tensor, "b h q k"]
    phi_left: Float[Tensor, "b h q k"]
    phi_right: Float[Tensor, "b h q k"]


def multiplicative_window_attention(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b h k e"],
    v: Float[Tensor, "b h k w"],
    boundaries: Boundaries,
    *,
    attn_mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    segment_size: int = 1,
    segment_origin: Int[Tensor, " b"] | None = None,
    expectation: Expectation = "paper",
    scale: float | None = None,
    dropout_p: float = 0.0,
    impl: Impl = "auto",
) -> Float[Tensor, "b h q w"]:
    """Attend within a learned window: (softmax(scale · q kᵀ) ⊙ M) v.

    `attn_mask` broadcasts to `[b h q k]` and is True where a query may look; with `is_causal` both apply.
    `segment_origin` gives, for each sequence of the batch, the key where its segment grid starts.
    `dropout_p` acts between the softmax and the product with M. A query that sees no key gives zeros.

    >>> q = k = v = torch.ones(1, 1, 3, 2)
    >>> multiplicative_window_attention(q, k, v, Boundaries(q, k, q, k), is_causal=True)[0, 0, :, 0]
    tensor([2.0000, 1.0000, 0.7407])
    """
    _check_tensors(q, k, v, boundaries, local=())
    return _window_attention(
        q, k, v, boundaries, None, attn_mask=attn_mask, is_causal=is_causal, segment_size=segment_size,
        segment_origin=segment_origin, expectation=expectation, scale=scale, dropout_p=dropout_p, impl=impl,
    )  # fmt: skip


def additive_window_attention(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b h k e"],
    v: Float[Tensor, "b h k w"],
    q_local: Float[Tensor, "b h q e"],
    k_local: Float[Tensor, "b h k e"],
    boundaries: Boundaries,
    *,
    attn_mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    segment_size: int = 1,
    segment_origin: Int[Tensor, " b"] | None = None,
    expectation: Expectation = "paper",
    scale: float | None = None,
    dropout_p: float = 0.0,
    impl: Impl = "auto",
) -> Float[Tensor, "b h q w"]:
    """Attend everywhere, and more within a learned window: softmax(scale · (q kᵀ + q_local k_localᵀ ⊙ M)) v.

    The options are those of `multiplicative_window_attention`; `dropout_p` acts on the weights.

    >>> q = k = v = torch.ones(1, 1, 3, 2)
    >>> out = additive_window_attention(q, k, v, q, k, Boundaries(q, k, q, k), is_causal=True)
    >>> out[0, 0, :, 0].round(decimals=4)
    tensor([1., 1., 1.])
    """
    _check_tensors(q, k, v, boundaries, local=(q_local, k_local))
    return _window_attention(
        q, k, v, boundaries, (q_local, k_local), attn_mask=attn_mask, is_causal=is_causal,
        segment_size=segment_size, segment_origin=segment_origin, expectation=expectation, scale=scale,
        dropout_p=dropout_p, impl=impl,
    )  # fmt: skip


def window_maps(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b h k e"],
    boundaries: Boundaries,
    local: tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h k e"]] | None = None,
    *,
    attn_mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    segment_size: int = 1,
    segment_origin: Int[Tensor, " b"] | None = None,
    expectation: Expectation = "paper",
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> WindowMaps:
    """Compute the weights, the window and its boundaries; multiplicative unless `local` is given."""
    # there are no values here; the keys stand for them
    _check_tensors(q, k, k, boundaries, local=local or ())
    _check_options(q, k, attn_mask, segment_size, segment_origin, expectation, dropout_p)
    mask = visible_mask(q, k, attn_mask=attn_mask, is_causal=is_causal)
    q_left, k_left, q_right, k_right = boundaries
    phi_left = functional.boundary(q_left, k_left, mask=mask, scale=scale)
    phi_right = functional.boundary(q_right, k_right, mask=mask, scale=scale)
    window = functional.soft_window(
        phi_left,
        phi_right,
        segment_size=segment_size,
        segment_origin=segment_origin,
        expectation=expectation,
    )
    score = functional.scores(q, k, scale)
    if local is None:
        weights = functional.multiplicative_weights(score, window, mask=mask, dropout_p=dropout_p)
    else:
        local_score = functional.scores(*local, scale)
        weights = functional.additive_weights(score, local_score, window, mask=mask, dropout_p=dropout_p)
    return WindowMaps(weights, window, phi_left, phi_right)


def visible_mask(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b h k e"],
    *,
    attn_mask: Bool[Tensor, "..."] | None,
    is_causal: bool,
) -> Bool[Tensor, "..."] | None:
    """Join a mask with the causal one (query i sees keys 0…i); None means that everything is visible."""
    if not is_causal:
        return attn_mask
    causal = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    return causal if attn_mask is None else causal & attn_mask


def choose_impl(impl: Impl, q: Tensor) -> Impl:
    """Resolve "auto" for these tensors, and refuse what cannot be had."""
    check_choice("impl", impl, IMPLS)
    if impl == "reference":
        return "reference"
    why_not = "there are no Triton kernels"
    if impl in ("auto", "cpu"):
        if (why_not := cpu.why_not(q.dtype, q.device.type)) is None:
            return "cpu"
        if impl == "auto":
            return "reference"
    raise ValueError(f'impl="{impl}" is not available: {why_not}; use impl="auto"')


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise a ValueError that names the nearest choice unless `value` is one of `choices`."""
    if value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}{hint}")


def check_segment_size(segment_size: int) -> None:
    """Raise unless `segment_size` is a whole number of keys, one or more."""
    if isinstance(segment_size, bool) or not isinstance(segment_size, int | torch.SymInt):
        raise TypeError(f"segment_size={segment_size!r} is not an integer")
    if segment_size < 1:
        raise ValueError(f"segment_size={segment_size} is below 1, which stands for windows by token")


def check_dropout(name: str, value: float) -> None:
    """Raise unless `value` is a probability."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}={value} is not a probability between 0 and 1")


def _window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    boundaries: Boundaries,
    local: tuple[Tensor, Tensor] | None,
    *,
    attn_mask: Tensor | None,
    is_causal: bool,
    segment_size: int,
    segment_origin: Tensor | None,
    expectation: Expectation,
    scale: float | None,
    dropout_p: float,
    impl: Impl,
) -> Tensor:
    """Check the options and run the implementation that `impl` asks for."""
    if choose_impl(impl, q) == "cpu":
        _check_options(q, k, attn_mask, segment_size, segment_origin, expectation, dropout_p)
        return cpu.window_attention(
            q, k, v, boundaries, local, attn_mask=attn_mask, is_causal=is_causal, segment_size=segment_size,
            segment_origin=segment_origin, exact=expectation == "exact", scale=scale, dropout_p=dropout_p,
        )  # fmt: skip
    maps = window_maps(
        q, k, boundaries, local, attn_mask=attn_mask, is_causal=is_causal, segment_size=segment_size,
        segment_origin=segment_origin, expectation=expectation, scale=scale, dropout_p=dropout_p,
    )  # fmt: skip
    return functional.attend(maps.weights, v)


def _check_options(
    q: Tensor,
    k: Tensor,
    attn_mask: Tensor | None,
    segment_size: int,
    segment_origin: Tensor | None,
    expectation: Expectation,
    dropout_p: float,
) -> None:
    check_segment_size(segment_size)
    check_choice("expectation", expectation, EXPECTATIONS)
    check_dropout("dropout_p", dropout_p)
    _check_mask(attn_mask, q, k)
    _check_origin(segment_origin, q)


def _check_tensors(
    q: Tensor, k: Tensor, v: Tensor, boundaries: Boundaries, local: tuple[()] | tuple[Tensor, Tensor]
) -> None:
    """Raise unless all tensors are `[b h n e]` of one type and device, and agree where they meet."""
    if not isinstance(boundaries, Boundaries):
        raise TypeError(f"boundaries is a {type(boundaries).__name__}; pass diffwindow.Boundaries")
    named = {"q": q, "k": k, "v": v, **boundaries._asdict()}
    named |= dict(zip(("q_local", "k_local"), local, strict=False))
    for name, x in named.items():
        if x.dim() != 4:
            raise ValueError(f"{name} has shape {list(x.shape)}, not [batch, heads, length, width]")
        if not x.is_floating_point() or x.dtype != q.dtype:
            raise TypeError(f"{name} is {x.dtype} and q is {q.dtype}; all must be one floating-point type")
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device} and q is on {q.device}; move them to one device")
        like = q if name.startswith("q") else k
        if x.shape[:2] != q.shape[:2] or x.shape[2] != like.shape[2]:
            raise ValueError(
                f"{name} has shape {list(x.shape)}, which does not fit "
                f"q {list(q.shape)} and k {list(k.shape)} in batch, heads and length"
            )
    pairs = (("q", "k"), ("q_left", "k_left"), ("q_right", "k_right"), ("q_local", "k_local"))
    for a, b in pairs[: 3 + bool(local)]:
        if named[a].shape[-1] != named[b].shape[-1]:
            raise ValueError(f"{a} has head width {named[a].shape[-1]} and {b} has {named[b].shape[-1]}")


def _check_mask(attn_mask: Tensor | None, q: Tensor, k: Tensor) -> None:
    """Raise unless the mask is boolean, on the device of `q`, and broadcasts to `[b h q k]`."""
    if attn_mask is None:
        return
    if attn_mask.dtype != torch.bool:
        raise TypeError(f"attn_mask is {attn_mask.dtype}; pass a boolean mask, True where a query may look")
    if attn_mask.device != q.device:
        raise ValueError(
            f"attn_mask is on {attn_mask.device} and q is on {q.device}; move them to one device"
        )
    full = [*q.shape[:3], k.shape[2]]
    shape = list(attn_mask.shape)
    if len(shape) > 4 or any(m not in (1, n) for m, n in zip(shape[::-1], full[::-1], strict=False)):
        raise ValueError(f"attn_mask has shape {shape}, which does not broadcast to [b, h, q, k] = {full}")


def _check_origin(segment_origin: Tensor | None, q: Tensor) -> None:
    """Raise unless the origin is one integer a sequence, on the device of `q`."""
    if segment_origin is None:
        return
    if segment_origin.is_floating_point() or segment_origin.dtype == torch.bool:
        raise TypeError(f"segment_origin is {segment_origin.dtype}; pass one integer key index a sequence")
    if list(segment_origin.shape) != [q.shape[0]]:
        raise ValueError(
            f"segment_origin has shape {list(segment_origin.shape)}, not [batch] = [{q.shape[0]}]"
        )
    if segment_origin.device != q.device:
        raise ValueError(
            f"segment_origin is on {segment_origin.device} and q is on {q.device}; move them to one device"
        )
