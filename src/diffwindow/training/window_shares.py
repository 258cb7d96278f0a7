"""Measure how much of the text a model's windows leave out, on a few validation examples."""

import numpy as np
import torch
from torch import Tensor, nn

from diffwindow.attention.visibility import Visibility
from diffwindow.attention.watching import watched, window_attentions
from diffwindow.attention.window_attention import WindowAttention
from diffwindow.metrics.window_tiles import OutsideCounts, count_outside
from diffwindow.models.eval_mode import evaluating
from diffwindow.tasks.task import B, Task

# enough for a share to two digits, and few beside a validation
EXAMPLES = 16


def outside_shares(task: Task[B], model: nn.Module, split: str) -> dict[str, float]:
    """Return the shares of keys and of tiles below the tolerance of the model's windows.

    They are measured on examples spread evenly over the split, one at a time, because a window has
    queries × keys values. Return nothing if no window has a tolerance.
    """
    windows = window_attentions(model)
    if not any(module.window_tolerance for module in windows):
        return {}
    counts = OutsideCounts()

    def watcher(attention: WindowAttention, queries: Tensor, keys: Tensor, visibility: Visibility) -> None:
        nonlocal counts
        if not attention.window_tolerance:
            return
        window = attention.maps(queries, keys, visibility).window
        seen = visibility.visible(attention.query_heads(queries)[0], attention.key_heads(keys)[0])
        visible = torch.ones_like(window, dtype=torch.bool) if seen is None else seen.expand_as(window)
        counts = counts.plus(count_outside(window, visible, attention.window_tolerance))

    number = len(task.lengths(split)[0])
    rows = sorted(set(np.linspace(0, number - 1, EXAMPLES).round().astype(int).tolist())) if number else []
    with evaluating(model) as device, watched(windows, watcher):
        for row in rows:
            task.loss(model, task.collate(split, np.array([row])).to(device))
    return {"keys_outside": counts.keys_share, "tiles_outside": counts.tiles_share}
