"""An attention as a `torch.library` operator: its schema, shapes for tracing, and gradients of any order."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from diffwindow.kernels import cpu, stack

# of the operators; hub_kernels.py gives its copy another one
NAMESPACE = "diffwindow"
_NAMES: dict[object, str] = {Tensor: "Tensor", Tensor | None: "Tensor?", float | None: "float?"}


class Operator:
    """The operator `diffwindow::name` and its backward, which kernels compute.

    `call` is a NamedTuple of the arguments in the order of the schema: tensors, of which the first
    `num_differentiable` have gradients, then the rest. Its property `differentiable` has those given, by
    name. Derivatives beyond the first are those of a reference that `use_reference` sets.
    """

    def __init__(
        self,
        name: str,
        call: type[Any],
        num_differentiable: int,
        *,
        forward: Callable[[Any], tuple[Tensor, Tensor]],
        backward: Callable[[Any, Tensor, Tensor, Tensor, list[Tensor], bool], Tensor | None],
        empty_outputs: Callable[[Any], tuple[Tensor, Tensor]],
    ) -> None:
        """Define the operators; they exist as long as this object does.

        `forward` returns the output and what backward needs of each row, which `empty_outputs` allocates.
        `backward` takes a call, the gradient, the output, the rows, the gradients of the arguments to fill,
        and whether the bias needs one, which it returns.
        """
        self._call = call
        self._forward = forward
        self._backward = backward
        self._num_differentiable = num_differentiable
        kinds = list(call.__annotations__.values())
        self._num_tensors = next(i for i, kind in enumerate(kinds) if kind not in (Tensor, Tensor | None))
        self._reference: Callable[[Any], Tensor] | None = None
        self._name = f"{NAMESPACE}::{name}"
        self._library = torch.library.Library(NAMESPACE, "FRAGMENT")
        schema = self._schema()
        grads = ", ".join(["Tensor"] * (num_differentiable + 1))
        saved = "Tensor grad, Tensor out, Tensor rows, bool needs_bias"
        self._library.define(f"{name}({schema}) -> (Tensor, Tensor)")
        self._library.define(f"{name}_backward({saved}, {schema}) -> ({grads})")

        def run_backward(
            grad: Tensor, out: Tensor, rows: Tensor, needs_bias: bool, *arguments: Any
        ) -> tuple[Tensor, ...]:
            given = call(*arguments)
            grads = empty_grads(given)
            bias = backward(given, grad, out, rows, grads, needs_bias)
            return self._pad_grads(given, grads, bias)

        def backward_shapes(
            grad: Tensor, out: Tensor, rows: Tensor, needs_bias: bool, *arguments: Any
        ) -> tuple[Tensor, ...]:
            given = call(*arguments)
            return self._pad_grads(given, empty_grads(given), given.attn_bias if needs_bias else None)

        self._register(
            name,
            lambda *arguments: forward(call(*arguments)),
            lambda *arguments: empty_outputs(call(*arguments)),
            (self._differentiate, self._keep),
        )
        self._register(
            f"{name}_backward",
            run_backward,
            backward_shapes,
            (self._differentiate_twice, self._keep_for_second),
        )

    def __call__(self, call: Any) -> Tensor:
        """Return the output of a call."""
        if call.q.is_cpu and not cpu.is_observed():
            direct: Tensor = _Direct.apply(*call, self)
            return direct
        operator = getattr(getattr(torch.ops, NAMESPACE), self._name.partition("::")[2])
        out: Tensor
        out, _ = operator(*call)
        return out

    def use_reference(self, reference: Callable[[Any], Tensor]) -> None:
        """Set what computes a differentiable call in plain PyTorch, for the derivatives that kernels lack."""
        self._reference = reference

    def _schema(self) -> str:
        defaults = self._call._field_defaults
        return ", ".join(
            f"{_NAMES.get(kind) or cast(type, kind).__name__} {name}"
            + (f"={defaults[name]}" if name in defaults else "")
            for name, kind in self._call.__annotations__.items()
        )

    def _register(self, name: str, run: Any, shapes: Any, autograd: tuple[Any, Any]) -> None:
        for key in ("CPU", "CUDA"):
            self._library.impl(name, run, key)
        torch.library.register_fake(f"{NAMESPACE}::{name}", shapes, lib=self._library)
        differentiate, keep = autograd
        torch.library.register_autograd(
            f"{NAMESPACE}::{name}", differentiate, setup_context=keep, lib=self._library
        )

    def _pad_grads(self, call: Any, grads: list[Tensor], bias: Tensor | None) -> tuple[Tensor, ...]:
        """Add empty gradients for the arguments not given, and that of the bias, in its type, at the end.

        The operator returns a fixed number of tensors; torch can batch it only then.
        """
        padding = [call.q.new_empty(0) for _ in range(self._num_differentiable - len(grads))]
        # a copy, since an operator must not return its own argument
        last = call.q.new_empty(0) if bias is None else bias.to(call.attn_bias.dtype, copy=True)
        return (*grads, *padding, last)

    def run_directly(self, ctx: Any, arguments: tuple[Any, ...]) -> Tensor:
        """Return the output, and keep in `ctx` what backward needs."""
        out, rows = self._forward(self._call(*arguments))
        self._keep(ctx, arguments, (out, rows))
        return out

    def differentiate_directly(self, ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients; those of tensors that lie side by side in a stack do so too."""
        if cpu.needs_torch(grad):
            return self._differentiate(ctx, grad, None)
        out, rows, *tensors = ctx.saved_tensors
        call = self._call(*tensors, *ctx.rest)
        needs_bias: bool = ctx.needs_input_grad[self._call._fields.index("attn_bias")]
        grads = empty_grads(call, stacked=True)
        bias = self._backward(call, grad, out, rows, grads, needs_bias)
        last = None if bias is None else bias.to(call.attn_bias.dtype)
        return self._by_argument(call, [*grads, last], needs_bias=needs_bias)

    def _keep(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output, *inputs[: self._num_tensors])
        ctx.rest = inputs[self._num_tensors :]

    def _differentiate(self, ctx: Any, grad: Tensor, grad_rows: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        call = self._call(*saved[2:], *ctx.rest)
        needs_bias: bool = ctx.needs_input_grad[self._call._fields.index("attn_bias")]
        backward = getattr(getattr(torch.ops, NAMESPACE), f"{self._name.partition('::')[2]}_backward")
        grads = backward(grad, *saved[:2], needs_bias, *call)
        return self._by_argument(call, grads, needs_bias=needs_bias)

    def _by_argument(
        self, call: Any, grads: Sequence[Tensor | None], *, needs_bias: bool
    ) -> tuple[Tensor | None, ...]:
        """Give each argument of a call its gradient; that of the bias is the last of `grads`."""
        by_name: dict[str, Tensor | None] = dict(zip(call.differentiable, grads, strict=False))
        if needs_bias:
            by_name["attn_bias"] = grads[-1]
        return tuple(by_name.get(name) for name in self._call._fields)

    def _keep_for_second(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        # the output and the rows follow from the rest, which is what is differentiated
        grad, _, _, ctx.needs_bias, *arguments = inputs
        ctx.save_for_backward(grad, *arguments[: self._num_tensors])
        ctx.rest = arguments[self._num_tensors :]

    def _differentiate_twice(self, ctx: Any, *grad_grads: Tensor) -> tuple[Tensor | None, ...]:
        grad, *tensors = ctx.saved_tensors
        call = self._call(*tensors, *ctx.rest)
        if self._reference is None:
            raise NotImplementedError("second derivatives need diffwindow.ops, which computes them")
        # Inputs stay connected to their graph, so that derivatives of any order are right.
        with torch.enable_grad():
            inputs = {name: _require_grad(x) for name, x in call.differentiable.items()}
            given = [*grad_grads[: len(inputs)], *grad_grads[-1:] * ctx.needs_bias]
            if ctx.needs_bias:
                inputs["attn_bias"] = _require_grad(call.attn_bias)
            grad = _require_grad(grad)
            out = self._reference(call._replace(**inputs))
            grads = torch.autograd.grad(out, list(inputs.values()), grad, create_graph=True)
        second = torch.autograd.grad(
            grads,
            [grad, *inputs.values()],
            given,
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
        by_argument = self._by_argument(call, second[1:], needs_bias=ctx.needs_bias)
        return (second[0], None, None, None, *by_argument)


class _Direct(torch.autograd.Function):
    """A call without the dispatcher, where nothing wants to see operators."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *inputs, ctx.operator = arguments
        out: Tensor = ctx.operator.run_directly(ctx, tuple(inputs))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.operator.differentiate_directly(ctx, grad), None


def _require_grad(x: Tensor) -> Tensor:
    # a view is a node of its own: the output's gradient may itself depend on the inputs
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


def empty_output(q: Tensor, v: Tensor) -> Tensor:
    """Allocate the output `[b h q w]`, heads innermost as the next layer wants it."""
    batch, heads, queries, _ = q.shape
    width = v.shape[-1]
    # not a transposed view, which autograd forbids to change in place
    strides = (queries * heads * width, width, heads * width, 1)
    return v.new_empty_strided((batch, heads, queries, width), strides)


def empty_grads(call: Any, *, stacked: bool = False) -> list[Tensor]:
    """Allocate the gradients of a call, with contiguous rows in whatever order the inputs lie in memory.

    If `stacked`, those of heads that lie side by side in the rows of a stack lie side by side too. The layout
    then depends on more than shapes and strides, so that a compiled graph could not know it.
    """
    given = list(call.differentiable.values())
    heads = stack.empty_heads_like([x for x in given if x.dim() == 4]) if stacked else []
    known = [*heads, *[None] * (len(given) - len(heads))]
    return [empty_rows_like(x) if grad is None else grad for x, grad in zip(given, known, strict=True)]


def empty_rows_like(x: Tensor) -> Tensor:
    """Allocate a tensor with the order of `x` in memory if that has contiguous rows."""
    like = torch.empty_like(x)
    return like if like.stride(-1) == 1 else x.new_empty(x.shape)


def with_dense_rows(x: Tensor) -> Tensor:
    """Copy a tensor whose rows are not contiguous; its batches, heads and rows may lie anywhere."""
    return x if x.stride(-1) == 1 else x.contiguous()


def expand_masks(call: Any) -> dict[str, Tensor | None]:
    """Expand a call's `attn_mask` (bool) and `attn_bias` (fp32) to `[b h q k]`, with any strides."""
    full = (*call.q.shape[:3], call.k.shape[2])
    mask, bias = call.attn_mask, call.attn_bias
    return {
        "attn_mask": None if mask is None else mask.expand(full),
        "attn_bias": None if bias is None else bias.to(torch.float32).expand(full),
    }
