"""The Triton backend of `operator`; its kernels are imported, and triton with them, when first called.

With `TRITON_INTERPRET=1` Triton runs the kernels in Python on CPU tensors, slowly; the tests use this.
"""

import functools
import os
import warnings

import torch
from torch import Tensor

from diffwindow.kernels.operator import Call


def interpreted() -> bool:
    """Say whether Triton runs its kernels in Python on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


@functools.cache
def why_not() -> str | None:
    """Say why there are no Triton kernels, or None if there are; warn once."""
    reason = import_failure() or old_gpu()
    if reason is not None:
        warnings.warn(f"window attention runs on the slower reference: {reason}", stacklevel=2)
    return reason


def import_failure() -> str | None:
    """Say why triton cannot be imported, or None if it can."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"triton cannot be imported ({error}); install diffwindow[gpu]"
    return None


def old_gpu() -> str | None:
    """Say which GPU is too old for the kernels, or None if none is."""
    if interpreted() or torch.version.hip or not torch.cuda.is_available():
        return None
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        if major < 8:
            return (
                f"{torch.cuda.get_device_name(index)} has compute capability {major}.{minor} and the kernels "
                "need 8.0; CUDA_VISIBLE_DEVICES can hide it from the others"
            )
    return None


def status() -> str:
    """Describe Triton and the GPUs that it would run on."""
    reason = import_failure() or old_gpu()
    if reason is not None:
        return f"unavailable: {reason}"
    import triton

    if interpreted():
        return f"triton {triton.__version__} interprets them on the CPU (TRITON_INTERPRET)"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if not names:
        return f"unavailable: triton {triton.__version__} is there, but torch sees no GPU"
    return f"ready with triton {triton.__version__} on {', '.join(sorted(set(names)))}"


def row_width(call: Call) -> int:
    """Return how many floats backward needs of each query: the normalisers of weights and both boundaries."""
    return 4


def forward(call: Call, out: Tensor, rows: Tensor) -> None:
    """Fill `out` and `rows`."""
    from diffwindow.kernels import triton_launch

    triton_launch.forward(call, out, rows)


def backward(
    call: Call, grad: Tensor, out: Tensor, rows: Tensor, grads: list[Tensor], bias: Tensor | None
) -> None:
    """Fill `grads`."""
    assert bias is None, "ops does not ask for it"
    from diffwindow.kernels import triton_launch

    triton_launch.backward(call, grad, out, rows, grads)
