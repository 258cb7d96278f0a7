"""BatchLoader: the batches of each update, collated ahead by a thread."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Generic, Self

import numpy as np

from diffwindow.data.batching import TokenBatches
from diffwindow.tasks.task import B, Task
from diffwindow.training.distributed import World

AHEAD = 3


@dataclass(frozen=True)
class UpdateBatches(Generic[B]):
    """The batches of one update in this process, their rows, and the sampler's state after them.

    `ends_epoch` is True if the last batch of an epoch is among them, in any process.
    """

    batches: list[B]
    rows: list[np.ndarray]
    state: dict[str, int]
    ends_epoch: bool


class BatchLoader(Generic[B]):
    """Yield the batches of one update after another, without end.

    Every process walks the same sequence of batches and collates every `world.size`-th of them. So an update
    has the same batches for any number of processes, and one sampler state is enough for all.
    """

    def __init__(self, task: Task[B], sampler: TokenBatches, world: World, accumulate: int) -> None:
        self._task = task
        self._sampler = sampler
        self._world = world
        self._count = world.size * accumulate
        self._ready: queue.Queue[UpdateBatches[B] | BaseException] = queue.Queue(AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def __next__(self) -> UpdateBatches[B]:
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _work(self) -> None:
        try:
            indices = chain.from_iterable(repeat(self._sampler))
            while not self._closed.is_set():
                epochs = self._whole_epochs()
                rows = [next(indices) for _ in range(self._count)][self._world.rank :: self._world.size]
                batches = [self._task.collate("train", chosen) for chosen in rows]
                ends_epoch = self._whole_epochs() > epochs
                self._put(UpdateBatches(batches, rows, self._sampler.state(), ends_epoch))
        except BaseException as error:  # passed to the training loop, which raises it
            self._put(error)

    def _whole_epochs(self) -> int:
        """Count the epochs that are read to their end; the sampler counts one when the next begins."""
        state = self._sampler.state()
        return state["epoch"] + (state["cursor"] == len(self._sampler))

    def _put(self, item: UpdateBatches[B] | BaseException) -> None:
        while not self._closed.is_set():
            try:
                self._ready.put(item, timeout=0.2)
                return
            except queue.Full:
                continue
