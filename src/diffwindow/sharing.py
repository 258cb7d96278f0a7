"""Share work on batches among processes, with the same result for any number of them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")
R = TypeVar("R")
_sharing: ContextVar[bool] = ContextVar("sharing", default=False)


@contextmanager
def sharing() -> Iterator[None]:
    """Share work among the processes of torch.distributed, if any; every process must enter this."""
    token = _sharing.set(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
    try:
        yield
    finally:
        _sharing.reset(token)


def sharers() -> int:
    """Return how many processes share the work."""
    return dist.get_world_size() if _sharing.get() else 1


def each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the result of each item, in order; inside `sharing`, a process works on every n-th item.

    >>> each(len, ["one", "three"])
    [3, 5]
    """
    if sharers() == 1:
        return [work(item) for item in items]
    rank, size = dist.get_rank(), dist.get_world_size()
    own = [work(item) for number, item in enumerate(items) if number % size == rank]
    parts: list[list[R]] = [[] for _ in range(size)]
    dist.all_gather_object(parts, own)
    return [parts[number % size][number // size] for number in range(sum(map(len, parts)))]
