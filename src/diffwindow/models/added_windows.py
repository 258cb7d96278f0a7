"""Add windows to models that were trained without them: our own plain models, and those of `torch.nn`.

Weights are kept. With `init="identity"` outputs stay what they were until training opens the windows.
"""

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diffwindow.attention.kinds import WINDOWED
from diffwindow.attention.plain import GlobalAttention
from diffwindow.attention.window import WindowAttention
from diffwindow.checks import check_module, check_positive
from diffwindow.messages import check_choice
from diffwindow.models.model import Model
from diffwindow.notation import KINDS, Attention, Plan, Role, parse_attention

WindowInit = Literal["identity", "paper"]
WINDOW_INITS: tuple[str, ...] = get_args(WindowInit)
Layers = tuple[int, int] | Literal["all"]
M = TypeVar("M", bound=nn.Module)
S = TypeVar("S")
Slot = tuple[nn.Module, str]


def add_windows(
    model: M,
    attention: str | Plan,
    *,
    layers: Layers | None = None,
    boundary_dim: int | None = None,
    window_tolerance: float = 0.0,
    init: WindowInit = "identity",
) -> M:
    """Add windows to a plain model in place and return it; a single MultiheadAttention gives a new module.

    `attention` is a notation; `layers` and `boundary_dim` hold for its terms that do not name their own.
    `window_tolerance` sets all windows to 0 where they are below.
    With `init="identity"` the outputs are those of the plain model: the queries of an additive window's local
    score start at zero, and a multiplicative window has a gate, which starts at 0. `init="paper"` starts as
    the paper does, at random. The model is one of ours, a `torch.nn.MultiheadAttention`, or any module that
    holds layers of `torch.nn.TransformerEncoder` or `torch.nn.TransformerDecoder`. The projections of a
    window are one parameter, which is trained also where that of the plain attention was frozen.

    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2).eval()
    >>> x = torch.randn(3, 5, 8)
    >>> before = encoder(x)
    >>> bool(torch.allclose(add_windows(encoder, "Enc(AW)")(x), before, atol=1e-5))
    True
    """
    check_module("model", model)
    check_undistributed(model)
    plan = window_plan(attention, layers=layers, boundary_dim=boundary_dim, init=init)
    if isinstance(model, nn.MultiheadAttention):
        if len(plan.terms) != 1:
            raise ValueError(f"{plan} has {len(plan.terms)} terms; a single attention takes one, as Enc(AW)")
        return _build_window(model, plan.terms[0].attention, window_tolerance, init)  # type: ignore[return-value]
    if isinstance(model, Model):
        if model.config.plan.terms:
            raise ValueError(
                f"the model has attention={model.config.attention!r}; windows are added to a plain model, "
                "which remove_windows gives back if these are windows"
            )
        # the config checks roles, layers and widths
        config = type(model.config)(
            **model.config.model_dump() | {"attention": str(plan), "window_tolerance": window_tolerance}
        )
    # all are built before the first one is put in place: an error leaves the model as it was
    built = [
        (parent, name, _build_window(getattr(parent, name), chosen, window_tolerance, init))
        for (parent, name), chosen in pair_with_slots(plan, _slots(model))
    ]
    for parent, name, window in built:
        setattr(parent, name, window)
    for encoder in _windowed_encoders(model):
        # torch would give the layers nested tensors, if the first one is plain
        encoder.use_nested_tensor = False
    if isinstance(model, Model):
        model.config = config
    return model


def remove_windows(model: M) -> M:
    """Drop a model's windows in place, and return it; a single WindowAttention returns a plain module.

    What is left are the weights of the scores, the values and the output, as they are now. A model of ours
    gets its plain attention back, others `torch.nn.MultiheadAttention`.
    """
    check_module("model", model)
    check_undistributed(model)
    if isinstance(model, WindowAttention):
        return _as_multihead(model)  # type: ignore[return-value]
    ours = isinstance(model, Model)
    encoders = _windowed_encoders(model)
    for slots in _slots(model).values():
        for parent, name in slots:
            module = getattr(parent, name)
            if isinstance(module, WindowAttention):
                setattr(parent, name, _as_global(module) if ours else _as_multihead(module))
    for encoder in encoders:
        encoder.use_nested_tensor = encoder.enable_nested_tensor and _can_nest(encoder.layers[0])
    if isinstance(model, Model):
        kept = Plan(tuple(term for term in model.config.plan.terms if term.attention.kind not in WINDOWED))
        model.config = model.config.model_copy(update={"attention": str(kept)})
    return model


