"""WindowModule: what a layer with a window and a window beside a foreign attention share."""

from collections.abc import Callable
from contextlib import ExitStack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffwindow import functional, ops
from diffwindow.attention.plain import plain_attention, plain_weights
from diffwindow.attention.visibility import Visibility
from diffwindow.checks import WINDOW_RULES, Options, WindowRule
from diffwindow.messages import check_choice
from diffwindow.soft_window import Maps


class WindowModule(nn.Module):
    """A module with a window: its options, the gate of each head if it has gates, and what computes it."""

    options: Options
    gate: nn.Parameter | None
    impl: ops.Impl

    def _window_heads(
        self,
        q: Float[Tensor, "b h q e"],
        k: Float[Tensor, "b h k e"],
        v: Float[Tensor, "b h k w"],
        boundaries: ops.Boundaries,
        local: ops.Local | None,
        options: Options,
    ) -> Float[Tensor, "b h q w"]:
        """Attend through the window, opened by the gate."""
        self._check_rule(options)
        heads = ops.attend(q, k, v, boundaries, local, options, self.impl)
        if self.gate is None:
            return heads
        # dropout is drawn anew, apart from that of the windowed heads
        visibility = _visibility_of(options)
        seen = visibility.visible(q, k)
        k, v = (functional.zero_unseen_keys(x, seen) for x in (k, v))
        # with a closed gate, a pretrained model keeps its bits
        plain = plain_attention(
            q, k, v, visibility, dropout_p=options.dropout_p, scale=options.scale, own_kernels=False
        )
        return mix_heads(plain, heads, self.gate)

    def _window_maps(
        self,
        q: Float[Tensor, "b h q e"],
        k: Float[Tensor, "b h k e"],
        boundaries: ops.Boundaries,
        local: ops.Local | None,
        options: Options,
    ) -> Maps:
        """Return what `_window_heads` does with each pair of query and key."""
        self._check_rule(options)
        maps = ops.window_maps(q, k, boundaries, local, **options._asdict())
        if self.gate is None:
            return maps
        plain = plain_weights(q, k, _visibility_of(options), scale=options.scale)
        return maps._replace(weights=mix_heads(plain, maps.weights, self.gate))

    def _check_rule(self, options: Options) -> None:
        if self.training and options.window_rule != "soft":
            raise ValueError(
                f"window_rule={options.window_rule!r} is for inference, and the model is in training mode; "
                'call model.eval(), or train with window_rule="soft"'
            )


def mix_heads(
    plain: Float[Tensor, "b h q n"], windowed: Float[Tensor, "b h q n"], gate: Float[Tensor, " h"]
) -> Float[Tensor, "b h q n"]:
    """Open the window of each head by its gate: (1 − g) · plain + g · windowed, exactly plain at g = 0.

    The weights are softmax(s) ⊙ (1 + g(M − 1)), which is linear in M: so this also mixes outputs. Those of a
    normalised window are mixed with softmax(s) in the same way.

    >>> mix_heads(torch.ones(1, 2, 1, 1), torch.zeros(1, 2, 1, 1), torch.tensor([0.0, 0.25])).flatten()
    tensor([1.0000, 0.7500])
    """
    return torch.lerp(plain, windowed.to(plain.dtype), gate.to(plain.dtype)[:, None, None])


def use_impl(model: nn.Module, impl: ops.Impl) -> ExitStack:
    """Let all windows of a model run in one implementation, from now on or while a context lasts.

    >>> from diffwindow import WindowAttention
    >>> model = WindowAttention(16, num_heads=2)
    >>> with use_impl(model, "reference"):
    ...     model.impl
    'reference'
    >>> model.impl
    'auto'
    """
    check_choice("impl", impl, ops.IMPLS)
    return _set_in_all(window_modules(model), "impl", lambda _: impl)


def use_window_rule(model: nn.Module, rule: WindowRule) -> ExitStack:
    """Let all windows of a model be discrete, or none at all, from now on or while a context lasts.

    It is for inference: in training mode the model then raises an error.

    Args:
        model: A model with windows: one of ours, one of `torch.nn` or transformers with added windows, or a
            single attention.
        rule: "soft" is the window as it was trained; "argmax", "half" and "joint" are the rules of
            `SoftWindow.discrete`; "none" sets M = 1, which makes a multiplicative window plain attention and
            an additive one softmax(s + o).

    >>> from diffwindow import WindowAttention
    >>> model = WindowAttention(16, num_heads=2).eval()
    >>> with use_window_rule(model, "argmax"):
    ...     model.inspect(torch.ones(1, 3, 16), torch.ones(1, 3, 16)).window.values[0, 0, 0]
    tensor([1., 0., 0.])
    """
    check_choice("window_rule", rule, WINDOW_RULES)
    modules = window_modules(model)
    if not modules and rule != "soft":
        raise ValueError(f"window_rule={rule!r} is for models with windows, and this one has none")
    return _set_in_all(modules, "options", lambda one: one.options._replace(window_rule=rule))


def window_modules(model: nn.Module) -> list[WindowModule]:
    """List the windows of a model."""
    return [module for module in model.modules() if isinstance(module, WindowModule)]


def _set_in_all(modules: list[WindowModule], name: str, value: Callable[[WindowModule], object]) -> ExitStack:
    """Set an attribute of each module, until the returned stack is closed."""
    before = ExitStack()
    for module in modules:
        before.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, value(module))
    return before


def _visibility_of(options: Options) -> Visibility:
    return Visibility(**{name: getattr(options, name) for name in Visibility._fields})
