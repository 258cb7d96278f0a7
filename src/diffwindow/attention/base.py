"""StackedAttention: what every multi-head attention here shares; Kind: how the notation names one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from diffwindow import functional
from diffwindow.attention.visibility import EVERYTHING, Visibility, rotate
from diffwindow.checks import check_bool, check_dropout, check_positive
from diffwindow.kernels import few_rows, stack
from diffwindow.kernels.int8 import Int8Linear
from diffwindow.messages import check_choice
from diffwindow.soft_window import Maps

Init = Literal["stacked", "separate"]
INITS: tuple[str, ...] = get_args(Init)
# what rotary positions rotate: the queries and keys of the scores, of a window's two pointers, or of both
Rotary = Literal["scores", "pointers", "both"]
ROTARY: tuple[str, ...] = get_args(Rotary)
# projected queries, and projected keys and values, stacked along the width
Queries = Float[Tensor, "b q queries"]
Keys = Float[Tensor, "b k keys"]
Role = Literal["Enc", "Cr", "Dec"]
ROLES: tuple[Role, ...] = get_args(Role)
SELF_ROLES: tuple[Role, ...] = ("Enc", "Dec")


class StackedAttention(nn.Module):
    """Multi-head attention with its projections in one matrix: the queries, the keys, then the values.

    `score_dims` are the head widths of the pairs of queries and keys that a kind compares: a plain attention
    has one pair, as wide as the values; a window has more. `key_extra` are the head widths of what a kind
    projects from keys alone. Projecting is apart from attending, so that a decoder can keep `project_keys` of
    its prefix, and of the source, and no kind of attention needs to know whether its keys are new or kept. In
    self-attention the queries are always the last of the keys, which is how a kind with relative positions
    knows where they stand.
    """

    # how `reset_parameters` initialises the stacked projection
    init: Init = "stacked"
    # the name in the notation, which `build_attention` sets
    kind: str = "Global"
    # which pairs are pointers and not scores
    pointer_pairs: tuple[int, ...] = ()
    # what rotary positions rotate in self-attention; None is no rotary positions
    rotary: Rotary | None = None
    # what a kind computes from the queries of the scores beside the scores, if anything
    from_queries: str | None = None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        score_dims: tuple[int, ...] | None = None,
        key_extra: tuple[int, ...] = (),
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_heads(embed_dim, num_heads)
        check_dropout("dropout", dropout)
        check_bool("bias", bias)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        # called before it attends, with itself, its projected queries and keys, and what they see
        self.watchers: tuple[Callable[[Any, Tensor, Tensor, Visibility], None], ...] = ()
        head_dim = embed_dim // num_heads
        self._query_dims = score_dims or (head_dim,)
        self._key_dims = (*self._query_dims, *key_extra, head_dim)
        self._query_width = num_heads * sum(self._query_dims)
        self._key_width = num_heads * sum(self._key_dims)
        self.in_proj = nn.Linear(embed_dim, self._query_width + self._key_width, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        # not that of a kind, whose own parameters are not there yet
        StackedAttention.reset_parameters(self)

    def __prepare_scriptable__(self) -> None:
        """Raise when torch.jit.script begins, which cannot compile all that is done here."""
        raise RuntimeError("torch.jit.script cannot compile our attention; use torch.export.export")

    def reset_parameters(self) -> None:
        """Initialise: Xavier-uniform weights and zero biases."""
        self.init_projections(self.init)
        nn.init.xavier_uniform_(self.out_proj.weight)
        for projection in (self.in_proj, self.out_proj):
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def init_projections(self, init: Init) -> None:
        """Initialise the stacked projection Xavier-uniform, as one matrix or block by block.

        As one matrix its weights are smaller, and windows start wider: √(6 / (d + 9d)) at most for an
        additive window of width d, against √(6 / 2d).
        """
        check_choice("init", init, INITS)
        self.init = init
        blocks = [dim * self.num_heads for dim in (*self._query_dims, *self._key_dims)]
        weight = self.in_proj.weight.detach()
        for block in weight.split(blocks) if init == "separate" else (weight,):
            nn.init.xavier_uniform_(block)

    def use_rotary(self, rotary: Rotary) -> None:
        """Turn on rotary positions in self-attention; a head that they rotate must have an even width."""
        check_choice("rotary", rotary, ROTARY)
        if self.from_queries and rotary != "pointers":
            raise ValueError(
                f"{self.from_queries} are computed from the queries, which rotary positions would rotate "
                "by their place; use other positions"
            )
        for pair in self._pairs_to_rotate(rotary):
            if self._query_dims[pair] % 2:
                what = "boundaries" if pair in self.pointer_pairs else "heads"
                raise ValueError(f"{what} are {self._query_dims[pair]} wide; rotary positions need pairs")
        self.rotary = rotary

    def plain_rows(self) -> tuple[slice, slice, slice]:
        """Return the rows of the stacked projection that a plain attention has: queries, keys and values."""
        first, last = self._query_width, self._query_width + self._key_width
        width = self.embed_dim
        return slice(0, width), slice(first, first + width), slice(last - width, last)

    def project_queries(self, query: Float[Tensor, "b q d"]) -> Float[Tensor, "b q stack"]:
        """Project queries for the scores, stacked along the width."""
        return self._project_rows(query, 0, self._query_width)

    def project_keys(
        self, key: Float[Tensor, "b k d"], value: Float[Tensor, "b k d"] | None = None
    ) -> Float[Tensor, "b k stack"]:
        """Project keys and values, stacked along the width: what a decoder caches. Values default to keys."""
        last = self._query_width + self._key_width
        if value is None or value is key:
            return self._project_rows(key, self._query_width, last)
        keys = self._project_rows(key, self._query_width, last - self.embed_dim)
        values = self._project_rows(value, last - self.embed_dim, last)
        return torch.cat([keys, values], dim=-1)

    def project_self(
        self, x: Float[Tensor, "b n d"], *, start: int = 0
    ) -> tuple[Float[Tensor, "b n queries"], Float[Tensor, "b n keys"]]:
        """Project a sequence that attends to itself, queries and keys, in one matrix product.

        `start` is the place of its first token, which rotary positions count from.
        """
        projected = few_rows.apply(self.in_proj, x)
        queries, keys = stack.split(projected, (self._query_width, self._key_width))
        return self._rotate(queries, self._query_dims, start), self._rotate(keys, self._key_dims, start)

    def attend(
        self, queries: Queries, keys: Keys, visibility: Visibility = EVERYTHING
    ) -> Float[Tensor, "b q d"]:
        """Attend with projected queries and keys, to what `visibility` shows.

        In self-attention the queries are the last of the keys.
        """
        self._call_watchers(queries, keys, visibility)
        return self._attend(queries, keys, visibility)

    def _call_watchers(self, queries: Tensor, keys: Tensor, visibility: Visibility) -> None:
        for watcher in self.watchers:
            watcher(self, queries, keys, visibility)

    def _attend(self, queries: Queries, keys: Keys, visibility: Visibility) -> Float[Tensor, "b q d"]:
        """Attend by the weights of `maps`; a kind that need not hold all weights has its own."""
        weights = self.maps(queries, keys, visibility).weights
        *_, v = self.key_heads(keys)
        return self._merge_heads(functional.attend(F.dropout(weights, self._active_dropout()), v))

    def maps(self, queries: Queries, keys: Keys, visibility: Visibility = EVERYTHING) -> Maps:
        """Return what `attend` does with these arguments, without dropout: weights and, if any, window."""
        raise NotImplementedError

    def _pairs_to_rotate(self, rotary: Rotary | None) -> list[int]:
        pairs = range(len(self._query_dims))
        return [x for x in pairs if rotary in ("pointers" if x in self.pointer_pairs else "scores", "both")]

    def _rotate(self, stacked: Tensor, dims: tuple[int, ...], start: int) -> Tensor:
        """Turn the queries or keys of a stack by their places; values stay as they are."""
        pairs = self._pairs_to_rotate(self.rotary)
        if not pairs:
            return stacked
        blocks = list(stack.split(stacked, [self.num_heads * dim for dim in dims]))
        for pair in pairs:
            heads = blocks[pair].unflatten(-1, (self.num_heads, -1))
            blocks[pair] = rotate(heads, start=start).flatten(-2)
        return torch.cat(blocks, dim=-1)

    def _project_rows(self, x: Tensor, first: int, last: int) -> Tensor:
        # A quantized or adapted layer may not compute with its weight, and hooks may set the weight first.
        layer: nn.Module = self.in_proj
        if type(layer) is Int8Linear:
            return layer.outputs(x, first, last)
        if not few_rows.is_plain(layer):
            projected: Tensor = layer(x)
            return projected[..., first:last]
        bias = layer.bias
        return few_rows.linear(x, layer.weight[first:last], None if bias is None else bias[first:last])

    def query_heads(self, queries: Queries) -> tuple[Tensor, ...]:
        """View projected queries as `[b h q e]` tensors, without a copy."""
        return _split_heads(queries, self._query_dims, self.num_heads)

    def key_heads(self, keys: Keys) -> tuple[Tensor, ...]:
        """View projected keys and values as `[b h k e]` tensors, without a copy; the values are the last."""
        return _split_heads(keys, self._key_dims, self.num_heads)

    def _merge_heads(self, heads: Float[Tensor, "b h q e"]) -> Float[Tensor, "b q d"]:
        return few_rows.apply(self.out_proj, heads.transpose(1, 2).flatten(2))

    def _active_dropout(self) -> float:
        return self.dropout if self.training else 0.0


@dataclass(frozen=True)
class Kind:
    """A kind of attention in the notation; `kinds.KINDS` lists all of them.

    `build` takes `embed_dim`, `num_heads`, `dropout`, `size` if the kind has one, whose default stands here,
    and the arguments of its `options`.
    """

    meaning: str
    build: Callable[..., StackedAttention]
    roles: tuple[Role, ...] = ROLES
    size: int | None = None
    options: tuple[str, ...] = ()


A = TypeVar("A", bound=StackedAttention)


@contextmanager
def watch(
    attentions: Sequence[A], watcher: Callable[[A, Tensor, Tensor, Visibility], None]
) -> Iterator[None]:
    """Call `watcher` before each of the attentions attends, with its projected queries and keys."""
    try:
        for attention in attentions:
            attention.watchers = (*attention.watchers, watcher)
        yield
    finally:
        # others may have come or gone in the meantime
        for attention in attentions:
            attention.watchers = tuple(one for one in attention.watchers if one is not watcher)


def check_heads(width: int, num_heads: int, *, name: str = "embed_dim") -> None:
    """Raise unless the width divides into heads."""
    check_positive(name, width)
    check_positive("num_heads", num_heads)
    if width % num_heads != 0:
        raise ValueError(f"{name}={width} is not divisible by num_heads={num_heads}")


def _split_heads(stacked: Tensor, dims: tuple[int, ...], num_heads: int) -> tuple[Tensor, ...]:
    blocks = stack.split(stacked, [num_heads * dim for dim in dims])
    batch, length, _ = stacked.shape
    # view, which takes less time than unflatten: a step of decoding splits many short stacks
    return tuple(
        block.view(batch, length, num_heads, dim).transpose(1, 2)
        for block, dim in zip(blocks, dims, strict=True)
    )