def check_undistributed(model: nn.Module) -> None:
    """Raise if several processes train a model already, by DDP, FSDP of either kind or tensor parallelism."""
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise ValueError(
            "the model is in DistributedDataParallel; add or remove windows first, and call "
            "DistributedDataParallel or accelerate's prepare after that"
        )
    # without these modules nothing is sharded, and their import takes long
    tensor, fsdp = (sys.modules.get(f"torch.distributed.{name}") for name in ("tensor", "fsdp"))
    if (tensor and any(isinstance(parameter, tensor.DTensor) for parameter in model.parameters())) or (
        fsdp and any(isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules())
    ):
        raise ValueError(
            f"{type(model).__name__} is sharded; add or remove windows first, and shard it after that, with "
            "fully_shard or accelerate's prepare"
        )


def window_plan(
    attention: str | Plan, *, layers: Layers | None, boundary_dim: int | None, init: WindowInit
) -> Plan:
    """Read which windows to add where, with defaults for the terms that do not name layers or a width.

    >>> str(window_plan("Enc(AW)-Dec(MW)@2", layers="all", boundary_dim=8, init="identity"))
    'Enc(AW,Dim=8)@all-Dec(MW,Dim=8,Gate)@2'
    """
    check_choice("init", init, WINDOW_INITS)
    if boundary_dim is not None:
        check_positive("boundary_dim", boundary_dim)
    plan = attention if isinstance(attention, Plan) else parse_attention(attention)
    if not plan.terms:
        raise ValueError(f"{plan} names no window; name one, as Enc(AW)")
    terms = []
    for term in plan.terms:
        if term.attention.kind not in WINDOWED:
            meaning = KINDS[term.attention.kind].meaning
            raise ValueError(f"{term} is {meaning}; only AW and MW can be added to a trained model")
        if term.attention.relative_size is not None:
            raise ValueError(f"{term} has relative positions; they cannot be added to a trained model")
        if term.attention.phrases is not None:
            raise ValueError(f"{term} has phrases, which a trained model is not given; leave Phr out")
        width = term.attention.boundary_dim or boundary_dim
        # an additive window starts without effect, by its local score
        gate = term.attention.gate or (init == "identity" and term.attention.kind == "MW")
        chosen = replace(term.attention, boundary_dim=width, gate=gate)
        terms.append(replace(term, attention=chosen, layers=term.layers or layers))
    return Plan(tuple(terms))


def pair_with_slots(plan: Plan, slots: Mapping[Role, Sequence[S]]) -> list[tuple[S, Attention]]:
    """Pair the windows that a plan names with their places; a role that is not there is an error."""
    for term in plan.terms:
        if not slots.get(term.role):
            roles = " and ".join(role for role in slots if slots[role])
            raise ValueError(f"{term} is for a role that this model does not have; it has {roles}")
    return [
        (slot, chosen)
        for role, places in slots.items()
        for slot, chosen in zip(places, plan.attentions(role, len(places)), strict=True)
        if chosen.kind in WINDOWED
    ]


def _slots(model: nn.Module) -> dict[Role, list[Slot]]:
    """Find where a model keeps its attentions, by role and in the order of the layers."""
    if isinstance(model, Model):
        return {
            role: [(block, "attention") for block in blocks]
            for role, blocks in model.attention_blocks().items()
        }
    slots: dict[Role, list[Slot]] = {"Enc": [], "Cr": [], "Dec": []}
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            slots["Enc"].append((module, "self_attn"))
        elif isinstance(module, nn.TransformerDecoderLayer):
            slots["Dec"].append((module, "self_attn"))
            slots["Cr"].append((module, "multihead_attn"))
    if not any(slots.values()):
        raise ValueError(
            f"{type(model).__name__} has no layers of torch.nn.TransformerEncoder or TransformerDecoder; "
            "for a transformers model use diffwindow.hf, for a single attention the attention itself"
        )
    return slots


def _windowed_encoders(model: nn.Module) -> list[nn.TransformerEncoder]:
    encoders = [module for module in model.modules() if isinstance(module, nn.TransformerEncoder)]
    return [one for one in encoders if any(isinstance(part, WindowAttention) for part in one.modules())]


