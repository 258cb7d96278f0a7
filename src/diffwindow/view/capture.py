"""Capture what the attentions of a model do while it runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diffwindow.attention.base import StackedAttention, watch
from diffwindow.attention.kinds import OPTIONS
from diffwindow.attention.visibility import Visibility
from diffwindow.attention.window import WindowAttention
from diffwindow.attention.window_module import WindowModule
from diffwindow.checks import check_whole
from diffwindow.messages import quote
from diffwindow.models.span_adapter import SpanAdapter
from diffwindow.models.window_adapter import WindowAdapter
from diffwindow.soft_window import Maps
from diffwindow.view.trace import Array, AttentionTrace, LayerMaps

Added = WindowAdapter | SpanAdapter
Captured = StackedAttention | Added
# parts of a module's name that tell its role; the first that occurs decides
_ROLES = (
    ("Cr", ("cross", "multihead_attn", "encoder_attn", "encdecattention")),
    ("Dec", ("decoder",)),
    ("Enc", ("encoder",)),
)


@dataclass(frozen=True)
class _Call:
    """The maps of one call for one sentence of its batch: `[heads, queries, keys]` arrays by name."""

    arrays: dict[str, Array]
    origin: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.arrays["weights"].shape


@contextmanager
def capture(
    model: nn.Module, *, tokens: Sequence[str] | Mapping[str, Sequence[str]] | None = None, row: int = 0
) -> Iterator[AttentionTrace]:
    """Record what the attentions of `model` do in the context; the trace is filled when it ends.

    `row` is the sentence of the batch to keep, without its padding. `tokens` name its positions: one list,
    or one for each of "source" and "target". Decoding step by step gives one map with a row per step; any
    other call of an attention replaces what it did before.

    >>> attention, x = WindowAttention(16, num_heads=2), torch.randn(1, 3, 16)
    >>> with capture(attention, tokens=["the", "old", "keys"]) as trace:
    ...     _ = attention(x, x, x)
    >>> trace["Enc", 1].window.shape
    (2, 3, 3)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model={quote(model)} is not a torch.nn.Module; pass a model with windows")
    check_whole("row", row)
    modules: dict[str, Captured] = {
        name: one for name, one in model.named_modules() if isinstance(one, Captured)
    }
    if not modules:
        raise ValueError(f"{type(model).__name__} holds no WindowAttention; nothing can be captured")
    calls: dict[str, list[_Call]] = {name: [] for name in modules}
    trace = AttentionTrace(label=type(model).__name__)
    with ExitStack() as stack:
        for name, module in modules.items():
            call = partial(_call, row=row, crosses=_named_role(name) == "Cr")
            if isinstance(module, Added):
                stack.enter_context(_record_added(module, call, calls[name]))
            else:
                stack.enter_context(watch([module], partial(_record, calls[name], call)))
        yield trace
    joined = {name: _join_steps(of_module) for name, of_module in calls.items() if of_module}
    if not joined:
        raise ValueError("no attention ran in the context; call the model inside it")
    trace.layers = _layers({name: modules[name] for name in joined}, joined)
    if tokens is not None:
        trace.tokens = trace.with_tokens(tokens).tokens


def _record(
    into: list[_Call],
    call: Callable[[Maps, Visibility], _Call],
    attention: StackedAttention,
    queries: Tensor,
    keys: Tensor,
    visibility: Visibility,
) -> None:
    with torch.no_grad():
        into.append(call(attention.maps(queries, keys, visibility), visibility))


@contextmanager
def _record_added(
    window: Added, call: Callable[[Maps, Visibility], _Call], into: list[_Call]
) -> Iterator[None]:
    """Keep the maps of each call of a window beside a foreign attention while the context runs."""

    def hook(_: nn.Module, args: tuple[Tensor, ...], options: dict[str, Any], __: Tensor) -> None:
        q, k, v = args
        seen = options | {"dropout_p": 0.0}
        with torch.no_grad():
            maps = window.maps(q.to(v.dtype), k.to(v.dtype), **seen)
        origin = (
            window.call_options(len(q), **seen).segment_origin if isinstance(window, WindowAdapter) else None
        )
        into.append(call(maps, Visibility(options.get("attn_mask"), segment_origin=origin)))

    handle = window.register_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _call(maps: Maps, visibility: Visibility, *, row: int, crosses: bool) -> _Call:
    """Take the sentence `row` out of the maps of a batch, without its padding."""
    named = {"weights": maps.weights}
    if maps.window is not None:
        values, phi_left, phi_right, *_ = maps.window
        named |= {"window": values, "phi_left": phi_left, "phi_right": phi_right}
    batch = named["weights"].shape[0]
    if not 0 <= row < batch:
        raise ValueError(f"row={row} is not a sentence of the batch, which has {batch}")
    origin = 0 if visibility.segment_origin is None else int(visibility.segment_origin[row])
    arrays = {name: x[row].detach().float().cpu().numpy() for name, x in named.items()}
    visible = visibility.attn_mask
    if visible is not None:
        # keys that are hidden from every query are padding
        shown = torch.broadcast_to(visible, named["weights"].shape)[row].any(0).any(0).cpu().numpy()
        arrays = {name: x[:, :, shown] for name, x in arrays.items()}
        if not crosses and arrays["weights"].shape[1] == len(shown):
            arrays = {name: x[:, shown] for name, x in arrays.items()}
        origin = max(origin - int(shown.argmax()), 0)
    return _Call(arrays, origin)


