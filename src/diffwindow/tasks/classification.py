"""Classification: labelled texts of a store, and the Classifier trained on them."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor, nn

from diffwindow.data.batching import collate
from diffwindow.models.classifier import Classifier, ClassifierConfig
from diffwindow.progress import SILENT, Progress
from diffwindow.tasks.task import StoreTask, TensorBatch, sweep


@dataclass(frozen=True)
class ClassificationBatch(TensorBatch):
    """Texts and their labels; units are texts."""

    tokens: Int[Tensor, "b n"]
    labels: Int[Tensor, " b"]


@dataclass(frozen=True)
class Classification(StoreTask[ClassifierConfig]):
    """A labelled corpus and the model that classifies it; only the first `max_length` tokens are read.

    `classes` has the model's class of each label of the store, by number; None: they are the same.
    """

    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    unit: ClassVar[str] = "examples"
    classes: tuple[int, ...] | None = None

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
        return ClassificationBatch(len(indices), rows["text"][:, : self.options.max_length], labels)

    def loss(self, model: nn.Module, batch: ClassificationBatch) -> Tensor:
        """Return the cross-entropy of the labels."""
        logits = cast(Classifier, model)(batch.tokens).float()
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
            log_probs = torch.log_softmax(cast(Classifier, model)(batch.tokens).float(), dim=-1)
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
