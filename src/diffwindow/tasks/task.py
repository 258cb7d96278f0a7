"""The Task protocol: all that the training loop knows of a task; `task_of` builds the task of a store."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from diffwindow.data.store import Store
from diffwindow.decoding.batches import map_batches
from diffwindow.models.config import ModelConfig
from diffwindow.models.model import evaluating
from diffwindow.progress import SILENT, Progress
from diffwindow.tasks.entries import TaskOptions, corpus_fields, entry_of, load_named


@dataclass(frozen=True)
class TensorBatch:
    """Tensors that move to a device together; the loss is summed over `units`, target tokens or examples."""

    units: int

    def to(self, device: str) -> Self:
        """Move the tensors to a device."""
        values: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        moved: dict[str, Any] = {name: v.to(device) for name, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)


B = TypeVar("B", bound=TensorBatch)
C = TypeVar("C", bound=ModelConfig)
R = TypeVar("R")


@runtime_checkable
class Task(Protocol[B]):
    """A corpus and a model for it: everything from the index of an example to the loss."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Name the metrics that `validate` can return."""

    @property
    def unit(self) -> str:
        """Name what the loss is summed over, in the plural: tokens or examples."""

    def build_model(self) -> nn.Module:
        """Build the model, freshly initialised from torch's generator."""

    def lengths(self, split: str) -> list[np.ndarray]:
        """Return the tokens per example of a split, one array per field (see `TokenBatches`)."""

    def collate(self, split: str, indices: np.ndarray) -> B:
        """Pad the examples to a batch, a function of the indices alone: another thread runs it ahead."""

    def loss(self, model: nn.Module, batch: B) -> Tensor:
        """Return the training loss summed over the batch's units, so that sums over batches are exact."""

    def validate(
        self, model: nn.Module, split: str, *, watch: str = "loss", progress: Progress = SILENT
    ) -> dict[str, float]:
        """Return quick metrics of a split, including `loss`, for curves and early stopping.

        Metrics that take long, such as BLEU, are computed only if they are the one to `watch`.
        """


@dataclass(frozen=True)
class StoreTask(Task[Any], Generic[C]):
    """A task of ours: a store, the config of its model, and options of the loss and the examples."""

    store: Store
    config: C
    options: TaskOptions = field(default_factory=TaskOptions)

    def build_model(self) -> nn.Module:
        """Build the model, freshly initialised from torch's generator."""
        model = self.config.build()
        if self.config.learns_input_phrases:
            starts: Tensor = model.get_buffer("embedding.word_starts")
            starts.copy_(torch.tensor(self.store.tokenizer.word_starts()))
        return model


def sweep(
    task: StoreTask[Any],
    model: nn.Module,
    split: str,
    work: Callable[[np.ndarray, B], R],
    progress: Progress = SILENT,
) -> list[tuple[np.ndarray, R]]:
    """Work on every example of a split once, shortest first; return the indices and the result of each batch.

    The model is in evaluation mode meanwhile. Batches are those of `map_batches`, of up to `valid_tokens`.
    """
    stage = "validation" if split == "valid" else "evaluation"
    with evaluating(model) as device:
        return map_batches(
            task.lengths(split),
            lambda indices: work(indices, task.collate(split, indices).to(device)),
            max_tokens=task.options.valid_tokens,
            progress=lambda done, total: progress(stage, done / total),
        )


def score_rows(
    task: StoreTask[Any],
    model: nn.Module,
    split: str,
    score: Callable[[Any], Tensor],
    progress: Progress = SILENT,
) -> NDArray[np.float64]:
    """Return a number for each example of a split, from a function of batches (see `sweep`)."""

    def work(_: np.ndarray, batch: Any) -> NDArray[np.float64]:
        scores: NDArray[np.float64] = score(batch).double().cpu().numpy()
        return scores

    numbers = np.zeros(len(task.lengths(split)[0]))
    for indices, some in sweep(task, model, split, work, progress):
        numbers[indices] = some
    return numbers


def model_config(store: Store, settings: dict[str, Any]) -> ModelConfig:
    """Build the config of the store's model: `settings`, and what the corpus decides."""
    config_class = entry_of(store.manifest, store.folder).config_class
    return config_class(**settings | corpus_fields(store))


def task_of(store: Store, config: ModelConfig, options: TaskOptions | None = None) -> StoreTask[Any]:
    """Build the task of a store; raise if the model or an option is not for it."""
    entry, options = entry_of(store.manifest, store.folder), options or TaskOptions()
    if config.model != entry.kind:
        raise ValueError(f"{store.folder} is for {store.task}, which a {type(config).__name__} cannot do")
    decided = corpus_fields(store)
    if config.vocab_size != decided["vocab_size"]:
        raise ValueError(
            f"the model has a vocabulary of {config.vocab_size:,}, but that of {store.folder} has "
            f"{decided['vocab_size']:,}; use the corpus that the model was made for"
        )
    known_classes = getattr(config, "num_classes", 0)
    if decided.get("num_classes", 0) > known_classes:
        raise ValueError(
            f"the model has {known_classes} classes, but {store.folder} has {decided['num_classes']}; "
            "use the corpus that the model was made for"
        )
    for name, value in options.model_dump(exclude_defaults=True).items():
        if name not in entry.options:
            raise ValueError(f"{name}={value} is not an option of {store.task}; leave it out")
    task: StoreTask[Any] = load_named(entry.task)(store, config, options)
    return task
