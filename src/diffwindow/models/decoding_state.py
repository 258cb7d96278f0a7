"""DecodingState: what a model keeps of the sentences and hypotheses that it is decoding.

Shapes: s sentences, w hypotheses of each.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from diffwindow.attention.cache import KeyCache
from diffwindow.attention.visibility import EVERYTHING, Visibility, padded_visibility


@dataclass
class DecodingState:
    """The keys of all prefixes and sources; `step` and `select` change it in place.

    `caches` has one stacked key tensor per layer with a row for each hypothesis, those of a sentence side by
    side. `memory` has the source's projected keys for each layer, once per sentence. `origin` is the first
    real token of each row's prompt, None if no prompt is padded. `writers` names the row that wrote each key,
    up to the last selection: hypotheses that go back to one row have the same keys.
    """

    caches: list[KeyCache]
    num_sentences: int
    num_hypotheses: int = 1
    memory: list[Tensor] = field(default_factory=list)
    memory_visibility: Visibility = EVERYTHING
    origin: Int[Tensor, " rows"] | None = None
    writers: Int[Tensor, "rows k"] | None = None

    @property
    def length(self) -> int:
        """Return the number of tokens that each prefix has, padding included."""
        return self.caches[0].length

    def visibility(self) -> Visibility:
        """Return what the next token of every hypothesis sees: its prefix and itself, not the padding."""
        if self.origin is None:
            return EVERYTHING
        key = torch.arange(self.length + 1, device=self.origin.device)
        return padded_visibility(key >= self.origin[:, None])

    def positions(self, tokens: Int[Tensor, "s w"]) -> Int[Tensor, "s w"]:
        """Return the positions of the next tokens, counted from the first real token of each row."""
        if tokens.shape != (self.num_sentences, self.num_hypotheses):
            raise ValueError(
                f"tokens have shape {list(tokens.shape)}, but the state has {self.num_sentences} sentences "
                f"with {self.num_hypotheses} hypotheses; pass one token for each"
            )
        lengths = torch.full_like(tokens, self.length)
        return lengths if self.origin is None else lengths - self.origin.view_as(lengths)

    def select(self, sentences: Int[Tensor, " s2"], hypotheses: Int[Tensor, "s2 w2"]) -> None:
        """Keep these sentences and, of each, these hypotheses in this order (an index may repeat)."""
        rows = (sentences[:, None] * self.num_hypotheses + hypotheses).flatten()
        self._select_keys(rows)
        if self.origin is not None:
            self.origin = self.origin[rows]
        if not torch.equal(sentences, torch.arange(self.num_sentences, device=sentences.device)):
            self.memory = [keys.index_select(0, sentences) for keys in self.memory]
            self.memory_visibility = self.memory_visibility.select(sentences)
        self.num_sentences, self.num_hypotheses = hypotheses.shape

    def _select_keys(self, rows: Int[Tensor, " rows2"]) -> None:
        """Keep these rows of the caches; if as many stay, move only the keys that a row does not have yet."""
        num_rows = self.num_sentences * self.num_hypotheses
        known = rows.new_empty(num_rows, 0) if self.writers is None else self.writers
        own = torch.arange(num_rows, device=rows.device)[:, None]
        writers = torch.cat([known, own.expand(-1, self.length - known.shape[1])], dim=1)
        self.writers = writers[rows]
        if len(rows) != num_rows:
            for cache in self.caches:
                cache.select(rows)
            return
        row, place = (self.writers != writers).nonzero(as_tuple=True)
        for cache in self.caches:
            cache.move(row, rows[row], place)
