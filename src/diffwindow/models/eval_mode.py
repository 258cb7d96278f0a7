"""Evaluation mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout off for a while; each module then has its own mode back, also one that was frozen."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


@contextmanager
def evaluating(model: nn.Module) -> Iterator[str]:
    """Switch dropout and gradients off for a while; give the device that the model is on."""
    with in_eval_mode(model), torch.no_grad():
        yield str(next(model.parameters()).device)
