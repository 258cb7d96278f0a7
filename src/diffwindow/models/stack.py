"""TransformerStack: embedded tokens through all layers of an encoder or a decoder, whole or step by step."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import cast

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from diffwindow.attention.key_cache import KeyCache
from diffwindow.attention.stacked_attention import Maps, StackedAttention
from diffwindow.attention.visibility import EVERYTHING, Visibility
from diffwindow.attention.watching import watched
from diffwindow.layers.transformer import AttentionBlock, LayerOptions, TransformerLayer
from diffwindow.models.decoding_state import DecodingState
from diffwindow.notation import Attention, Role

AttentionMaps = dict[Role, tuple[Maps, ...]]


class TransformerStack(nn.Module):
    """Layers one above the other; "pre" normalisation ends with a norm, the paper's "post" does not."""

    def __init__(
        self,
        options: LayerOptions,
        self_attentions: Sequence[Attention],
        cross_attentions: Sequence[Attention] | None = None,
    ) -> None:
        super().__init__()
        crosses: Sequence[Attention | None] = cross_attentions or [None] * len(self_attentions)
        self.layers = nn.ModuleList(
            TransformerLayer(options, attention, cross)
            for attention, cross in zip(self_attentions, crosses, strict=True)
        )
        self.norm = nn.LayerNorm(options.embed_dim) if options.norm == "pre" else None
        self.dropout = options.dropout

    def forward(
        self,
        x: Float[Tensor, "rows q d"],
        visibility: Visibility,
        *,
        memory: Sequence[Float[Tensor, "b k _"]] = (),
        memory_visibility: Visibility = EVERYTHING,
        caches: Sequence[KeyCache] = (),
    ) -> Float[Tensor, "rows q d"]:
        """Run all layers, each with its projected `memory` and its cache where there are any."""
        x = F.dropout(x, self.dropout, training=self.training)
        for index, layer in enumerate(self.layers):
            x = layer(
                x,
                visibility,
                memory=memory[index] if memory else None,
                memory_visibility=memory_visibility,
                cache=caches[index] if caches else None,
            )
        return x if self.norm is None else self.norm(x)

    def step(self, x: Float[Tensor, "s w d"], state: DecodingState) -> Float[Tensor, "s w d"]:
        """Run the next token of each hypothesis, and keep its keys in `state`."""
        rows = x.view(-1, 1, x.shape[-1])
        output: Tensor = self(
            rows,
            state.visibility(),
            memory=state.memory,
            memory_visibility=state.memory_visibility,
            caches=state.caches,
        )
        return output.view_as(x)

    def project_memory(self, encoded: Float[Tensor, "b k d"]) -> list[Float[Tensor, "b k _"]]:
        """Project the output of an encoder to the keys of each layer's cross-attention."""
        return [block.attention.project_keys(encoded) for block in self.cross_blocks()]

    def self_blocks(self) -> list[AttentionBlock]:
        """Return the self-attention of each layer."""
        return [cast(TransformerLayer, layer).self_attention for layer in self.layers]

    def cross_blocks(self) -> list[AttentionBlock]:
        """Return the cross-attention of each layer that has one."""
        blocks = [cast(TransformerLayer, layer).cross_attention for layer in self.layers]
        return [block for block in blocks if block is not None]


@contextmanager
def recorded(blocks: Mapping[Role, Sequence[AttentionBlock]]) -> Iterator[dict[Role, list[Maps]]]:
    """Collect the maps of each block, by role and in the order of the layers, while the context runs."""
    maps: dict[Role, list[Maps]] = {role: [] for role in blocks}
    with ExitStack() as stack:
        for role, of_role in blocks.items():
            attentions = [block.attention for block in of_role]
            stack.enter_context(watched(attentions, partial(_record, maps[role])))
        yield maps


def _record(
    into: list[Maps], attention: StackedAttention, queries: Tensor, keys: Tensor, visibility: Visibility
) -> None:
    into.append(attention.maps(queries, keys, visibility))
