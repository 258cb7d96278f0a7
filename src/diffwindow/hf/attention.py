"""Attention with windows as transformers calls it, and our stacked keys in its caches."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from diffwindow.attention.cache import KeyCache
from diffwindow.attention.visibility import split_float_mask
from diffwindow.hf.window_cache import WindowCache
from diffwindow.models.layers import TransformerStack


class LayerCache(KeyCache):
    """One layer of a transformers cache, which keeps our stacked keys as the keys of a single head."""

    def __init__(self, cache: Cache, layer: int) -> None:
        super().__init__()
        self.cache = cache
        self.layer = layer
        self.length = int(cache.get_seq_length(layer))

    def append(self, keys: Tensor) -> Tensor:
        """Add the keys of new tokens and return all that are kept."""
        heads = keys[:, None]
        # there are no values apart from the keys: a cache takes a width of zero
        kept: Tensor = self.cache.update(heads, heads[..., :0], self.layer)[0]
        self.length += keys.shape[1]
        # a static cache has room for more
        return kept[:, 0, : self.length]


def layer_caches(cache: Cache | None, decoder: TransformerStack) -> list[LayerCache]:
    """Return the cache of each layer; none without a cache."""
    if cache is None:
        return []
    if decoder.phrases is not None:
        raise ValueError(
            "the model learns phrases of what it writes, for which transformers' caches have no room; pass "
            "use_cache=False"
        )
    return [LayerCache(cache, layer) for layer in range(len(decoder.layers))]


IMPLEMENTATION = "diffwindow"
# The name of a window in its attention module.
CHILD = "added_window"
# Arguments of the interface that change the scores in ways that windows do not know.
UNSUPPORTED = ("softcap", "s_aux", "cache")


def register() -> None:
    """Make the implementation known to transformers; more than once does no harm."""
    AttentionInterface.register(IMPLEMENTATION, window_attention_forward)
    # Without a mask function of its own an implementation gets no causal mask.
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


# transformers passes what it likes beside these, and calls by keyword: hence the open signature
def window_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend through the window of a module that has one, with the call of the attention interface."""
    window = getattr(module, CHILD, None)
    if window is None:
        output: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal,
            position_bias=position_bias, **others,
        )  # fmt: skip
        return output
    for name in UNSUPPORTED:
        if others.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} passes {name}, which window attention does not support"
            )
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    causal = causal and attention_mask is None and query.shape[2] > 1
    if causal and key.shape[2] > query.shape[2]:
        # the first call with a static cache: what is behind the queries is not written yet
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
        position_bias = None if position_bias is None else position_bias[..., : query.shape[2]]
    mask, bias = _mask_and_bias(attention_mask, position_bias, key.shape[2])
    heads = window(
        query,
        key,
        value,
        attn_mask=mask,
        attn_bias=bias,
        is_causal=causal,
        scale=scaling,
        dropout_p=dropout,
    )
    return heads.transpose(1, 2).contiguous(), None


def rotates(module: nn.Module) -> bool:
    """Return whether an attention module uses the rotary positions that it gets; SmolLM3 leaves some out."""
    return bool(getattr(module, "use_rope", True))


def prepare_window(module: nn.Module, _: Any, call: dict[str, Any]) -> None:
    """Raise before a module with a window would attend without it, and tell spans the rotation: a hook."""
    config = getattr(module, "config", None)
    implementation = getattr(config, "_attn_implementation", IMPLEMENTATION)
    if implementation != IMPLEMENTATION:
        raise ValueError(
            f"{type(module).__name__} has a window, which attn_implementation={implementation!r} leaves out; "
            f"call model.set_attn_implementation({IMPLEMENTATION!r}), or remove_windows"
        )
    window = getattr(module, CHILD)
    if hasattr(window, "rotation"):
        window.rotation = call.get("position_embeddings") if rotates(module) else None
    cache = call.get("past_key_values")
    if isinstance(cache, WindowCache):
        cache.windows[int(cast(int, module.layer_idx))].note_padding(call.get("attention_mask"))


def _mask_and_bias(
    attention_mask: Tensor | None, position_bias: Tensor | None, num_keys: int
) -> tuple[Tensor | None, Tensor | None]:
    """Split what transformers passes into a boolean mask and a bias; a float mask may be both."""
    if attention_mask is None:
        return None, position_bias
    attention_mask = attention_mask[..., :num_keys]
    if attention_mask.dtype == torch.bool:
        return attention_mask, position_bias
    if not attention_mask.is_floating_point():
        raise TypeError(
            f"the mask of each query is {attention_mask.dtype}; pass booleans, True where it may look, or "
            "floats to add to the scores"
        )
    hides, added = split_float_mask(attention_mask)
    return ~hides, added if position_bias is None else added + position_bias
