"""Window attention as a `torch.library` operator that every backend shares.

Schema, shapes for tracing and gradients are here. A backend is a module of this package that fills
memory: `cpu` calls C++, `triton` launches GPU kernels. `Call.backend` names it.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from diffwindow.checks import Boundaries, Options, window_threshold

# Called with a differentiable Call, computes its output in plain PyTorch.
Reference = Callable[["Call"], Tensor]


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
_BIAS = Call._fields.index("attn_bias")
_NUM_TENSORS = Call._fields.index("is_causal")


def backend(name: str) -> Backend:
    """Import a backend by name."""
    return cast(Backend, import_module(f"diffwindow.kernels.{name}"))


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
    out: Tensor
    out, _ = torch.ops.diffwindow.window_attention(*call)
    return out


def empty_outputs(call: Call) -> tuple[Tensor, Tensor]:
    """Allocate the output, heads innermost as the next layer wants it, and what backward needs of a row."""
    v = call.v
    batch, heads, queries, _ = call.q.shape
    width = v.shape[-1]
    # not a transposed view, which autograd forbids to change in place
    strides = (queries * heads * width, width, heads * width, 1)
    out = v.new_empty_strided((batch, heads, queries, width), strides)
    row_width = backend(call.backend).row_width(call)
    return out, v.new_empty(batch, heads, queries, row_width, dtype=torch.float32)


def empty_grads(call: Call) -> list[Tensor]:
    """Allocate the gradients, with contiguous rows in whatever order the inputs lie in memory."""
    return [_empty_rows_like(x) for x in call.differentiable.values()]


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    call = Call(*arguments)
    out, rows = empty_outputs(call)
    backend(call.backend).forward(_make_addressable(call), out, rows)
    return out, rows


def _backward(
    grad: Tensor, out: Tensor, rows: Tensor, needs_bias: bool, *arguments: Any
) -> tuple[Tensor, ...]:
    call = Call(*arguments)
    grads, bias = empty_grads(call), _bias_slabs(call) if needs_bias else None
    # hooks on saved tensors may have changed the layout of what forward returned
    saved = (_with_dense_rows(grad), _with_dense_rows(out), rows.contiguous())
    backend(call.backend).backward(_make_addressable(call), *saved, grads, bias)
    return _pad_grads(
        call, grads, None if bias is None else bias.sum(0).view_as(cast(Tensor, call.attn_bias))
    )


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


def _forward_shapes(*arguments: Any) -> tuple[Tensor, Tensor]:
    return empty_outputs(Call(*arguments))


def _backward_shapes(
    grad: Tensor, out: Tensor, rows: Tensor, needs_bias: bool, *arguments: Any
) -> tuple[Tensor, ...]:
    call = Call(*arguments)
    return _pad_grads(call, empty_grads(call), call.attn_bias if needs_bias else None)


def _pad_grads(call: Call, grads: list[Tensor], bias: Tensor | None) -> tuple[Tensor, ...]:
    """Add empty gradients for the arguments not given, and that of the bias, in its type, at the end.

    The operator returns a fixed number of tensors; torch can batch it only then.
    """
    padding = [call.q.new_empty(0) for _ in range(_NUM_DIFFERENTIABLE - len(grads))]
    # a copy, since an operator must not return its own argument
    last = call.q.new_empty(0) if bias is None else bias.to(cast(Tensor, call.attn_bias).dtype, copy=True)
    return (*grads, *padding, last)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[:_NUM_TENSORS])
    ctx.rest = inputs[_NUM_TENSORS:]


def _differentiate(ctx: Any, grad: Tensor, grad_rows: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    call = Call(*saved[2:], *ctx.rest)
    needs_bias: bool = ctx.needs_input_grad[_BIAS]
    grads = torch.ops.diffwindow.window_attention_backward(grad, *saved[:2], needs_bias, *call)
    return _by_argument(call, grads, needs_bias=needs_bias)


def _by_argument(
    call: Call, grads: Sequence[Tensor | None], *, needs_bias: bool
) -> tuple[Tensor | None, ...]:
    """Give each argument of a call its gradient; that of the bias is the last of `grads`."""
    by_name: dict[str, Tensor | None] = dict(zip(call.differentiable, grads, strict=False))
    if needs_bias:
        by_name["attn_bias"] = grads[-1]
    return tuple(by_name.get(name) for name in Call._fields)


def _keep_for_second(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    # the output and the rows follow from the rest, which is what is differentiated
    grad, _, _, ctx.needs_bias, *arguments = inputs
    ctx.save_for_backward(grad, *arguments[:_NUM_TENSORS])
    ctx.rest = arguments[_NUM_TENSORS:]


def _differentiate_twice(ctx: Any, *grad_grads: Tensor) -> tuple[Tensor | None, ...]:
    grad, *tensors = ctx.saved_tensors
    call = Call(*tensors, *ctx.rest)
    if _reference is None:
        raise NotImplementedError("second derivatives need diffwindow.ops, which computes them")
    # Inputs stay connected to their graph, so that derivatives of any order are right.
    with torch.enable_grad():
        inputs = {name: _require_grad(x) for name, x in call.differentiable.items()}
        given = [*grad_grads[: len(inputs)], *grad_grads[-1:] * ctx.needs_bias]
        if ctx.needs_bias:
            inputs["attn_bias"] = _require_grad(cast(Tensor, call.attn_bias))
        grad = _require_grad(grad)
        out = _reference(call._replace(**cast(dict[str, Any], inputs)))
        grads = torch.autograd.grad(out, list(inputs.values()), grad, create_graph=True)
    second = torch.autograd.grad(
        grads,
        [grad, *inputs.values()],
        given,
        create_graph=torch.is_grad_enabled(),
        allow_unused=True,
    )
    return (second[0], None, None, None, *_by_argument(call, second[1:], needs_bias=ctx.needs_bias))


def _require_grad(x: Tensor) -> Tensor:
    # a view is a node of its own: the output's gradient may itself depend on the inputs
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


_reference: Reference | None = None


def use_reference(reference: Reference) -> None:
    """Set what computes second derivatives, which the backends do not have."""
    global _reference
    _reference = reference


def _make_addressable(call: Call) -> Call:
    """Return the arguments as `Call` promises them to backends."""
    full = (*call.q.shape[:3], call.k.shape[2])
    mask, bias, origin = call.attn_mask, call.attn_bias, call.segment_origin
    changed: dict[str, Any] = {
        **{name: _with_dense_rows(x) for name, x in call.differentiable.items()},
        "attn_mask": None if mask is None else mask.expand(full),
        "attn_bias": None if bias is None else bias.to(torch.float32).expand(full),
        "segment_origin": None if origin is None else origin.to(torch.int64).contiguous(),
    }
    return call._replace(**changed)


def _with_dense_rows(x: Tensor) -> Tensor:
    """Copy a tensor whose rows are not contiguous; its batches, heads and rows may lie anywhere."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _empty_rows_like(x: Tensor) -> Tensor:
    """Allocate a tensor with the order of `x` in memory if that has contiguous rows."""
    like = torch.empty_like(x)
    return like if like.stride(-1) == 1 else x.new_empty(x.shape)


