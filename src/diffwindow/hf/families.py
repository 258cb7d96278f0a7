"""Where families of transformers models keep their attention modules, and which role each has."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from diffwindow.notation import Role


@dataclass(frozen=True)
class Family:
    """The ends of the names that a family's attention modules have, as `model.named_modules()` gives them."""

    self_attention: str
    cross_attention: str | None = None


# By `config.model_type`. A self-attention is Dec where it is causal, otherwise Enc.
FAMILIES: dict[str, Family] = {
    "bert": Family("attention.self", "crossattention.self"),
    "roberta": Family("attention.self", "crossattention.self"),
    "electra": Family("attention.self", "crossattention.self"),
    "distilbert": Family("attention"),
    "gpt2": Family("attn", "crossattention"),
    "llama": Family("self_attn"),
    "mistral": Family("self_attn"),
    "qwen2": Family("self_attn"),
    "qwen3": Family("self_attn"),
    "bart": Family("self_attn", "encoder_attn"),
    "marian": Family("self_attn", "encoder_attn"),
    "m2m_100": Family("self_attn", "encoder_attn"),
    "t5": Family("SelfAttention", "EncDecAttention"),
    "vit": Family("attention"),
}
# What names of cross-attentions contain, for models that are not in the table.
CROSS_NAMES = ("cross", "encoder_attn", "encdec")
# What attention modules, or their configs, call the number of heads and the width of one.
NUM_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head")
HEAD_DIMS = ("qk_head_dim", "head_dim", "attention_head_size", "key_value_proj_dim")


@dataclass(frozen=True)
class Place:
    """An attention module of a model: its name, and the shape of its heads; groups of them share keys."""

    name: str
    module: nn.Module
    num_heads: int
    head_dim: int
    num_groups: int


def attention_places(model: nn.Module) -> dict[Role, list[Place]]:
    """Find the attention modules of a model by role, in the order of the layers.

    A model whose type is not in `FAMILIES` is searched for modules with the marks of the attention
    interface: a `config` and `is_causal`.
    """
    model_type = str(getattr(getattr(model, "config", None), "model_type", None))
    places: dict[Role, list[Place]] = {"Enc": [], "Cr": [], "Dec": []}
    for name, module, is_cross in _attentions(model, FAMILIES.get(model_type)):
        role: Role = "Cr" if is_cross else "Dec" if _is_causal(module) else "Enc"
        places[role].append(Place(name, module, *_head_shape(name, module)))
    if not any(places.values()):
        raise ValueError(
            f"no attention was found in {type(model).__name__}, of type {model_type!r}; say where it is, as "
            f"diffwindow.hf.FAMILIES[{model_type!r}] = Family(self_attention='self_attn')"
        )
    return places


def check_has_attention(model: nn.Module) -> None:
    """Raise for a model without any attention, such as Mamba."""
    names = (f"{name} {type(module).__name__}".lower() for name, module in model.named_modules())
    if not any("attention" in name or "attn" in name for name in names):
        raise ValueError(f"{type(model).__name__} has no attention that windows could be added to")


def _attentions(model: nn.Module, family: Family | None) -> Iterator[tuple[str, nn.Module, bool]]:
    for name, module in model.named_modules():
        if family is None:
            if hasattr(module, "config") and isinstance(getattr(module, "is_causal", None), bool):
                yield name, module, any(part in name.lower().split(".", 1)[-1] for part in CROSS_NAMES)
        elif family.cross_attention is not None and _ends(name, family.cross_attention):
            yield name, module, True
        elif _ends(name, family.self_attention):
            yield name, module, False


def _ends(name: str, suffix: str) -> bool:
    return name == suffix or name.endswith(f".{suffix}")


def _is_causal(module: nn.Module) -> bool:
    causal = getattr(module, "is_causal", None)
    return bool(getattr(module, "is_decoder", False) if causal is None else causal)


def _head_shape(name: str, module: nn.Module) -> tuple[int, int, int]:
    """Return the number of heads, their width and how many share keys, from the module or its config."""
    config = getattr(module, "config", None)

    def find(attributes: tuple[str, ...]) -> int | None:
        values = (getattr(owner, key, None) for owner in (module, config) for key in attributes)
        return next((value for value in values if isinstance(value, int)), None)

    num_heads, head_dim = find(NUM_HEADS), find(HEAD_DIMS)
    if num_heads is not None and head_dim is None:
        width = find(("embed_dim", "hidden_size", "d_model"))
        head_dim = None if width is None else width // num_heads
    if num_heads is None or head_dim is None:
        raise ValueError(
            f"{name} ({type(module).__name__}) does not say how many heads it has and how wide they are; "
            f"give it the attributes {NUM_HEADS[0]} and {HEAD_DIMS[0]}"
        )
    return num_heads, head_dim, find(("num_key_value_heads",)) or num_heads
