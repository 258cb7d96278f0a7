"""Translation: sentence pairs of a store, and the Translator trained on them."""

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from jaxtyping import Int
from torch import Tensor, nn

from diffwindow.data.batching import collate, shift_right
from diffwindow.data.tokenizer import moses_detokenizer
from diffwindow.decoding import Decoding
from diffwindow.decoding.translate import translate
from diffwindow.models.model import evaluating
from diffwindow.models.translator import Translator, TranslatorConfig
from diffwindow.progress import SILENT, Progress
from diffwindow.special_tokens import PAD
from diffwindow.tasks.metrics import bleu_of, bleu_terms, word_perplexity
from diffwindow.tasks.task import StoreTask, TensorBatch, sweep


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
        scored = cast(Translator, model).loss(
            batch.source, batch.target, batch.labels, label_smoothing=self.options.label_smoothing
        )
        return scored.total

    def validate(
        self, model: nn.Module, split: str, *, watch: str = "loss", progress: Progress = SILENT
    ) -> dict[str, float]:
        """Return the training loss, and the nll and perplexity per token, without smoothing.

        Add BLEU if it is the metric to `watch`.
        """

        def score(_: np.ndarray, batch: TranslationBatch) -> tuple[float, float, int]:
            scored = cast(Translator, model).loss(
                batch.source, batch.target, batch.labels, label_smoothing=self.options.label_smoothing
            )
            return float(scored.total), float(scored.nll), batch.units

        with evaluating(model) as device:
            scores = sweep(
                self, split, device, score, max_tokens=self.options.valid_tokens, progress=progress
            )
        total, nll, units = (sum(column) for column in zip(*(one for _, one in scores), strict=True))
        metrics = {"loss": total / units, "nll": nll / units, "perplexity": word_perplexity(nll, units)}
        return metrics | ({"bleu": self.bleu(model, split, progress=progress)} if watch == "bleu" else {})

    def bleu(self, model: nn.Module, split: str, *, progress: Progress = SILENT) -> float:
        """Return the BLEU of greedy translations, of `bleu_sentences` sentences spread over the split."""
        rows, tokenizer = self.store.split(split), self.store.tokenizer
        count = min(len(rows), self.options.bleu_sentences or len(rows))
        chosen = [number * len(rows) // count for number in range(count)]
        sources = [rows.sequences["source"][index][:-1].tolist() for index in chosen]
        references = [tokenizer.decode(rows.sequences["target"][index].tolist()) for index in chosen]
        outputs = translate(
            cast(Translator, model),
            tokenizer,
            sources,
            Decoding(beam=1, max_tokens=self.options.valid_tokens),
            progress=lambda done, total: progress("validation BLEU", done / total),
        )
        moses = self.store.manifest.settings.moses
        plain = moses_detokenizer(moses["target"]) if "target" in moses else str
        hypotheses = [plain(best[0].text) for best in outputs]
        language = self.store.languages.get("target")
        terms = bleu_terms(hypotheses, [plain(text) for text in references], language=language)
        return float(bleu_of(terms.sum(0, dtype=np.float64)))
