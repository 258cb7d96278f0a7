"""Add windows to transformers models, take them out, and say where they are."""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from diffwindow.attention.window import WindowAttention
from diffwindow.checks import check_module
from diffwindow.hf.attention import CHILD, IMPLEMENTATION, prepare_window, register, rotates
from diffwindow.hf.families import Place, attention_places, check_has_attention
from diffwindow.models import added_windows
from diffwindow.models.added_windows import (
    Layers,
    WindowInit,
    check_undistributed,
    pair_with_slots,
    window_plan,
)
from diffwindow.models.model import Model
from diffwindow.models.span_adapter import SpanAdapter, SpanSettings
from diffwindow.models.window_adapter import WindowAdapter
from diffwindow.notation import Attention, Plan

# The attribute of a model's config that says which windows it has: it is saved with the model.
RECORD = "diffwindow"
# Attributes of attention modules that change scores in ways that windows do not know.
SCORE_CHANGES = {"attn_logit_softcapping": "a cap on its scores", "sinks": "learned sinks"}
# What modules of positions are called that tell a query where it is: rotary, learned or sinusoidal.
POSITIONS = re.compile(r"(^|\.)(rotary_emb|wpe|embed_positions|position_embeddings)$")
# The windows that attention modules of transformers models have.
ADAPTERS = (WindowAdapter, SpanAdapter)
M = TypeVar("M", bound=nn.Module)
W = TypeVar("W", bound=nn.Module)
P = TypeVar("P", bound=PreTrainedModel)


def add_windows(
    model: M,
    attention: str | Plan,
    *,
    layers: Layers | None = None,
    boundary_dim: int | None = None,
    window_tolerance: float = 0.0,
    init: WindowInit = "identity",
) -> M:
    """Add windows to a pretrained model in place, and return it.

    `attention` is a notation, as "Enc(AW)-Cr(AW,Seg)-Dec(MW)"; `layers` and `boundary_dim` hold for its terms
    that do not name their own. `window_tolerance` sets all windows to 0 where they are below. With
    `init="identity"` the outputs do not change until training opens the windows; `init="paper"` starts at
    random. Models of `torch.nn` and of ours are taken as well: see
    `diffwindow.models.added_windows`.
    """
    check_unwrapped(model)
    if not isinstance(model, PreTrainedModel):
        return added_windows.add_windows(
            model,
            attention,
            layers=layers,
            boundary_dim=boundary_dim,
            window_tolerance=window_tolerance,
            init=init,
        )
    plan = window_plan(attention, layers=layers, boundary_dim=boundary_dim, init=init)
    check_can_add(model)
    # all are built before the first one is put in place: an error leaves the model as it was
    built = []
    for place, chosen in pair_with_slots(plan, attention_places(model)):
        check_place(place, _moving(chosen))
        window = WindowAdapter(
            chosen, place.num_heads, place.head_dim, window_tolerance=window_tolerance, init=init
        )
        built.append((place.module, _like(window, place.module, model)))
    install(model, built, {"plan": str(plan), "init": init, "window_tolerance": window_tolerance})
    return model


def add_spans(model: P, settings: SpanSettings) -> P:
    """Add fitted windows to a causal model in place, over everything until their parameters are set."""
    built = []
    for place in causal_places(model):
        window = SpanAdapter(settings, place.num_heads, place.num_groups, place.head_dim)
        window.reset_parameters()
        # in half precision close choices would change places
        built.append((place.module, _like(window, place.module, model).float()))
    install(model, built, settings.model_dump())
    return model


def causal_places(model: nn.Module) -> list[Place]:
    """Return the attentions of a causal language model; raise if its windows could not end at the query."""
    check_unwrapped(model)
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"a {name} is not a transformers model; add_windows adds windows to it")
    check_can_add(model)
    places = attention_places(model)
    if places["Enc"] or places["Cr"] or not model.can_generate():
        raise ValueError(
            f"{name} is not a causal language model; fit_windows takes one that reads from left to right "
            "alone, as Llama or GPT-2"
        )
    named = any(POSITIONS.search(module) for module, _ in model.named_modules())
    if not (named and any(rotates(place.module) for place in places["Dec"])):
        raise ValueError(
            f"{name} has neither rotary nor absolute positions, which windows that end at the query need; "
            "choose another model"
        )
    for place in places["Dec"]:
        check_place(place, {"the first keys": "choose another model"})
    return places["Dec"]


