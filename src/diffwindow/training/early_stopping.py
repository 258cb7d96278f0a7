"""The best validation so far, and how long ago it was."""

from __future__ import annotations

import math
from dataclasses import dataclass

LOWER_IS_BETTER = ("loss", "nll", "ppl", "perplexity")


@dataclass(frozen=True)
class Best:
    """The best value of the watched metric, its update, and the validations since."""

    value: float | None = None
    update: int = 0
    stale: int = 0

    def after(self, update: int, value: float, metric: str) -> Best:
        """Give the state after another validation; a value that is not finite is never better.

        >>> Best(0.5, 100).after(200, 0.7, "loss")
        Best(value=0.5, update=100, stale=1)
        """
        lower = any(metric == name or metric.endswith(f"_{name}") for name in LOWER_IS_BETTER)
        better = self.value is None or (value < self.value if lower else value > self.value)
        return (
            Best(value, update)
            if better and math.isfinite(value)
            else Best(self.value, self.update, self.stale + 1)
        )
