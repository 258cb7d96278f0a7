"""Disjoint training, validation and test parts of a generated corpus."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

Part = Literal["all", "train", "valid", "test"]
# out of ten sentences: identical ones always land in the same part
_SHARES: dict[Part, range] = {"all": range(10), "train": range(8), "valid": range(8, 9), "test": range(9, 10)}
Example = TypeVar("Example")


def take(
    make: Callable[[random.Random], Example],
    text_of: Callable[[Example], str],
    num_examples: int,
    *,
    seed: int,
    part: Part,
) -> Iterator[Example]:
    """Make examples until `num_examples` of them belong to the part."""
    rng = random.Random(f"{make.__module__} {seed} {part}")
    share = _SHARES[part]
    made = 0
    while made < num_examples:
        example = make(rng)
        if zlib.crc32(text_of(example).encode()) % 10 in share:
            made += 1
            yield example
