"""Classification: labelled texts of a store, and the Classifier trained on them."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from diffwindow.data import trees
from diffwindow.data.batching import collate
from diffwindow.data.store import Sequences
from diffwindow.models.classifier import Classifier, ClassifierConfig
from diffwindow.progress import SILENT, Progress
from diffwindow.tasks.task import StoreTask, TensorBatch, sweep


@dataclass(frozen=True)
class ClassificationBatch(TensorBatch):
    """Texts and their labels; units are texts."""

    tokens: Int[Tensor, "b n"]
    labels: Int[Tensor, " b"]
    gates: Float[Tensor, "b gaps"] | None = None


@dataclass(frozen=True)
class Classification(StoreTask[ClassifierConfig]):
    """A labelled corpus and the model that classifies it; only the first `max_length` tokens are read.

    `classes` has the model's class of each label of the store, by number; None: they are the same. Windows of
    phrases get those of the store's trees.
    """

    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    unit: ClassVar[str] = "examples"
    classes: tuple[int, ...] | None = None
    _ends: dict[str, Sequences] = field(default_factory=dict, repr=False, compare=False)

    def lengths(self, split: str) -> list[np.ndarray]:
        """Return the numbers of tokens that are read."""
        lengths = self.store.split(split).lengths("text")
        return [lengths if self.options.max_length is None else np.minimum(lengths, self.options.max_length)]

    def gold(self, split: str) -> NDArray[np.int64]:
        """Return the right classes of a split."""
        return self._class_of(self.store.split(split).columns["label"].astype(np.int64))

    def _class_of(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        return labels if self.classes is None else np.array(self.classes, np.int64)[labels]

    def collate(self, split: str, indices: np.ndarray) -> ClassificationBatch:
        """Pad texts to a batch."""
        rows = collate(self.store.split(split), indices)
        labels = torch.from_numpy(self._class_of(rows["label"].numpy()))
        tokens, gates = rows["text"][:, : self.options.max_length], None
        if self.config.has_phrases:
            ends = self._phrase_ends(split).padded(indices)[:, : tokens.shape[1] - 1]
            gates = torch.from_numpy(ends).float()
        return ClassificationBatch(len(indices), tokens, labels, gates)

    def _phrase_ends(self, split: str) -> Sequences:
        """Return after which tokens of a split a phrase ends."""
        if split not in self._ends:
            distances = self.store.split(split).sequences.get(trees.FIELD)
            if distances is None:
                raise ValueError(
                    f"{self.config.attention} needs the phrases of texts, which {self.store.folder} does not "
                    "have; prepare a corpus of trees, as agreement-trees, or your own with --trees"
                )
            self._ends[split] = trees.phrase_ends(
                distances, self.options.phrase_height, self.options.phrase_placebo
            )
        return self._ends[split]

    def loss(self, model: nn.Module, batch: ClassificationBatch) -> Tensor:
        """Return the cross-entropy of the labels."""
        logits = cast(Classifier, model)(batch.tokens, gates=batch.gates).float()
        return F.cross_entropy(
            logits,
            batch.labels,
            weight=None if self._weights is None else self._weights.to(logits.device),
            label_smoothing=self.options.label_smoothing,
            reduction="sum",
        )

    @cached_property
    def _weights(self) -> Tensor | None:
        """Weights of the classes: examples / (classes · examples of the class)."""
        if self.options.class_weights is None:
            return None
        counts = self.store.manifest.splits["train"].found.labels
        numbers = [counts.get(str(label), 0) for label in range(self.config.num_classes)]
        return torch.tensor([sum(numbers) / (len(numbers) * n) if n else 0.0 for n in numbers])

    def predict(
        self, model: nn.Module, split: str, *, progress: Progress = SILENT
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the likeliest label of each text of a split, in order, and −log p of the right one."""
        rows = len(self.store.split(split))
        labels, nll = np.zeros(rows, np.int64), np.zeros(rows)

        def classify(_: np.ndarray, batch: ClassificationBatch) -> tuple[np.ndarray, np.ndarray]:
            logits = cast(Classifier, model)(batch.tokens, gates=batch.gates)
            log_probs = torch.log_softmax(logits.float(), dim=-1)
            right = log_probs.gather(-1, batch.labels[:, None]).squeeze(-1)
            return log_probs.argmax(-1).cpu().numpy(), -right.cpu().numpy()

        for indices, (some_labels, some_nll) in sweep(self, model, split, classify, progress):
            labels[indices] = some_labels
            nll[indices] = some_nll
        return labels, nll

    def validate(
        self, model: nn.Module, split: str, *, watch: str = "loss", progress: Progress = SILENT
    ) -> dict[str, float]:
        """Return the mean cross-entropy, without smoothing, and the accuracy."""
        labels, nll = self.predict(model, split, progress=progress)
        return {"loss": float(nll.mean()), "accuracy": float((labels == self.gold(split)).mean())}