def _join_steps(calls: list[_Call]) -> _Call:
    """Join steps of one query each to one map, the keys not yet there zero; else keep the last call."""
    steps = [calls[-1]]
    for call in reversed(calls[:-1]):
        following = steps[-1].shape
        if following[1] != 1 or call.shape[2] > following[2] or call.shape[0] != following[0]:
            break
        steps.append(call)
    steps.reverse()
    if len(steps) == 1:
        return steps[0]
    last, arrays = steps[-1], {}
    for name in last.arrays:
        maps = [step.arrays[name] for step in steps]
        widened = [np.pad(x, ((0, 0), (0, 0), (0, last.shape[2] - x.shape[2]))) for x in maps]
        arrays[name] = np.concatenate(widened, axis=1)
    return _Call(arrays, last.origin)


def _layers(modules: Mapping[str, Captured], calls: Mapping[str, _Call]) -> list[LayerMaps]:
    roles = {name: _role(name, calls[name]) for name in modules}
    numbers = _numbers(roles)
    alone = len(set(roles.values())) == 1
    layers = []
    for name, module in modules.items():
        role, call = roles[name], calls[name]
        queries, keys = _sides(role, alone=alone)
        fields: dict[str, Any] = dict(call.arrays)
        if isinstance(module, WindowModule):
            names = ("segment_size", "expectation", "window_tolerance", "sinks", "window_rule")
            fields |= {name: getattr(module.options, name) for name in names}
        if isinstance(module, WindowAttention):
            fields["phrases"] = module.phrases is not None
        layers.append(
            LayerMaps(
                role=role,
                layer=numbers[name],
                kind=kind_of(module),
                queries=queries,
                keys=keys,
                segment_origin=call.origin,
                **fields,
            )
        )
    order = {role: place for place, role in enumerate(("Enc", "Cr", "Dec"))}
    return sorted(layers, key=lambda maps: (order[maps.role], maps.layer))


def _role(name: str, call: _Call) -> str:
    """Read the role off a module's name; without a hint, attention that never looks ahead is a decoder's."""
    if (named := _named_role(name)) is not None:
        return named
    weights = call.arrays["weights"]
    _, queries, keys = weights.shape
    if queries != keys:
        return "Cr"
    return "Dec" if queries > 1 and not np.triu(weights, 1).any() else "Enc"


def _named_role(name: str) -> str | None:
    return next((role for role, hints in _ROLES if any(hint in name.lower() for hint in hints)), None)


def _sides(role: str, *, alone: bool) -> tuple[str, str]:
    if role == "Cr":
        return "target", "source"
    if alone:
        return "text", "text"
    return ("source", "source") if role == "Enc" else ("target", "target")


def _numbers(roles: Mapping[str, str]) -> dict[str, int]:
    """Count the layers of each role from 1: by the last number in their names, or else in order."""
    numbers: dict[str, int] = {}
    for role in set(roles.values()):
        names = [name for name in roles if roles[name] == role]
        digits_by_name = [re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name) for name in names]
        last = [int(digits[-1]) + 1 if digits else 0 for digits in digits_by_name]
        unique = len(set(last)) == len(last) and 0 not in last
        numbers |= dict(zip(names, last if unique else range(1, len(names) + 1), strict=True))
    return numbers


def kind_of(module: Captured) -> str:
    """Name a kind of attention as the notation does, as its settings show in pictures.

    >>> kind_of(WindowAttention(8, 2, window="multiplicative", segment_size=5))
    'MW, segments of 5'
    """
    if isinstance(module, SpanAdapter):
        return str(module.attention)
    if isinstance(module, WindowAdapter):
        name = str(module.attention)
    elif isinstance(module, WindowAttention):
        name = module.kind
        for option in OPTIONS.values():
            # phrases are the layer's own, the others options of its call
            holder = module if hasattr(module, option.argument) else module.options
            if option.label and (value := getattr(holder, option.argument)) != option.default:
                name += f", {option.label.format(value)}"
    else:
        return module.kind
    tolerance, rule = module.options.window_tolerance, module.options.window_rule
    name += f", tolerance {tolerance:g}" if tolerance else ""
    return name if rule == "soft" else f"{name}, window rule {rule}"
