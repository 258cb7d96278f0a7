"""The arguments of window attention as values, and the checks that name a wrong one.

Python takes a string for true and True for 1; torch's own errors name neither the argument nor the fix. So
what users pass goes through `check_bool`, `check_number`, `check_whole`, `check_tensor` and `check_floats`,
or a check that is made of them.
"""

import math
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack

from diffwindow.messages import check_choice, did_you_mean, quote

Expectation = Literal["paper", "exact", "ordered"]
EXPECTATIONS: tuple[str, ...] = get_args(Expectation)
# how a window is made discrete at test time
DiscreteRule = Literal["argmax", "half", "joint"]
DISCRETE_RULES: tuple[str, ...] = get_args(DiscreteRule)
# "soft" is the window as it was trained, "none" sets M = 1
WindowRule = Literal["soft", DiscreteRule, "none"]
WINDOW_RULES: tuple[WindowRule, ...] = get_args(WindowRule)
# The types that windows are computed in; half precision is summed in fp32.
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
MOST_KEYS = 2**31 - 1


class Boundaries(NamedTuple):
    """The projected queries and keys of a window's two pointers; each pair has its own head width."""

    q_left: Float[Tensor, "b h q left"]
    k_left: Float[Tensor, "b h k left"]
    q_right: Float[Tensor, "b h q right"]
    k_right: Float[Tensor, "b h k right"]


class WindowOptions(TypedDict, total=False):
    """The options of a window that stay the same from call to call, as keywords."""

    segment_size: int
    expectation: Expectation
    normalize: bool
    sinks: int
    window_tolerance: float
    window_rule: WindowRule


class CallOptions(WindowOptions, total=False):
    """All options of a call as keywords, as `ops.window_attention` describes them."""

    attn_mask: Bool[Tensor, "..."] | None
    attn_bias: Float[Tensor, "..."] | None
    is_causal: bool
    segment_origin: Int[Tensor, " b"] | None
    gates: Float[Tensor, "..."] | None
    scale: float | None
    dropout_p: float


class Options(NamedTuple):
    """The options of a call, with their defaults."""

    attn_mask: Bool[Tensor, "..."] | None = None
    attn_bias: Float[Tensor, "..."] | None = None
    is_causal: bool = False
    segment_size: int = 1
    segment_origin: Int[Tensor, " b"] | None = None
    expectation: Expectation = "paper"
    normalize: bool = False
    sinks: int = 0
    window_tolerance: float = 0.0
    window_rule: WindowRule = "soft"
    gates: Float[Tensor, "..."] | None = None
    scale: float | None = None
    dropout_p: float = 0.0


F = TypeVar("F", bound=Callable[..., Any])


def show_options(keywords: Any) -> Callable[[F], F]:
    """Show in a function's signature each of the keywords that it takes as `**options`, with its default."""

    def show(function: F) -> F:
        known = signature(function)
        *others, _ = known.parameters.values()
        shown = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Options.__annotations__[name],
            )
            for name, default in Options._field_defaults.items()
            if name in keywords.__annotations__
        ]
        first = [one for one in others if one.kind is not Parameter.KEYWORD_ONLY]
        function.__signature__ = known.replace(  # type: ignore[attr-defined]
            parameters=[*first, *shown, *(one for one in others if one not in first)]
        )
        return function

    return show


def read_options(
    given: CallOptions | WindowOptions, caller: Callable[..., Any], keywords: Any = CallOptions
) -> Options:
    """Return the options given as keywords, with the defaults of the others; `caller` is what was called."""
    for name in given:
        if name not in keywords.__annotations__:
            hint = did_you_mean(name, signature(caller).parameters)
            raise TypeError(f"there is no argument {name!r}; {hint}")
    return Options(**given)


