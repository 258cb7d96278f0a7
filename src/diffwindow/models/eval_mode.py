"""Run a model without dropout, and without gradients."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout off in the context; afterwards each module has its own mode back."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


@contextmanager
def evaluating(model: nn.Module) -> Iterator[str]:
    """Switch dropout and gradients off in the context, which is given the model's device."""
    with in_eval_mode(model), torch.no_grad():
        yield str(next(model.parameters()).device)
