"""The processes of a run: rank, device, and communication between them."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

# rank 0 validates and prepares data while the others wait
PATIENCE = timedelta(hours=2)
APPEARING_SECONDS = 5.0
T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The processes of a run; only rank 0 writes."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def main(self) -> bool:
        """Return whether this is rank 0, the process that writes."""
        return self.rank == 0

    def total(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def broadcast(self, value: T) -> T:
        """Return rank 0's value in all processes."""
        values = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, 0)
        return values[0]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise in all processes if one of them fails inside the context, so that none waits for it."""
        problem: ValueError | OSError | None = None
        try:
            yield
        except (ValueError, OSError) as error:
            problem = error
        if self.size > 1:
            problems: list[str | None] = [None] * self.size
            dist.all_gather_object(problems, None if problem is None else str(problem))
            for rank, sentence in enumerate(problems):
                if problem is None and sentence is not None:
                    raise ValueError(f"process {rank} of {self.size}: {sentence}")
        if problem is not None:
            raise problem

    def check_shared(self, folder: Path) -> None:
        """Raise in every process unless all see the folder of rank 0."""
        if self.size == 1:
            return
        mark = folder / self.broadcast(f".seen-{secrets.token_hex(8)}.tmp")
        with self.together():
            if self.main:
                mark.touch()
        try:
            with self.together():
                if not _appears(mark):
                    raise ValueError(
                        f"{socket.gethostname()} does not see the folder {folder} of the first process; "
                        "put it on a file system that all nodes share"
                    )
        finally:
            if self.main:
                mark.unlink(missing_ok=True)


def _appears(path: Path) -> bool:
    """Wait a few seconds for a file, as network file systems need; return whether it appeared."""
    end = time.monotonic() + APPEARING_SECONDS
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def pick_device(name: str, local_rank: int = 0) -> str:
    """Return the device to use, the best one for `auto`; raise if there is no such device."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind = name.partition(":")[0]
    if kind not in ("cuda", "cpu", "mps"):
        raise ValueError(f"train.device={name}: use cpu, cuda, cuda:N, mps or auto")
    if (kind == "cuda" and not torch.cuda.is_available()) or (
        kind == "mps" and not torch.backends.mps.is_available()
    ):
        raise ValueError(f"train.device={name}: this machine has no such GPU; use cpu or auto")
    name = f"cuda:{local_rank}" if name == "cuda" else name
    try:
        index = torch.device(name).index or 0
    except RuntimeError:
        raise ValueError(f"train.device={name}: use cpu, cuda, cuda:N, mps or auto") from None
    if kind == "cuda" and index >= torch.cuda.device_count():
        raise ValueError(f"train.device={name}: this machine has {torch.cuda.device_count()} GPUs")
    return name


@contextmanager
def connected(device: str) -> Iterator[World]:
    """Join the processes that torchrun started, if any, and yield the world."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    place = pick_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if place.startswith("cuda"):
        torch.cuda.set_device(place)
    if size == 1:
        yield World(device=place)
        return
    dist.init_process_group("nccl" if place.startswith("cuda") else "gloo", timeout=PATIENCE)
    try:
        yield World(rank, size, place)
    finally:
        dist.destroy_process_group()
