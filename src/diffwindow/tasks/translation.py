"""Translation: sentence pairs of a store, and the Translator trained on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor, nn

from diffwindow.data.batching import collate, shift_right
from diffwindow.data.tokenizer import moses_detokenizer, nfc
from diffwindow.decoding import Decoding
from diffwindow.decoding.batches import ReportDone
from diffwindow.decoding.translate import translate
from diffwindow.models.loss import TokenLoss
from diffwindow.models.translator import Translator, TranslatorConfig
from diffwindow.progress import SILENT, Progress
from diffwindow.special_tokens import PAD
from diffwindow.tasks.metrics import bleu_of, bleu_terms, word_perplexity
from diffwindow.tasks.task import StoreTask, TensorBatch, score_rows, sweep


@dataclass(frozen=True)
class TranslationBatch(TensorBatch):
    """Sources, targets from their beginning (1) on, and labels, the token after each; units are labels."""

    source: Int[Tensor, "b n"]
    target: Int[Tensor, "b t"]
    labels: Int[Tensor, "b t"]


@dataclass(frozen=True)
class Translation(StoreTask[TranslatorConfig]):
    """A parallel corpus and the model that translates it."""

    metrics: ClassVar[tuple[str, ...]] = ("loss", "nll", "perplexity", "bleu")
    unit: ClassVar[str] = "tokens"

    def lengths(self, split: str) -> list[np.ndarray]:
        """Return the numbers of source and of target tokens."""
        rows = self.store.split(split)
        return [rows.lengths("source"), rows.lengths("target")]

    def collate(self, split: str, indices: np.ndarray) -> TranslationBatch:
        """Pad sentence pairs to a batch."""
        rows = collate(self.store.split(split), indices)
        labels = rows["target"]
        return TranslationBatch(int((labels != PAD).sum()), rows["source"], shift_right(labels), labels)

    def loss(self, model: nn.Module, batch: TranslationBatch) -> Tensor:
        """Return the label-smoothed cross-entropy of the labels."""
        return self._score(model, batch).total

    def _score(self, model: nn.Module, batch: TranslationBatch) -> TokenLoss:
        return cast(Translator, model).loss(
            batch.source, batch.target, batch.labels, label_smoothing=self.options.label_smoothing
        )

    def validate(
        self, model: nn.Module, split: str, *, watch: str = "loss", progress: Progress = SILENT
    ) -> dict[str, float]:
        """Return the training loss, and the nll and perplexity per token, without smoothing.

        Add BLEU if it is the metric to `watch`.
        """

        def score(_: np.ndarray, batch: TranslationBatch) -> tuple[float, float, int]:
            scored = self._score(model, batch)
            return float(scored.total), float(scored.nll), batch.units

        scores = sweep(self, model, split, score, progress)
        total, nll, units = (sum(column) for column in zip(*(one for _, one in scores), strict=True))
        metrics = {"loss": total / units, "nll": nll / units, "perplexity": word_perplexity(nll, units)}
        return metrics | ({"bleu": self.bleu(model, split, progress=progress)} if watch == "bleu" else {})

    def nll(
        self, model: nn.Module, split: str, *, progress: Progress = SILENT
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return −log p of each target of a split, and the number of its tokens."""
        nll = score_rows(
            self,
            model,
            split,
            lambda batch: cast(Translator, model).nll_by_row(batch.source, batch.target, batch.labels),
            progress,
        )
        return nll, self.lengths(split)[1].astype(np.int64)

    def bleu(self, model: nn.Module, split: str, *, progress: Progress = SILENT) -> float:
        """Return the BLEU of greedy translations, of `bleu_sentences` sentences spread over the split."""
        rows = len(self.store.split(split))
        count = min(rows, self.options.bleu_sentences or rows)
        hypotheses, references, _ = self.translate(
            cast(Translator, model),
            split,
            [number * rows // count for number in range(count)],
            Decoding(beam=1, max_tokens=self.options.valid_tokens),
            moses=self.store.manifest.settings.moses.get("target"),
            progress=lambda done, total: progress("validation BLEU", done / total),
        )
        terms = bleu_terms(hypotheses, references, language=self.store.languages.get("target"))
        return float(bleu_of(terms.sum(0, dtype=np.float64)))

    def translate(
        self,
        model: Translator,
        split: str,
        indices: Sequence[int],
        decoding: Decoding,
        *,
        moses: str | None,
        progress: ReportDone,
    ) -> tuple[list[str], list[str], int]:
        """Translate rows of a split; return plain translations and references, and how many came in pieces.

        `moses` is the language in which Moses tokenised the targets, if it did.
        """
        rows, tokenizer = self.store.split(split).sequences, self.store.tokenizer
        sources = [rows["source"][index][:-1].tolist() for index in indices]
        outputs = [best[0] for best in translate(model, tokenizer, sources, decoding, progress=progress)]
        plain = moses_detokenizer(moses) if moses else str
        # composed, as they are scored: runs that normalise and runs that do not have the same references
        references = [nfc(plain(tokenizer.decode(rows["target"][index].tolist()))) for index in indices]
        return [plain(output.text) for output in outputs], references, sum(o.pieces > 1 for o in outputs)
