"""Window attention as a `torch.library` operator that every backend shares.

Its arguments and the memory of its results are here. A backend is a module of this package that fills
memory: `cpu` calls C++, `triton` launches GPU kernels. `Call.backend` names it.
"""

from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from diffwindow.checks import Boundaries, Options, window_threshold
from diffwindow.kernels.registration import (
    Operator,
    empty_output,
    expand_masks,
    with_dense_rows,
)


class Call(NamedTuple):
    """The operator's arguments, in the order of its schema; the window is multiplicative without q_local.

    Backends see `attn_mask` (bool) and `attn_bias` (fp32) expanded to `[b h q k]` with any strides, the
    origins as contiguous int64, and the other tensors with a last stride of 1 and any other strides.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    q_left: Tensor
    k_left: Tensor
    q_right: Tensor
    k_right: Tensor
    q_local: Tensor | None
    k_local: Tensor | None
    attn_mask: Tensor | None
    attn_bias: Tensor | None
    segment_origin: Tensor | None
    seed: Tensor | None
    is_causal: bool
    segment_size: int
    exact: bool
    scale: float | None
    dropout_p: float
    backend: str
    # the last have defaults, so that graphs exported before them still load
    window_tolerance: float = 0.0
    normalize: bool = False
    sinks: int = 0

    @property
    def threshold(self) -> float:
        """The value below which M counts as 0; kernels sum in fp32."""
        return window_threshold(self.window_tolerance, torch.float32, normalize=self.normalize)

    @property
    def differentiable(self) -> dict[str, Tensor]:
        """The given arguments that have a gradient, in order: the queries, keys and values."""
        given = zip(self._fields[:_NUM_DIFFERENTIABLE], self, strict=False)
        return {name: cast(Tensor, x) for name, x in given if x is not None}


@runtime_checkable
class Backend(Protocol):
    """What a module of this package provides to serve the operator."""

    def why_not(self) -> str | None:
        """Say why the backend cannot run here, or None if it can."""

    def row_width(self, call: Call) -> int | torch.SymInt:
        """Return how many floats backward needs of each query, besides the output."""

    def forward(self, call: Call, out: Tensor, rows: Tensor) -> None:
        """Fill the output `[b h q w]`, and `[b h q row_width]` floats for backward."""

    def backward(
        self, call: Call, grad: Tensor, out: Tensor, rows: Tensor, grads: list[Tensor], bias: Tensor | None
    ) -> None:
        """Fill the gradients of `call.differentiable`, in its order, and add those of the bias to `bias`.

        That has shape `[slabs b h q k]`, zeros at first, with sizes of 1 where the bias broadcasts; the sum
        over the slabs is the gradient.
        """


_NUM_DIFFERENTIABLE = Call._fields.index("attn_mask")


def backend(name: str) -> Backend:
    """Import a backend by name."""
    return cast(Backend, import_module(f"{__package__}.{name}"))


def window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    boundaries: Boundaries,
    local: tuple[Tensor, Tensor] | None,
    options: Options,
    seed: Tensor | None,
    backend: str,
) -> Tensor:
    """Run window attention in a backend: multiplicative unless `local` is given; dropout needs a seed."""
    q_local, k_local = local or (None, None)
    shared = {name: value for name, value in options._asdict().items() if name in Call._fields}
    exact = options.expectation == "exact"
    call = Call(
        q=q, k=k, v=v, **boundaries._asdict(), q_local=q_local, k_local=k_local, seed=seed, exact=exact,
        backend=backend, **shared,
    )  # fmt: skip
    return _operator(call)


def empty_outputs(call: Call) -> tuple[Tensor, Tensor]:
    """Allocate the output, and what backward needs of a row."""
    row_width = backend(call.backend).row_width(call)
    return empty_output(call.q, call.v), call.v.new_empty(*call.q.shape[:3], row_width, dtype=torch.float32)


def _forward(call: Call) -> tuple[Tensor, Tensor]:
    out, rows = empty_outputs(call)
    backend(call.backend).forward(_make_addressable(call), out, rows)
    return out, rows


def _backward(
    call: Call, grad: Tensor, out: Tensor, rows: Tensor, grads: list[Tensor], needs_bias: bool
) -> Tensor | None:
    bias = _bias_slabs(call) if needs_bias else None
    # hooks on saved tensors may have changed the layout of what forward returned
    saved = (with_dense_rows(grad), with_dense_rows(out), rows.contiguous())
    backend(call.backend).backward(_make_addressable(call), *saved, grads, bias)
    return None if bias is None else bias.sum(0).view_as(cast(Tensor, call.attn_bias))


def _bias_slabs(call: Call) -> Tensor:
    """Allocate what a backend adds the gradient of the bias to.

    Heads that share a place of it are divided among a few slabs, so that several threads can add to it. How
    many must not depend on the threads, on which the sum would then depend.
    """
    bias = cast(Tensor, call.attn_bias)
    shape = (*[1] * (4 - bias.dim()), *bias.shape)
    heads = call.q.shape[0] * call.q.shape[1]
    groups = max(shape[0] * shape[1], 1)
    slabs = max(1, min(heads // groups, -(-16 // groups)))
    return bias.new_zeros(slabs, *shape, dtype=torch.float32)


def _make_addressable(call: Call) -> Call:
    """Return the arguments as `Call` promises them to backends."""
    origin = call.segment_origin
    changed: dict[str, Any] = {
        **{name: with_dense_rows(x) for name, x in call.differentiable.items()},
        **expand_masks(call),
        "segment_origin": None if origin is None else origin.to(torch.int64).contiguous(),
    }
    return call._replace(**changed)


_operator = Operator(
    "window_attention",
    Call,
    _NUM_DIFFERENTIABLE,
    forward=_forward,
    backward=_backward,
    empty_outputs=empty_outputs,
)
use_reference = _operator.use_reference