def check_tensors(
    q: Tensor, k: Tensor, v: Tensor, boundaries: Boundaries, local: tuple[Tensor, Tensor] | None
) -> None:
    """Raise unless all tensors are `[b h n e]` of one type and device, and agree where they meet."""
    check_not_traced()
    if not isinstance(boundaries, Boundaries):
        raise TypeError(f"boundaries is {_kind(boundaries)}; pass diffwindow.Boundaries")
    if local is not None and not (isinstance(local, tuple | list) and len(local) == 2):
        raise TypeError(f"local is {_kind(local)}; pass the pair (q_local, k_local)")
    named = {"q": q, "k": k, "v": v, **boundaries._asdict()}
    named |= dict(zip(("q_local", "k_local"), local or (), strict=False))
    for name, x in named.items():
        _check_heads(name, x, q)
        like = q if name.startswith("q") else k
        if x.shape[:2] != q.shape[:2] or x.shape[2] != like.shape[2]:
            raise ValueError(
                f"{name} has shape {list(x.shape)}, which does not fit "
                f"q {list(q.shape)} and k {list(k.shape)} in batch, heads and length"
            )
    pairs = (("q", "k"), ("q_left", "k_left"), ("q_right", "k_right"), ("q_local", "k_local"))
    for a, b in pairs[: 3 + bool(local)]:
        if named[a].shape[-1] != named[b].shape[-1]:
            widths = f"{a} has head width {named[a].shape[-1]} and {b} has {named[b].shape[-1]}"
            raise ValueError(f"{widths}; project both to one width")


def check_interval(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    start: Tensor | None,
    end: Tensor | None,
    sinks: int,
    origin: Tensor | None,
) -> None:
    """Raise unless the tensors of `ops.interval_attention` and its window of keys agree."""
    check_not_traced()
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check_heads(name, x, q)
    if k.shape[0] != q.shape[0] or v.shape[:3] != k.shape[:3] or k.shape[3] != q.shape[3]:
        raise ValueError(
            f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)} do not fit; "
            "pass q [b h q e], k [b g k e] and v [b g k w]"
        )
    if q.shape[1] != k.shape[1] and (k.shape[1] == 0 or q.shape[1] % k.shape[1]):
        raise ValueError(
            f"q has {q.shape[1]} heads and k has {k.shape[1]}; those of q must be a multiple of those of k"
        )
    for name, place in (("start", start), ("end", end)):
        if place is not None:
            check_positions(name, place)
            _check_broadcast(name, place, q, "[b, h, q]", list(q.shape[:3]))
    check_sinks(sinks)
    check_origin(origin, q, "origin")


def check_tables(
    q: Tensor, k: Tensor, v: Tensor, key_table: Tensor | None, value_table: Tensor | None
) -> None:
    """Raise unless the tables of distances in `ops.interval_attention` fit its other tensors."""
    tables = [
        (name, x, width)
        for name, x, width in (("key_table", key_table, q.shape[3]), ("value_table", value_table, v.shape[3]))
        if x is not None
    ]
    for name, x, width in tables:
        check_floats(name, x)
        if x.dim() != 2 or x.shape[0] % 2 == 0 or x.shape[1] != width:
            raise ValueError(
                f"{name} has shape {list(x.shape)}, not [2 size + 1, {width}]: a row for each distance from "
                "-size to size"
            )
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device} and q is on {q.device}; move them to one device")
        if x.shape[0] != tables[0][1].shape[0]:
            raise ValueError(
                f"the tables have {tables[0][1].shape[0]} and {x.shape[0]} rows; give both the same"
            )
    if tables and q.shape[2] > k.shape[2]:
        raise ValueError(
            f"{q.shape[2]} queries for {k.shape[2]} keys: tables of distances are for self-attention, where "
            "the queries are the last of the keys"
        )


def window_threshold(tolerance: float, dtype: torch.dtype, *, normalize: bool) -> float:
    """Return the value below which M counts as 0, for windows of the sums' type (fp32 or fp64).

    It is the tolerance, but a normalised window has a floor: what is left of 1 − F below it is rounding,
    which the division by a small sum would blow up.
    """
    return max(tolerance, 8 * torch.finfo(dtype).eps) if normalize else tolerance