def check_can_add(model: PreTrainedModel) -> None:
    """Raise unless a model has attention that takes windows, and none yet."""
    if any(_windows(model)):
        raise ValueError(f"{type(model).__name__} has windows already; remove_windows takes them out")
    check_has_attention(model)
    if not model._can_set_attn_implementation():
        raise ValueError(
            f"{type(model).__name__} does not call its attention through transformers' attention interface; "
            "to take windows, its modules have to use ALL_ATTENTION_FUNCTIONS.get_interface, as Bert's do"
        )


def install(
    model: PreTrainedModel, built: Sequence[tuple[nn.Module, nn.Module]], record: dict[str, Any]
) -> None:
    """Put windows into attention modules, and let these call them; the record is saved with the model."""
    for module, window in built:
        module.add_module(CHILD, window)
        module.register_forward_pre_hook(prepare_window, with_kwargs=True)
    _restore_configs(model)
    before = {name: config._attn_implementation for name, config in _configs(model)}
    setattr(model.config, RECORD, {**record, "before": before})
    register()
    model.set_attn_implementation(IMPLEMENTATION)
    # parts of a model may keep configs of their own
    for _, config in _configs(model):
        config._attn_implementation = IMPLEMENTATION


def remove_windows(model: M) -> M:
    """Take all windows out of a model in place, and return it; what is left is the stock model."""
    check_unwrapped(model)
    if not isinstance(model, PreTrainedModel):
        return added_windows.remove_windows(model)
    for module in [module for _, module, _ in _windows(model)]:
        delattr(module, CHILD)
        hooks = module._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if hook is prepare_window]:
            del hooks[key], module._forward_pre_hooks_with_kwargs[key]
    _restore_configs(model)
    return model


def freeze_base(model: M) -> M:
    """Leave only the windows of a transformers model to be trained, and return the model."""
    check_unwrapped(model)
    windows = [window for _, _, window in _windows(model)]
    if any(isinstance(window, SpanAdapter) for window in windows):
        raise ValueError(
            "fitted windows have nothing that gradients could train; fit_windows fits them again, and "
            "model.requires_grad_(False) freezes the base"
        )
    if not windows:
        raise ValueError(
            f"{type(model).__name__} has no windows that can be trained alone; add_windows adds them to a "
            "transformers model"
        )
    model.requires_grad_(False)
    for window in windows:
        window.requires_grad_(True)
    return model


@dataclass(frozen=True)
class WindowRow:
    """A window of a model; `width` is the mean number of keys in it in the last forward pass, if any."""

    name: str
    attention: str
    parameters: int
    width: float | None


@dataclass(frozen=True)
class WindowTable:
    """The windows of a model; print it. `lost` is the plan of windows that were not loaded with the model."""

    rows: tuple[WindowRow, ...]
    lost: str | None = None

    @property
    def parameters(self) -> int:
        """Count the parameters of all windows."""
        return sum(row.parameters for row in self.rows)

    def __str__(self) -> str:
        if self.lost is not None:
            return f"no windows, but the model was saved with {self.lost}; load_windows puts them back"
        if not self.rows:
            return "no windows"
        cells = [("attention module", "window", "parameters", "mean width")]
        for row in self.rows:
            width = "-" if row.width is None else f"{row.width:.1f}"
            cells.append((row.name, row.attention, f"{row.parameters:,}", width))
        first, second = (max(len(line[column]) for line in cells) for column in (0, 1))
        lines = [f"{a:<{first}}  {b:<{second}}  {c:>10}  {d:>10}" for a, b, c, d in cells]
        return "\n".join([*lines, f"{self.parameters:,} parameters in {len(self.rows)} windows"])


def windows_of(model: nn.Module) -> WindowTable:
    """List the windows of a model; print the result.

    Widths are those of the last forward pass, over heads and up to 16 queries of its first sequence. The
    steps of `generate`, of one token each, do not count.
    """
    check_module("model", model)
    rows = [
        WindowRow(
            name.removesuffix(f".{CHILD}"),
            str(window.attention),
            sum(p.numel() for p in window.parameters()),
            window.mean_width(),
        )
        for name, window in model.named_modules()
        # PEFT keeps a copy of what it trains
        if isinstance(window, ADAPTERS) and "original_module" not in name
    ]
    for name, module in model.named_modules():
        if isinstance(module, WindowAttention):
            size = sum(p.numel() for p in module.parameters())
            plain = 4 * module.embed_dim * (module.embed_dim + (module.in_proj.bias is not None))
            rows.append(WindowRow(name, module.kind, size - plain, None))
    record = getattr(getattr(model, "config", None), RECORD, None)
    return WindowTable(tuple(rows), None if rows or record is None else describe_record(record))


def describe_record(record: Mapping[str, Any]) -> str:
    """Name the windows that a model was saved with."""
    return str(record["plan"]) if "plan" in record else str(SpanSettings.model_validate(record))


