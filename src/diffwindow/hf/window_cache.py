"""A cache of transformers that drops the keys and values that no later query reaches."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from diffwindow.attention.visibility import first_true
from diffwindow.models.span_adapter import SpanAdapter


class WindowLayer(CacheLayerMixin):
    """The keys and values of a layer that windows of fixed spans can still reach, group by group.

    A call gets tensors of the whole length, with zeros where entries were dropped: positions and masks are
    those of any other cache. What is kept between calls is the first keys and the last ones.
    """

    def __init__(self, spans: list[int | None], sinks: int) -> None:
        super().__init__()
        self.spans, self.sinks = spans, sinks
        self.padding = self.length = 0
        self.kept: list[tuple[Tensor, Tensor]] = []

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Start without entries."""
        self.kept = [
            (key_states[:, group, :0], value_states[:, group, :0]) for group in range(len(self.spans))
        ]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add the entries of new tokens, return all at their positions, and drop what is out of reach."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before, self.length = self.length, self.length + key_states.shape[2]
        dense = []
        for number, new in enumerate((key_states, value_states)):
            whole = new.new_zeros(*new.shape[:2], self.length, new.shape[3])
            whole[:, :, before:] = new
            for group, kept in enumerate(self.kept):
                whole[:, group, self._positions(group, before)] = kept[number]
            dense.append(whole)
        self.kept = [
            tuple(whole[:, group, self._positions(group, self.length)] for whole in dense)  # type: ignore[misc]
            for group in range(len(self.spans))
        ]
        return dense[0], dense[1]

    def _positions(self, group: int, length: int) -> Tensor:
        """Return the positions of a group's keys that a query after `length` keys sees."""
        span = self.spans[group]
        first = self.padding + self.sinks
        # the query itself is one of its span
        recent = 0 if span is None else max(length - span + 1, 0)
        if recent <= first:
            return torch.arange(length)
        return torch.cat([torch.arange(first), torch.arange(recent, length)])

    def note_padding(self, mask: Tensor | None) -> None:
        """Read from the mask of the first call where sequences start: their first keys are kept."""
        if self.length == 0 and mask is not None:
            visible = mask if mask.dtype == torch.bool else mask >= 0
            self.padding = int(first_true(visible.flatten(1, -2).any(1)).max())

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length and the offset of the keys of a call."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Return how many tokens were seen."""
        return self.length

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1

    def reset(self) -> None:
        """Forget everything."""
        self.kept, self.padding, self.length, self.is_initialized = [], 0, 0, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the sequences, for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence."""
        self.kept = [
            (keys.repeat_interleave(repeats, 0), values.repeat_interleave(repeats, 0))
            for keys, values in self.kept
        ]

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some of the sequences."""
        self.kept = [(keys[indices], values[indices]) for keys, values in self.kept]


class WindowCache(Cache):
    """A cache for a model whose fitted windows have one span for each group of heads that share keys.

    It keeps what windows can still reach, and changes no output. Pass a new one to each `generate`, as
    `model.generate(prompt, past_key_values=WindowCache(model))`. It saves memory, not time.

    Args:
        model: A model after `fit_windows(model, …, spans="head", per="kv_group")`.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        windows = [module for module in model.modules() if isinstance(module, SpanAdapter)]
        if not windows:
            raise ValueError(f"{type(model).__name__} has no fitted windows; fit_windows fits them")
        settings = windows[0].attention
        if (settings.spans, settings.per) != ("head", "kv_group"):
            raise ValueError(
                f"the windows are {settings}, which may still reach any key; a WindowCache needs those of "
                'fit_windows(…, spans="head", per="kv_group")'
            )
        self.windows = [WindowLayer(window.static_spans(), settings.sinks) for window in windows]
        super().__init__([*self.windows])

    @property
    def nbytes(self) -> int:
        """Return the bytes of all keys and values that are kept."""
        return sum(x.nbytes for layer in self.windows for pair in layer.kept for x in pair)