def check_options(q: Tensor, k: Tensor, options: Options, *, additive: bool) -> None:
    """Raise unless the options are in their ranges, fit `q` and `k`, and fit the kind of window."""
    check_bool("is_causal", options.is_causal)
    check_window_options(options, additive=additive)
    check_scale(options.scale)
    check_dropout("dropout_p", options.dropout_p)
    full = [*q.shape[:3], k.shape[2]]
    if options.attn_mask is not None:
        check_mask("attn_mask", options.attn_mask)
        _check_broadcast("attn_mask", options.attn_mask, q, "[b, h, q, k]", full)
    if options.attn_bias is not None:
        check_floats("attn_bias", options.attn_bias)
        _check_broadcast("attn_bias", options.attn_bias, q, "[b, h, q, k]", full)
    check_origin(options.segment_origin, q)
    if options.gates is not None:
        check_one_structure(options.segment_size, phrases=True)
        check_gates(options.gates, k.shape[2])
        _check_device("gates", options.gates, q)
        batch, *heads = options.gates.shape[:-1] or (0,)
        if batch != q.shape[0] or len(heads) > 1 or any(n != 1 and n != q.shape[1] for n in heads):
            raise ValueError(
                f"gates has shape {list(options.gates.shape)}, not [batch, gaps] or [batch, heads, gaps] "
                f"with batch {q.shape[0]} and heads {q.shape[1]}"
            )


def check_window_options(options: Options, *, additive: bool) -> None:
    """Raise unless the options of `WindowOptions` are in their ranges and fit the kind of window."""
    check_segment_size(options.segment_size)
    check_choice("expectation", options.expectation, EXPECTATIONS)
    check_tolerance("window_tolerance", options.window_tolerance)
    check_choice("window_rule", options.window_rule, WINDOW_RULES)
    check_bool("normalize", options.normalize)
    if options.normalize and additive:
        raise ValueError(
            "normalize=True is for a multiplicative window; the weights of an additive one are a softmax, "
            "which sums to one already"
        )
    check_sinks(options.sinks)
    if options.sinks and additive:
        raise ValueError(
            f"sinks={options.sinks} is for a multiplicative window; an additive one hides no key, so all are "
            "always visible"
        )


def check_bool(name: str, value: object) -> None:
    """Raise unless `value` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={quote(value)} is not a bool; pass True or False")


def check_number(name: str, value: object) -> None:
    """Raise unless `value` is an int or a float, or a traced one."""
    if isinstance(value, bool) or not isinstance(value, int | float | torch.SymInt | torch.SymFloat):
        raise TypeError(f"{name}={quote(value)} is not a number; pass an int or a float")


def check_whole(name: str, value: object) -> None:
    """Raise unless `value` is an int, or a traced one."""
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt):
        raise TypeError(f"{name}={quote(value)} is not an integer")


def check_module(name: str, x: object) -> None:
    """Raise unless `x` is a module."""
    if not isinstance(x, nn.Module):
        raise TypeError(f"{name} is {_kind(x)}; pass a torch.nn.Module")


def check_tensor(name: str, x: object) -> None:
    """Raise unless `x` is a dense tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is {_kind(x)}; pass a torch.Tensor")
    if x.is_nested:
        raise TypeError(
            f"{name} is a nested tensor; pass a padded one (torch.nested.to_padded_tensor) and a mask"
        )
    if x.layout is not torch.strided:
        raise TypeError(f"{name} is a {x.layout} tensor; pass {name}.to_dense()")


def check_floats(name: str, x: Any) -> None:
    """Raise unless `x` is a dense tensor of a type that windows are computed in."""
    check_tensor(name, x)
    check_float_type(name, x.dtype)


def check_float_type(name: str, dtype: object) -> None:
    """Raise unless windows are computed in `dtype`."""
    if dtype not in FLOATS:
        raise TypeError(f"{name} is {quote(dtype)}; pass {', '.join(map(str, FLOATS[:-1]))} or {FLOATS[-1]}")


