"""Language modelling: text of a store, by row or in blocks, and the LanguageModel trained on it."""

from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor, nn

from diffwindow.data.batching import collate, collate_blocks, shift_right
from diffwindow.models.language_model import LanguageModel, LanguageModelConfig
from diffwindow.progress import SILENT, Progress
from diffwindow.special_tokens import PAD
from diffwindow.tasks.metrics import count_words, word_perplexity
from diffwindow.tasks.task import StoreTask, TensorBatch, score_rows


@dataclass(frozen=True)
class TextBatch(TensorBatch):
    """Tokens, and labels, the token after each; units are labels."""

    tokens: Int[Tensor, "b n"]
    labels: Int[Tensor, "b n"]


@dataclass(frozen=True)
class LanguageModeling(StoreTask[LanguageModelConfig]):
    """A corpus of text and the model that predicts it.

    Without `block_size` each row stands by itself, from its beginning (1) to its end (2). With it, the rows
    run on in one stream, cut into blocks, and a block's first token is predicted from the one before.
    """

    metrics: ClassVar[tuple[str, ...]] = ("loss", "perplexity")
    unit: ClassVar[str] = "tokens"
    # words by split: a run validates often, and decoding a split takes long
    _words: dict[str, NDArray[np.float64]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def lengths(self, split: str) -> list[np.ndarray]:
        """Return the numbers of tokens of the rows or blocks."""
        rows, block_size = self.store.split(split), self.options.block_size
        if block_size is None:
            return [rows.lengths("text")]
        starts = np.arange(0, len(rows.stream("text")), block_size)
        return [np.minimum(block_size, len(rows.stream("text")) - starts)]

    def collate(self, split: str, indices: np.ndarray) -> TextBatch:
        """Pad rows or blocks to a batch."""
        rows, block_size = self.store.split(split), self.options.block_size
        if block_size is None:
            labels = collate(rows, indices)["text"]
            tokens = shift_right(labels)
        else:
            blocks = collate_blocks(rows.stream("text"), indices * block_size, block_size)
            tokens, labels = blocks["input"], blocks["target"]
        return TextBatch(int((labels != PAD).sum()), tokens, labels)

    def loss(self, model: nn.Module, batch: TextBatch) -> Tensor:
        """Return the label-smoothed cross-entropy of the labels."""
        scored = cast(LanguageModel, model).loss(
            batch.tokens, batch.labels, label_smoothing=self.options.label_smoothing
        )
        return scored.total

    def nll(
        self, model: nn.Module, split: str, *, progress: Progress = SILENT
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return −log p of each row or block of a split, and the number of its tokens."""
        nll = score_rows(
            self,
            model,
            split,
            lambda batch: cast(LanguageModel, model).nll_by_row(batch.tokens, batch.labels),
            progress,
        )
        return nll, self.lengths(split)[0].astype(np.int64)

    def words(self, split: str) -> NDArray[np.float64]:
        """Count the words of each row or block, and the ends of texts, which are predicted too.

        A block may cut a word in two: there each token counts as its share of the words of its text.
        """
        if split not in self._words:
            self._words[split] = self._count_words(split)
        return self._words[split]

    def _count_words(self, split: str) -> NDArray[np.float64]:
        rows, tokenizer = self.store.split(split).sequences["text"], self.store.tokenizer
        texts = (tokenizer.decode(rows[index].tolist()) for index in range(len(rows)))
        words, lengths = np.fromiter(map(count_words, texts), np.float64, len(rows)), rows.lengths()
        if self.options.block_size is None:
            return words
        shares = np.repeat(words / lengths, lengths)
        return np.add.reduceat(shares, np.arange(0, len(shares), self.options.block_size))

    def validate(
        self, model: nn.Module, split: str, *, watch: str = "loss", progress: Progress = SILENT
    ) -> dict[str, float]:
        """Return the cross-entropy per token, without smoothing, and the perplexity per word."""
        by_row, tokens = self.nll(model, split, progress=progress)
        nll, words = float(by_row.sum()), round(float(self.words(split).sum()))
        return {"loss": nll / int(tokens.sum()), "perplexity": word_perplexity(nll, words)}