def _register() -> torch.library.Library:
    """Define both operators; they exist as long as the returned library is kept."""
    names: dict[object, str] = {Tensor: "Tensor", Tensor | None: "Tensor?", float | None: "float?"}
    schema = ", ".join(
        f"{names.get(kind) or cast(type, kind).__name__} {name}"
        + (f"={Call._field_defaults[name]}" if name in Call._field_defaults else "")
        for name, kind in Call.__annotations__.items()
    )
    library = torch.library.Library("diffwindow", "DEF")
    library.define(f"window_attention({schema}) -> (Tensor, Tensor)")
    grads = ", ".join(["Tensor"] * (_NUM_DIFFERENTIABLE + 1))
    saved = "Tensor grad, Tensor out, Tensor rows, bool needs_bias"
    library.define(f"window_attention_backward({saved}, {schema}) -> ({grads})")
    register_autograd = torch.library.register_autograd
    for name, run, shapes, differentiate, keep in (
        ("window_attention", _forward, _forward_shapes, _differentiate, _keep),
        ("window_attention_backward", _backward, _backward_shapes, _differentiate_twice, _keep_for_second),
    ):
        for key in ("CPU", "CUDA"):
            library.impl(name, run, key)
        torch.library.register_fake(f"diffwindow::{name}", shapes, lib=library)
        register_autograd(f"diffwindow::{name}", differentiate, setup_context=keep, lib=library)
    return library


_library = _register()
