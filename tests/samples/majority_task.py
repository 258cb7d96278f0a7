"""A small task with dropout, so that lost randomness shows: does a sequence hold more ones than twos?"""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffwindow.models.weights import write_tensors
from diffwindow.progress import SILENT, Progress
from diffwindow.tasks.task import TensorBatch
from diffwindow.training.config import TrainConfig
from diffwindow.training.distributed import World
from diffwindow.training.trainer import Trainer


@dataclass(frozen=True)
class MajorityBatch(TensorBatch):
    tokens: Tensor
    labels: Tensor


class MajorityTask:
    """`poison` is a training row whose loss is not a number; `pause` seconds make a batch slow."""

    metrics = ("loss", "accuracy")
    unit = "examples"

    def __init__(self, *, dropout: float = 0.2, poison: int | None = None, pause: float = 0.0) -> None:
        generator = np.random.default_rng(0)
        self._rows = [generator.integers(1, 3, size) for size in generator.integers(3, 12, 200)]
        self._dropout = dropout
        self._poison = poison
        self._pause = pause

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.EmbeddingBag(3, 8, padding_idx=0), nn.Dropout(self._dropout), nn.Linear(8, 2))

    def lengths(self, split: str) -> list[np.ndarray]:
        return [np.array([len(row) for row in self._rows])]

    def collate(self, split: str, indices: np.ndarray) -> MajorityBatch:
        tokens = torch.zeros(len(indices), 12, dtype=torch.long)
        for place, index in enumerate(indices):
            tokens[place, : len(self._rows[index])] = torch.from_numpy(self._rows[index])
        labels = ((tokens == 1).sum(1) > (tokens == 2).sum(1)).long()
        if split == "train" and self._poison in indices:
            labels[:] = -1
        return MajorityBatch(len(labels), tokens, labels)

    def loss(self, model: nn.Module, batch: MajorityBatch) -> Tensor:
        if self._pause:
            time.sleep(self._pause)
        if (batch.labels < 0).any():
            return model(batch.tokens).sum() * float("nan")
        return F.cross_entropy(model(batch.tokens), batch.labels, reduction="sum")

    def validate(
        self, model: nn.Module, split: str, *, watch: str = "loss", progress: Progress = SILENT
    ) -> dict[str, float]:
        model.eval()
        with torch.no_grad():
            batch = self.collate(split, np.arange(len(self._rows)))
            logits = model(batch.tokens)
        right = (logits.argmax(-1) == batch.labels).double().mean()
        return {"loss": float(F.cross_entropy(logits, batch.labels)), "accuracy": float(right)}


def save(model: nn.Module, folder: Path) -> None:
    write_tensors(folder / "model.safetensors", model.state_dict(), {"config": "{}"})


DEFAULTS = TrainConfig(
    max_updates=30,
    max_tokens=120,
    lr=0.01,
    warmup=5,
    log_every=4,
    valid_every=6,
    save_every=5,
    clip_norm=1.0,
    device="cpu",
)


def settings(**changes: object) -> TrainConfig:
    return TrainConfig(**{**DEFAULTS.model_dump(), **changes})


def fit(
    folder: Path, task: MajorityTask | None = None, world: World | None = None, **changes: object
) -> Path:
    """Train in a folder, from where it stands."""
    folder.mkdir(parents=True, exist_ok=True)
    return Trainer(task or MajorityTask(), settings(**changes), folder, world or World(), save=save).fit()


def outcome(folder: Path) -> dict[str, bytes]:
    """Give all that a finished run must repeat: checkpoints with weights and optimizer, model, log."""
    files = [*folder.glob("checkpoints/*/*"), *folder.glob("best/*/*"), *folder.glob("model/*")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in [*files, folder / "log.jsonl"]}