def check_mask(name: str, mask: Any) -> None:
    """Raise unless `mask` is a dense tensor of booleans."""
    check_tensor(name, mask)
    if mask.dtype != torch.bool:
        raise TypeError(f"{name} is {mask.dtype}; pass a boolean mask, True where a query may look")


def check_positions(name: str, x: Any) -> None:
    """Raise unless `x` is a dense tensor of integers."""
    check_tensor(name, x)
    if x.dtype.is_floating_point or x.dtype.is_complex or x.dtype == torch.bool:
        raise TypeError(f"{name} is {x.dtype}; pass integers, the indices of keys")


def check_pointers(phi_left: Any, phi_right: Any, mask: Any) -> None:
    """Raise unless two pointers have one shape, to which the mask broadcasts."""
    check_floats("phi_left", phi_left)
    check_floats("phi_right", phi_right)
    if phi_left.shape != phi_right.shape:
        raise ValueError(
            f"phi_left has shape {list(phi_left.shape)} and phi_right {list(phi_right.shape)}; "
            "pass both as [..., keys] of one shape"
        )
    if mask is not None:
        check_mask("mask", mask)
        _check_broadcast("mask", mask, phi_left, "that of the pointers", list(phi_left.shape))


def check_key_indices(name: str, index: object, num_keys: int) -> None:
    """Raise unless `index` is an integer, or a tensor of them, each of which is one of the keys."""
    if not isinstance(index, Tensor):
        check_whole(name, index)
        index = torch.as_tensor(index)
    check_positions(name, index)
    if torch.compiler.is_compiling() or not index.numel():
        return
    lowest, highest = (int(x) for x in index.aminmax())
    if lowest < 0 or highest >= num_keys:
        wrong = lowest if lowest < 0 else highest
        raise ValueError(f"{name} has {wrong}, which is not a key: there are {num_keys}, counted from 0")


def check_tokens(name: str, tokens: Any, mask: Any = None) -> None:
    """Raise unless `tokens` are ids `[batch, length]`, and `mask`, if any, has a boolean for each."""
    check_not_traced()
    check_tensor(name, tokens)
    if tokens.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} is {tokens.dtype}; pass the ids of tokens, as torch.int64")
    if tokens.dim() != 2:
        raise ValueError(f"{name} has shape {list(tokens.shape)}, not [batch, length]")
    if mask is not None:
        check_mask(f"the mask of {name}", mask)
        if mask.shape != tokens.shape:
            raise ValueError(f"the mask of {name} has shape {list(mask.shape)}, not {list(tokens.shape)}")


