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
_ABSENT = (0,) * 9
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
    views = _views((q, q_left, q_right, q_local, k, k_left, k_right, k_local, v), q.dtype)
    return None if views is None else _run(views, q, options)


def _is_pair(local: tuple[Tensor, Tensor]) -> bool:
    """Tell whether both are tensors: without them the kernel computes a multiplicative window."""
    return isinstance(local[0], Tensor) and isinstance(local[1], Tensor)


def _can_serve(dtype: torch.dtype, options: Options) -> bool:
    """Tell whether the kernel is there for such options."""
    return (
        dtype in (torch.float32, torch.bfloat16)
        and options.dropout_p == 0
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
    mask = _views((_four_dimensional(options.attn_mask),), torch.bool)
    bias = _views((_four_dimensional(options.attn_bias),), torch.float32)
    origin = options.segment_origin
    origins = [0, 0, 0] if origin is None else _views((origin,), torch.int64, dimensions=1)
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


def _views(
    tensors: tuple[Tensor | None, ...], dtype: torch.dtype, *, dimensions: int = 4
) -> list[int] | None:
    """List the address, sizes and strides of each; return None if one is not a plain tensor in memory."""
    views: list[int] = []
    with_gradients = torch.is_grad_enabled()
    for x in tensors:
        if x is None:
            views += _ABSENT
            continue
        if type(x) is not Tensor or x.dtype is not dtype or not x.is_cpu or x.is_neg():
            return None
        if with_gradients and x.requires_grad:
            return None
        try:
            view = (x.data_ptr(), *x.shape, *x.stride())
        except RuntimeError:
            # sparse and nested tensors have no address or no strides
            return None
        if len(view) != 1 + 2 * dimensions:
            return None
        views += view
    return views


def _four_dimensional(x: Tensor | None) -> Tensor | None:
    # what is no tensor is refused by the views
    return x if not isinstance(x, Tensor) or x.dim() >= 4 else x[(None,) * (4 - x.dim())]