def _can_nest(layer: nn.Module) -> bool:
    """Ask torch's constructor, which warns if it does not, whether it gives such layers nested tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.TransformerEncoder(layer, 0).use_nested_tensor  # type: ignore[arg-type]


def _build_window(
    plain: nn.Module, chosen: Attention, window_tolerance: float, init: WindowInit
) -> WindowAttention:
    """Build a window attention with the weights of a plain one, on its device and in its mode."""
    if not isinstance(plain, GlobalAttention | nn.MultiheadAttention):
        raise ValueError(f"windows are added to plain attention, not to {type(plain).__name__}")
    weight, bias, out_proj, batch_first = _plain_weights(plain)
    window = WindowAttention(
        plain.embed_dim,
        plain.num_heads,
        window=WINDOWED[chosen.kind],
        window_tolerance=window_tolerance,
        dropout=plain.dropout,
        bias=bias is not None,
        batch_first=batch_first,
        device=weight.device,
        dtype=weight.dtype,
        **chosen.arguments(),
    )
    with torch.no_grad():
        for stacked, source in ((window.in_proj.weight, weight), (window.in_proj.bias, bias)):
            if source is not None:
                for rows, block in zip(window.plain_rows(), source.chunk(3), strict=True):
                    stacked[rows] = block
                if init == "identity":
                    stacked[window.local_query_rows()] = 0
    _copy_layer(out_proj, window.out_proj)
    if isinstance(plain, GlobalAttention) and plain.rotary is not None:
        window.use_rotary(plain.rotary)
    return window.train(plain.training)


def _plain_weights(
    plain: GlobalAttention | nn.MultiheadAttention,
) -> tuple[Tensor, Tensor | None, nn.Linear, bool]:
    """Return the stacked weight and bias of queries, keys and values, the output layer, and the layout."""
    if isinstance(plain, GlobalAttention):
        return plain.in_proj.weight, plain.in_proj.bias, plain.out_proj, True
    if not plain._qkv_same_embed_dim or plain.bias_k is not None or plain.add_zero_attn:
        raise ValueError(
            "windows cannot be added to a MultiheadAttention with kdim, vdim, add_bias_kv or add_zero_attn"
        )
    return plain.in_proj_weight, plain.in_proj_bias, plain.out_proj, plain.batch_first


def _as_global(window: WindowAttention) -> GlobalAttention:
    state = _plain_stack(window)
    bias = "bias" in state
    plain = GlobalAttention(window.embed_dim, window.num_heads, dropout=window.dropout, bias=bias)
    plain.to(state["weight"])
    plain.in_proj.load_state_dict(state)
    _copy_layer(window.out_proj, plain.out_proj)
    if window.rotary is not None:
        plain.use_rotary(window.rotary)
    return plain.train(window.training)


def _as_multihead(window: WindowAttention) -> nn.MultiheadAttention:
    state = _plain_stack(window)
    if window.rotary is not None:
        raise ValueError("torch.nn.MultiheadAttention has no rotary positions, and the window has")
    plain = nn.MultiheadAttention(
        window.embed_dim,
        window.num_heads,
        dropout=window.dropout,
        bias="bias" in state,
        batch_first=window.batch_first,
        device=state["weight"].device,
        dtype=state["weight"].dtype,
    )
    plain.load_state_dict({f"in_proj_{name}": x for name, x in state.items()}, strict=False)
    _copy_layer(window.out_proj, plain.out_proj)
    return plain.train(window.training)


def _copy_layer(source: nn.Linear, target: nn.Linear) -> None:
    target.load_state_dict(source.state_dict())
    for name, parameter in source.named_parameters():
        target.get_parameter(name).requires_grad_(parameter.requires_grad)


def _plain_stack(window: WindowAttention) -> dict[str, Tensor]:
    """Return what a plain attention keeps of a window's stacked weight and bias."""
    if window.relative_size is not None:
        raise ValueError("the window has relative positions (Dist), which would be lost with it; keep it")
    stacked = {"weight": window.in_proj.weight, "bias": window.in_proj.bias}
    blocks = {name: [x[rows] for rows in window.plain_rows()] for name, x in stacked.items() if x is not None}
    return {name: torch.cat(of_name) for name, of_name in blocks.items()}
