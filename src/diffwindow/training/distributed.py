"""One process or many: who we are, where tensors live, and sums over all processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

# rank 0 validates and prepares data while the others wait
PATIENCE = timedelta(hours=2)


@dataclass(frozen=True)
class World:
    """The processes of a run; rank 0 alone writes."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def main(self) -> bool:
        """Say whether this is the process that writes."""
        return self.rank == 0

    def total(self, tensor: Tensor) -> Tensor:
        """Add a tensor up over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def shared(self, values: list[float]) -> list[float]:
        """Give rank 0's numbers to all."""
        if self.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.broadcast(tensor, 0)
        return [float(value) for value in tensor]

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.size > 1:
            dist.barrier()


def pick_device(name: str, local_rank: int = 0) -> str:
    """Turn `auto` into the best device there is; a device that is not there is an error."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind = name.partition(":")[0]
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"train.device={name}: there is no GPU here; use cpu or auto")
    if kind not in ("cuda", "cpu", "mps"):
        raise ValueError(f"train.device={name}: use cpu, cuda, cuda:N, mps or auto")
    return f"cuda:{local_rank}" if name == "cuda" else name


@contextmanager
def connected(device: str) -> Iterator[World]:
    """Join the processes that torchrun started, or be the only one."""
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
