"""One query per head without gradients, as in a step of decoding: a direct call of its own C++ kernel.

The registered operator takes longer in Python than attention to a few keys does.
"""

import math
import struct

import torch
from torch import Tensor

from diffwindow.checks import MOST_KEYS, Boundaries, Options, window_threshold
from diffwindow.kernels import build, cpu

# The C++ `SingleQuery`, eight bytes per field; a view is its address, its sizes and its strides.
_LAYOUT = struct.Struct("=8q 2d 3q q" + "9q" * 11)
# what dw_single_query returns
_DONE, _NO_MEMORY = 0, 1


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    boundaries: Boundaries,
    local: tuple[Tensor, Tensor] | None,
    options: Options,
) -> Tensor | None:
    """Return the output, or None if this is not the plain case: the operator then checks and computes.

    The kernel compares the shapes itself.
    """
    if cpu.is_observed() or type(q) is not Tensor or not q.is_cpu or q.dim() != 4 or q.size(2) != 1:
        return None
    if not isinstance(boundaries, Boundaries) or not _can_serve(q.dtype, options):
        return None
    if local is not None and (options.normalize or options.sinks or not _is_pair(local)):
        return None
    q_left, k_left, q_right, k_right = boundaries
    q_local, k_local = local or (None, None)
    views = cpu.views((q, q_left, q_right, q_local, k, k_left, k_right, k_local, v), q.dtype)
    return None if views is None else _run(views, q, options)


def _is_pair(local: tuple[Tensor, Tensor]) -> bool:
    """Tell whether both are tensors: without them the kernel computes a multiplicative window."""
    return isinstance(local[0], Tensor) and isinstance(local[1], Tensor)


def _can_serve(dtype: torch.dtype, options: Options) -> bool:
    """Tell whether the kernel is there for such options."""
    return (
        dtype in (torch.float32, torch.bfloat16)
        and options.dropout_p == 0
        and options.gates is None
        # others raise an error, or are traced
        and type(options.is_causal) is type(options.normalize) is bool
        and type(options.segment_size) is type(options.sinks) is int
        and options.segment_size <= MOST_KEYS
        and 0 <= options.sinks <= MOST_KEYS
        and (options.scale is None or (type(options.scale) is float and math.isfinite(options.scale)))
        and type(options.window_tolerance) is type(options.dropout_p) is float
        and 0 <= options.window_tolerance < 1
        and options.expectation in ("paper", "exact")
        and build.why_not() is None
    )


def _run(views: list[int], q: Tensor, options: Options) -> Tensor | None:
    """Run the kernel on described queries, keys and values; return None if anything does not agree."""
    mask = cpu.views((cpu.with_dimensions(4, options.attn_mask),), torch.bool)
    bias = cpu.views((cpu.with_dimensions(4, options.attn_bias),), torch.float32)
    origin = options.segment_origin
    origins = [0, 0, 0] if origin is None else cpu.views((origin,), torch.int64, dimensions=1)
    if mask is None or bias is None or origins is None:
        return None
    batch, heads, width = views[1], views[2], views[-5]
    strides = (heads * width, width, heads * width, 1)
    out = torch.empty_strided((batch, heads, 1, width), strides, dtype=q.dtype, device=q.device)
    threshold = window_threshold(options.window_tolerance, torch.float32, normalize=options.normalize)
    fields = _LAYOUT.pack(
        q.dtype is torch.bfloat16, options.is_causal, options.expectation == "exact", options.normalize,
        options.segment_size, options.sinks, options.scale is not None, torch.get_num_threads(),
        options.scale or 0.0, threshold, *origins, out.data_ptr(), *mask, *bias, *views,
    )  # fmt: skip
    status = build.load().dw_single_query(fields)
    if status == _NO_MEMORY:
        raise MemoryError("there is no memory for the scores of a query")
    return out if status == _DONE else None
