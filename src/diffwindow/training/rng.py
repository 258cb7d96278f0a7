"""Randomness that a resumed or a divided run repeats: every batch has its own seed."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Seed torch, numpy and Python."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def seed_batch(seed: int, update: int, batch: int) -> None:
    """Seed torch for one batch of an update, whichever process works on it."""
    sequence = np.random.SeedSequence([seed % 2**63, update, batch])
    torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))


def rng_tensors() -> dict[str, Tensor]:
    """Give the states of torch's, numpy's and Python's generators as tensors."""
    numpy_state: dict[str, Any] = np.random.get_state(legacy=False)
    numpy_state["state"]["key"] = numpy_state["state"]["key"].tolist()
    return {
        "torch": torch.get_rng_state(),
        "numpy": _as_bytes(json.dumps(numpy_state)),
        "python": _as_bytes(json.dumps(random.getstate())),
    }


def load_rng_tensors(tensors: dict[str, Tensor]) -> None:
    """Put back what `rng_tensors` gave."""
    torch.set_rng_state(tensors["torch"])
    numpy_state = json.loads(_as_text(tensors["numpy"]))
    numpy_state["state"]["key"] = np.array(numpy_state["state"]["key"], np.uint32)
    np.random.set_state(numpy_state)
    version, internal, gauss_next = json.loads(_as_text(tensors["python"]))
    random.setstate((version, tuple(internal), gauss_next))


def _as_bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def _as_text(tensor: Tensor) -> str:
    return bytes(tensor.numpy().tobytes()).decode()
