"""Adam, its learning rate, and its state as named tensors, so that checkpoints need no pickle."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from diffwindow.training.config import TrainConfig


def make_optimizer(model: nn.Module, config: TrainConfig) -> Adam:
    """Return Adam, or AdamW if there is weight decay, which is not applied to vectors (biases, norms)."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    vectors = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    fused = all(p.device.type in ("cpu", "cuda") for p in model.parameters())
    kind = AdamW if config.weight_decay else Adam
    return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)


def set_rate(optimizer: Adam, rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def state_tensors(optimizer: Adam, model: nn.Module) -> dict[str, Tensor]:
    """Return the moments and steps by parameter, with keys such as `weight/exp_avg`."""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_state_tensors(optimizer: Adam, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load what `state_tensors` returned."""
    for name, parameter in model.named_parameters():
        state = {
            key.removeprefix(f"{name}/"): value
            for key, value in tensors.items()
            if key.startswith(f"{name}/")
        }
        if state:
            optimizer.state[parameter] = {
                key: value.to(parameter.device, torch.float32 if key == "step" else parameter.dtype)
                for key, value in state.items()
            }


def learning_rate(update: int, config: TrainConfig) -> float:
    """Return the learning rate of an update, counted from 1.

    >>> config = TrainConfig(max_updates=100, lr=1.0, warmup=10, warmup_from=0.0)
    >>> [learning_rate(update, config) for update in (1, 10, 40)]
    [0.1, 1.0, 0.5]
    """
    if update < config.warmup:
        return config.warmup_from + (config.lr - config.warmup_from) * update / config.warmup
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "inverse_sqrt":
        return config.lr * math.sqrt(max(config.warmup, 1) / update)
    left = 1 - (update - config.warmup) / max(1, config.max_updates - config.warmup)
    share = left if config.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2
    return config.final_lr + (config.lr - config.final_lr) * share


def short_of_warmup(config: TrainConfig) -> str | None:
    """Return a sentence if the run ends before its warm-up, else None.

    >>> short_of_warmup(TrainConfig(max_updates=10, lr=1.0, warmup=40, warmup_from=0.0))
    'train.warmup=40 is longer than the run: the rate rises to 0.25, not to train.lr=1; lower train.warmup'
    """
    if config.max_updates >= config.warmup:
        return None
    return (
        f"train.warmup={config.warmup} is longer than the run: the rate rises to "
        f"{learning_rate(config.max_updates, config):.2g}, not to train.lr={config.lr:g}; lower train.warmup"
    )