def check_text(name: str, value: object) -> str:
    """Return `value`; raise unless it is a str."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {_kind(value)}; pass a str")
    return value


def check_not_traced() -> None:
    """Raise under torch.jit.trace, which would keep the sizes and choices of one call for all."""
    if not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None:
        raise RuntimeError("torch.jit.trace cannot record our attention; use torch.export.export")


def check_scale(scale: float | None) -> None:
    """Raise unless `scale` is a finite number or None."""
    if isinstance(scale, Tensor):
        raise TypeError("scale is a tensor, which would have no gradient; multiply the queries by it instead")
    if scale is not None:
        check_number("scale", scale)
        if isinstance(scale, float) and not math.isfinite(scale):
            raise ValueError(f"scale={scale} is not finite; leave it out for 1/√width")


def check_segment_size(segment_size: int) -> None:
    """Raise unless `segment_size` is a whole number of keys, one or more."""
    check_whole("segment_size", segment_size)
    if segment_size < 1:
        raise ValueError(f"segment_size={segment_size} is below 1, which stands for windows by token")
    _check_countable("segment_size", segment_size)


def check_one_structure(segment_size: int, *, phrases: bool) -> None:
    """Raise if a window is asked to be both of segments and of phrases."""
    if phrases and segment_size != 1:
        raise ValueError(
            f"segment_size={segment_size} and phrases exclude each other; a window is of segments or of "
            "phrases"
        )


def check_gates(gates: Any, num_keys: int) -> None:
    """Raise unless there is a number for each gap between neighbouring keys."""
    check_floats("gates", gates)
    gaps = max(num_keys - 1, 0)
    if not gates.dim() or gates.shape[-1] != gaps:
        raise ValueError(
            f"gates has shape {list(gates.shape)}, which does not fit {num_keys} keys; give one "
            "gate for each gap between neighbouring keys"
        )


def check_probabilities(gates: Tensor) -> None:
    """Raise unless every gate is a probability, and name the row and the keys of one that is not."""
    # what is traced or transformed has no values yet
    if torch.compiler.is_compiling() or gates.is_meta or peek_interpreter_stack() is not None:
        return
    wrong = ((gates >= 0) & (gates <= 1)).logical_not()
    if wrong.any():
        *rows, gap = wrong.nonzero()[0].tolist()
        place = f" in row {rows[0]}" if rows else ""
        raise ValueError(
            f"the gate between keys {gap} and {gap + 1}{place} is {gates[(*rows, gap)].item():g}; a gate is "
            "a probability between 0 and 1"
        )


def check_sinks(sinks: int) -> None:
    """Raise unless `sinks` is a whole number of keys, zero or more."""
    check_count("sinks", sinks)
    _check_countable("sinks", sinks)


def _check_countable(name: str, keys: int) -> None:
    if keys > MOST_KEYS:
        raise ValueError(f"{name}={keys} is above {MOST_KEYS}, the most that kernels count")


def check_positive(name: str, value: int) -> None:
    """Raise unless `value` is a whole number, one or more."""
    check_whole(name, value)
    if value < 1:
        raise ValueError(f"{name}={value} is not positive")


def check_count(name: str, value: int) -> None:
    """Raise unless `value` is a whole number, zero or more."""
    check_whole(name, value)
    if value < 0:
        raise ValueError(f"{name}={value} is negative")


def check_device_name(device: object) -> None:
    """Raise unless torch knows the device."""
    try:
        torch.device(device)  # type: ignore[call-overload]
    except (RuntimeError, TypeError):
        raise ValueError(
            f"device={quote(device)} is not a device of torch; pass one, as 'cpu' or 'cuda'"
        ) from None


def check_dropout(name: str, value: float) -> None:
    """Raise unless `value` is a probability."""
    check_number(name, value)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}={value} is not a probability between 0 and 1")


def check_tolerance(name: str, value: float) -> None:
    """Raise unless the tolerance is a number from 0 to below 1."""
    check_number(name, value)
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name}={value} is not in 0 <= tolerance < 1; 0 keeps windows exact")


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _check_device(name: str, x: Tensor, q: Tensor) -> None:
    if x.device != q.device:
        raise ValueError(f"{name} is on {x.device} and q is on {q.device}; move them to one device")


def _check_heads(name: str, x: Any, q: Tensor) -> None:
    """Raise unless `x` is `[batch, heads, length, width]`, of the type and on the device of `q`."""
    check_floats(name, x)
    if x.dim() != 4:
        raise ValueError(f"{name} has shape {list(x.shape)}, not [batch, heads, length, width]")
    if x.dtype != q.dtype:
        raise TypeError(f"{name} is {x.dtype} and q is {q.dtype}; pass both as one type")
    _check_device(name, x, q)


def _check_broadcast(name: str, x: Tensor, q: Tensor, dimensions: str, full: list[int]) -> None:
    _check_device(name, x, q)
    shape = list(x.shape)
    if len(shape) > len(full) or any(
        m != 1 and m != n for m, n in zip(shape[::-1], full[::-1], strict=False)
    ):
        raise ValueError(f"{name} has shape {shape}, which does not broadcast to {dimensions} = {full}")


def check_origin(origin: Tensor | None, q: Tensor, name: str = "segment_origin") -> None:
    """Raise unless the origin is one integer per sequence, on the device of `q`."""
    if origin is None:
        return
    check_positions(name, origin)
    if origin.dim() != 1 or origin.shape[0] != q.shape[0]:
        raise ValueError(f"{name} has shape {list(origin.shape)}, not [batch] = [{q.shape[0]}]")
    _check_device(name, origin, q)