def _windows(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    """Yield the name of each attention module with a window, the module, and the window."""
    for name, module in model.named_modules():
        window = getattr(module, CHILD, None)
        if isinstance(window, nn.Module):
            yield name, module, window


def check_unwrapped(model: nn.Module) -> None:
    """Raise for no model, or one that PEFT, torch.compile, `as_transformers` or the like has wrapped."""
    check_module("model", model)
    check_undistributed(model)
    if isinstance(getattr(model, "model", None), Model):
        raise ValueError(f"{type(model).__name__} wraps a model of ours; its windows are those of `.model`")
    for name, module in model.named_modules():
        if isinstance(module, ADAPTERS) and not name.endswith(CHILD):
            raise ValueError(
                f"PEFT trains a copy of {name.partition(f'.{CHILD}')[0]}; call merge_and_unload() first"
            )
        if isinstance(module, PreTrainedModel) and not isinstance(model, PreTrainedModel):
            raise ValueError(
                f"{type(model).__name__} wraps a {type(module).__name__}; give the model itself, not wrapped"
            )


def _configs(model: PreTrainedModel) -> Iterator[tuple[str, PreTrainedConfig]]:
    """Yield the configs that a model and its parts hold, each once, with the name of the attribute."""
    seen = set()
    for module_name, module in model.named_modules():
        for name, config in vars(module).items():
            waiting = [(f"{module_name}.{name}".removeprefix("."), config)]
            while waiting:
                path, config = waiting.pop(0)
                if isinstance(config, PreTrainedConfig) and id(config) not in seen:
                    seen.add(id(config))
                    yield path, config
                    waiting += [(f"{path}.{key}", getattr(config, key, None)) for key in config.sub_configs]


def _restore_configs(model: PreTrainedModel) -> None:
    """Give a model configs of its own, with the attention that they had before windows.

    Other models may have been built on the same objects, and this one on those of a model with windows.
    """
    copies: dict[int, Any] = {}
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, PreTrainedConfig):
                setattr(module, name, copy.deepcopy(value, copies))
    configs = list(_configs(model))
    before = []
    for owner, record in ((name, vars(config).pop(RECORD, None)) for name, config in configs):
        if record is not None:
            # windows may have been added to a part of the model
            part = owner.removesuffix("config")
            before += [
                (config, record["before"].get(name.removeprefix(part), record["before"]["config"]))
                for name, config in configs
                if name.startswith(part) and config._attn_implementation == IMPLEMENTATION
            ]
    # parents come first: setting the implementation of a config sets those inside it, too
    for config, implementation in before:
        config._attn_implementation = implementation


def check_place(place: Place, moving: Mapping[str, str]) -> None:
    """Raise for an attention that does more to its scores, or to its keys, than windows know.

    `moving` names what keys that slide would take along, and the fix.
    """
    for name, meaning in SCORE_CHANGES.items():
        if getattr(place.module, name, None) is not None:
            raise ValueError(
                f"{place.name} ({type(place.module).__name__}) has {meaning} ({name}), which windows do not "
                "support; choose other layers or another model"
            )
    config = getattr(place.module, "config", None)
    sliding = getattr(place.module, "sliding_window", getattr(config, "sliding_window", None))
    for what, fix in moving.items():
        if sliding is not None:
            raise ValueError(
                f"{place.name} has a sliding window of {sliding} keys, along which {what} would move; {fix}"
            )


def _moving(chosen: Attention) -> dict[str, str]:
    """Return what of a window is counted from the first key."""
    options = {
        "segments": ("leave out Seg", chosen.segment_size > 1),
        "sinks": ("leave out Sink", chosen.sinks > 0),
    }
    return {what: fix for what, (fix, wanted) in options.items() if wanted}


def _like(window: W, module: nn.Module, model: PreTrainedModel) -> W:
    """Put a window on the device of its attention module, in its type and mode."""
    weights = [p for p in module.parameters() if p.is_floating_point()]
    like: Any = weights[0] if weights else cast(Any, model)
    # a model on the meta device that was not dispatched will get its weights later
    offloaded = hasattr(model, "hf_device_map") or any(not p.is_meta for p in model.parameters())
    if like.device.type == "meta" and offloaded:
        raise ValueError(
            f"the weights of a {type(module).__name__} are offloaded; load the model without offloading "
            "to add windows"
        )
    # weights of a byte are for products alone, and cannot be trained
    dtype = like.dtype if like.dtype.itemsize > 1 else model.dtype
    return window.to(device=like.device, dtype=dtype).train(module.training)
