"""The Triton backend of `operator`; its kernels are imported, and triton with them, when first called.

With `TRITON_INTERPRET=1` Triton runs the kernels in Python on CPU tensors, slowly: so they are tested.
"""

import functools
import os
import warnings

from torch import Tensor

from diffwindow.kernels.operator import Call


def interpreted() -> bool:
    """Say whether Triton runs its kernels in Python on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


@functools.cache
def why_not() -> str | None:
    """Say why there are no Triton kernels, or None if there are; warn once."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        reason = f"triton cannot be imported ({error}); install diffwindow[gpu]"
        warnings.warn(f"window attention runs on the slower reference: {reason}", stacklevel=2)
        return reason
    return None


def row_width(call: Call) -> int:
    """Return how many floats backward needs of each query: the normalisers of weights and both boundaries."""
    return 4


def forward(call: Call, out: Tensor, rows: Tensor) -> None:
    """Fill `out` and `rows`."""
    from diffwindow.kernels import triton_launch

    triton_launch.forward(call, out, rows)


def backward(call: Call, grad: Tensor, out: Tensor, rows: Tensor, grads: list[Tensor]) -> None:
    """Fill `grads`."""
    from diffwindow.kernels import triton_launch

    triton_launch.backward(call, grad, rows, grads)
