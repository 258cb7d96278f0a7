"""How well learned windows fit the gold ones: from the subject phrase to the verb."""

import numpy as np
from numpy.typing import NDArray


def soft_overlap(window: NDArray[np.float64], gold: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return Σ min(M, g) / Σ max(M, g) over keys, which is intersection over union where M is hard.

    M counts as at most 1, for the paper's window reaches 2 where its boundaries meet.

    >>> gold = np.array([False, True, True, False])
    >>> soft_overlap(np.array([[0.0, 2.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]), gold).tolist()
    [0.5, 0.5]
    """
    clipped, target = np.minimum(window, 1.0), gold.astype(float)
    union = np.maximum(clipped, target).sum(-1)
    overlap: NDArray[np.float64] = np.minimum(clipped, target).sum(-1) / np.maximum(union, 1e-12)
    return overlap


def inside(weights: NDArray[np.float64], gold: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the share of attention that falls inside the gold window; weights need not sum to one.

    >>> inside(np.array([[0.5, 0.25, 0.25]]), np.array([False, True, True])).tolist()
    [0.5]
    """
    share: NDArray[np.float64] = (weights * gold).sum(-1) / np.maximum(weights.sum(-1), 1e-12)
    return share


def gold_windows(starts: NDArray[np.integer], ends: NDArray[np.integer], num_keys: int) -> NDArray[np.bool_]:
    """Mark the keys from start to end, both included: [b k].

    >>> gold_windows(np.array([1]), np.array([2]), 4).tolist()
    [[False, True, True, False]]
    """
    key = np.arange(num_keys)
    marked: NDArray[np.bool_] = (key >= starts[:, None]) & (key <= ends[:, None])
    return marked
