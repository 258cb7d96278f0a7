"""The processes of a run: rank, device, and communication between them."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore, rendezvous  # type: ignore[attr-defined]

from diffwindow.training.failures import (
    LostProcessError,
    StopRequest,
    TrainingError,
    first_sentence,
    is_lost_peer,
)
from diffwindow.training.watch import Store, Watch, open_sockets, shut_down

# train.timeout_seconds unless it is set
TIMEOUT_SECONDS = 120.0
# a collective may take longer than a process may be silent, so that a lost one is named first
MARGIN_SECONDS = 10.0
# processes meet when the slowest is there: the watch ends that wait, not a timeout
MEETING = timedelta(days=30)
APPEARING_SECONDS = 5.0
T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The processes of a run; only rank 0 writes."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    watch: Watch | None = None
    # the gloo group in which processes meet
    meeting: dist.ProcessGroup | None = None

    @property
    def main(self) -> bool:
        """Return whether this is rank 0, the process that writes."""
        return self.rank == 0

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Raise LostProcessError, which names the host, if a collective inside the context fails.

        Every collective is in such a context. It fails if a process ends, if one is silent for
        train.timeout_seconds, or if a signal came and the others do not answer.
        """
        try:
            yield
        except RuntimeError as error:
            if self.watch is None or isinstance(error, TrainingError) or not is_lost_peer(error):
                raise
            raise LostProcessError(self.watch.explain(first_sentence(str(error)))) from error

    def meet(self) -> None:
        """Wait for all processes, however long they take while they are alive."""
        if self.size == 1:
            return
        with self.bounded():
            work = dist.all_reduce(torch.zeros(1), group=self.meeting, async_op=True)
            pause = 0.001
            # asleep in Python, where a signal is handled
            while not work.is_completed():
                time.sleep(pause)
                pause = min(2 * pause, 0.1)
            work.wait()

    def now(self, what: str) -> None:
        """Let the other processes know how far this one is, in case that it is lost."""
        if self.watch:
            self.watch.now = what

    def doing(self, what: str) -> AbstractContextManager[None]:
        """Do something inside the context that the other processes wait for, and let them know what."""
        return self.watch.doing(what) if self.watch else nullcontext()

    def heeding(self, request: StopRequest) -> AbstractContextManager[None]:
        """Let a signal to any process stop all of them, also while they wait for each other."""
        return self.watch.heeding(request) if self.watch else nullcontext()

    def total(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.size > 1:
            with self.bounded():
                dist.all_reduce(tensor)
        return tensor

    def broadcast(self, value: T) -> T:
        """Return rank 0's value in all processes."""
        values = [value]
        if self.size > 1:
            self.meet()
            with self.bounded():
                dist.broadcast_object_list(values, 0)
        return values[0]

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        if self.size == 1:
            return [value]
        values: list[T] = [value] * self.size
        self.meet()
        with self.bounded():
            dist.all_gather_object(values, value)
        return values

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise in all processes if one of them fails inside the context, so that none waits for it."""
        problem: ValueError | OSError | None = None
        try:
            yield
        except (ValueError, OSError) as error:
            problem = error
        for rank, sentence in enumerate(self.gather(None if problem is None else str(problem))):
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
def connected(device: str, timeout_seconds: float = TIMEOUT_SECONDS) -> Iterator[World]:
    """Join the processes that torchrun started, if any, and yield the world."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    place = pick_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    on_gpu = place.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(place)
    if size == 1:
        yield World(device=place)
        return
    before = open_sockets()
    # a collective waits for the slowest process; if that is lost, the watch says so first
    timeout = timedelta(seconds=timeout_seconds + MARGIN_SECONDS)
    with _explaining_start(size):
        store, _, _ = next(rendezvous("env://", rank, size, timeout=timeout))
        start = name_start(store, rank, size, timeout.total_seconds())
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=PrefixStore(start, store),
            rank=rank,
            world_size=size,
            timeout=timeout,
        )
        meeting = dist.new_group(backend="gloo", timeout=MEETING)
        connections = open_sockets() - before
        # a connection of its own, which stays when the others are cut
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        beats: Store = PrefixStore(f"watch/{start}", TCPStore(host, port, timeout=timeout))

    def cut() -> bool:
        shut_down(connections)
        # NCCL has connections of its own
        return not on_gpu

    watch = Watch(beats, rank, size, timeout_seconds, cut)
    left = ""
    try:
        yield World(rank, size, place, watch, meeting)
    except BaseException as error:
        left = first_sentence(str(error)) or type(error).__name__
        raise
    finally:
        watch.close(left)
        if left:
            # threads that wait for a lost process would not end
            cut()
        dist.destroy_process_group()


@contextmanager
def _explaining_start(size: int) -> Iterator[None]:
    """Raise LostProcessError, which says where, if the processes do not meet inside the context."""
    try:
        yield
    except RuntimeError as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise LostProcessError(
            f"the {size} processes do not meet at {place}: {first_sentence(str(error))}; start all of them, "
            "and let `diffwindow doctor --rendezvous HOST:PORT` check each machine"
        ) from error


def name_start(store: Any, rank: int, size: int, seconds: float) -> str:
    """Return a name for this start of the processes, which rank 0 chooses.

    The store of torchrun outlives a restart, with the addresses of processes that are gone. So each process
    asks under a name that is its own, and keys of this start have the name that it is answered.
    """
    own, end = secrets.token_hex(8), time.monotonic() + seconds
    missing = set(range(1, size)) if rank == 0 else {0}
    if rank:
        store.set(f"asking/{rank}", own)
    while missing:
        if time.monotonic() > end:
            numbers = ", ".join(map(str, sorted(missing)))
            raise RuntimeError(f"process {numbers} of {size} has not come within {seconds:.0f} s")
        if rank and store.check([f"answer/{own}"]):
            start = str(store.get(f"answer/{own}").decode())
            store.set(f"{start}/{rank}", "here")
            return start
        for other in sorted(missing) if rank == 0 else ():
            if store.check([f"{own}/{other}"]):
                missing.remove(other)
            elif store.check([f"asking/{other}"]):
                # perhaps to a process of an earlier start, which does not read it
                store.set(f"answer/{store.get(f'asking/{other}').decode()}", own)
        time.sleep(0.02)
    return own
