"""The learning rate of each update: a warm-up, then constant, inverse square root, linear or cosine."""

from __future__ import annotations

import math

from diffwindow.training.config import TrainConfig


def learning_rate(update: int, config: TrainConfig) -> float:
    """Give the rate of an update, counted from 1.

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
