"""Calls of interval attention with all their options, and how far each implementation is from exact."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from diffwindow import functional
from diffwindow.ops import interval_attention
from samples.configurations import lay_out

LENGTHS = (1, 2, 16, 17, 31, 63, 64, 65, 130, 257)
WINDOWS = ("random", "spans", "all", "none", "broadcast", "mostly empty")
MASKS = ("none", "right padding", "left padding", "per query", "per head", "transposed", "hides all")
# the sizes of the tables of keys and of values; 0 is no table
TABLES = ((0, 0), (3, 3), (16, 16), (200, 200), (5, 0), (0, 5))
BIASES = ("none", "per head", "per key", "transposed", "hides")
LAYOUTS = ("rows", "heads inside", "columns", "padded", "sliced", "one head", "overlapping")


@dataclass(frozen=True)
class IntervalCase:
    """What one call is made with; its tensors follow from it alone."""

    queries: int = 65
    keys: int = 130
    batch: int = 2
    kv_heads: int = 2
    shared: int = 2
    widths: tuple[int, int] = (16, 16)
    window: str = "random"
    tables: tuple[int, int] = (0, 0)
    sinks: int = 0
    origin: bool = False
    causal: bool = False
    mask: str = "none"
    bias: str = "none"
    scale: float | None = None
    dropout_p: float = 0.0
    layouts: tuple[str, str, str] = ("rows", "rows", "rows")
    grad_layout: str = "rows"
    positions: torch.dtype = torch.int64
    dtype: torch.dtype = torch.float32
    seed: int = 0

    @property
    def heads(self) -> int:
        return self.kv_heads * self.shared


def draw(seed: int) -> IntervalCase:
    """Draw a case; the seed is all one needs to repeat it."""
    random = torch.Generator().manual_seed(seed)

    def choose(*options):
        return options[int(torch.randint(len(options), (), generator=random))]

    queries = choose(1, *LENGTHS)
    tables = choose((0, 0), (0, 0), *TABLES)
    keys = choose(queries, *LENGTHS, 600, 1100)
    return IntervalCase(
        queries=min(queries, keys) if any(tables) else queries,
        keys=keys,
        tables=tables,
        batch=choose(1, 2, 3),
        kv_heads=choose(1, 2, 3),
        shared=choose(1, 1, 2, 3),
        widths=(choose(1, 7, 8, 16, 40, 64), choose(3, 8, 16, 40, 64)),
        window=choose(*WINDOWS),
        sinks=choose(0, 0, 1, 4, 70),
        origin=choose(True, False),
        causal=choose(True, False, False),
        mask=choose("none", *MASKS),
        bias=choose("none", "none", *BIASES),
        scale=choose(None, None, 0.7),
        dropout_p=choose(0.0, 0.0, 0.3),
        layouts=tuple(choose("rows", *LAYOUTS) for _ in range(3)),
        grad_layout=choose("rows", *LAYOUTS),
        positions=choose(torch.int64, torch.int32),
        dtype=choose(torch.float32, torch.float32, torch.bfloat16),
        seed=seed,
    )


def windows(case: IntervalCase, random: torch.Generator) -> tuple[Tensor | None, Tensor | None]:
    """Draw the start and the end of each query's window, some of them outside of the keys."""
    b, h, q, k = case.batch, case.heads, case.queries, case.keys

    def positions(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=random)

    if case.window == "spans":
        end = torch.arange(q) + max(0, k - q)
        return end - positions(0, max(2, k // 2), 1, h, 1), end
    if case.window == "all":
        return torch.tensor(0), torch.tensor(k)
    if case.window == "none":
        return None, None
    if case.window == "broadcast":
        return positions(-5, k + 5, b, 1, q), positions(0, k + 5, h, 1)
    if case.window == "mostly empty":
        return positions(0, k + 5, b, h, q), positions(-5, k // 2 + 1, b, h, q)
    return positions(-5, k + 5, b, h, q), positions(-5, k + 5, b, h, q)


def mask_of(case: IntervalCase, random: torch.Generator) -> Tensor | None:
    b, h, q, k = case.batch, case.heads, case.queries, case.keys
    if case.mask == "none":
        return None
    if case.mask == "right padding":
        return torch.arange(k) < torch.randint(1, k + 1, (b, 1, 1, 1), generator=random)
    if case.mask == "left padding":
        return torch.arange(k) >= torch.randint(0, k + 1, (b, 1, 1, 1), generator=random)
    share = 2 / k if case.mask == "hides all" else 0.7
    visible = torch.rand(b, 1 if case.mask == "per query" else h, q, k, generator=random) < share
    return visible.mT.contiguous().mT if case.mask == "transposed" else visible


def bias_of(case: IntervalCase, random: torch.Generator) -> Tensor | None:
    b, h, q, k = case.batch, case.heads, case.queries, case.keys
    if case.bias == "none":
        return None
    shape = {"per key": (b, 1, 1, k), "per head": (1, h, q, k)}.get(case.bias, (b, h, q, k))
    bias = torch.randn(shape, generator=random)
    if case.bias == "transposed":
        return bias.mT.contiguous().mT
    return bias.masked_fill(bias < -1, -math.inf) if case.bias == "hides" else bias


def tables_of(case: IntervalCase) -> dict[str, Tensor]:
    """Draw the tables of distances, which are not contiguous, in fp32, as a model's parameters are."""
    random = torch.Generator().manual_seed(case.seed)
    sizes = zip(("key_table", "value_table"), case.tables, case.widths, strict=True)
    return {
        name: torch.randn(width, 2 * size + 1, generator=random).mT for name, size, width in sizes if size
    }


def arguments(case: IntervalCase) -> tuple[list[Tensor], list[Tensor | None], dict, Tensor]:
    """Draw q, k, v, then start and end, then the options, then the gradient of the output."""
    random = torch.Generator().manual_seed(case.seed)
    e, w = case.widths
    shapes = ((case.heads, case.queries, e), (case.kv_heads, case.keys, e), (case.kv_heads, case.keys, w))
    drawn = [torch.randn(case.batch, *shape, generator=random).to(case.dtype) for shape in shapes]
    tensors = [lay_out(x, layout) for x, layout in zip(drawn, case.layouts, strict=True)]
    bounds = [None if x is None else x.to(case.positions) for x in windows(case, random)]
    # every other element, so that it is not contiguous
    origin = torch.randint(-2, case.keys + 2, (2 * case.batch,), generator=random)[::2]
    options = {
        "sinks": case.sinks,
        "origin": origin if case.origin else None,
        "attn_mask": mask_of(case, random),
        "attn_bias": bias_of(case, random),
        "is_causal": case.causal,
        "scale": case.scale,
        "dropout_p": case.dropout_p,
    }
    shape = (case.batch, case.heads, case.queries, w)
    grad = lay_out(torch.randn(shape, generator=random).to(case.dtype), case.grad_layout)
    return tensors, bounds, options, grad


def output_and_gradients(case: IntervalCase, impl: str, dtype: torch.dtype) -> list[Tensor]:
    """Run forward and backward."""
    tensors, bounds, options, grad = arguments(case)
    leaves = [x.detach().to(dtype).requires_grad_() for x in tensors]
    wide = torch.promote_types(dtype, torch.float32)
    tables = {name: x.detach().to(wide).requires_grad_() for name, x in tables_of(case).items()}
    torch.manual_seed(case.seed)
    out = interval_attention(*leaves, *bounds, impl=impl, **tables, **options)
    return [out, *torch.autograd.grad(out, [*leaves, *tables.values()], grad.to(dtype))]


def check(case: IntervalCase, impl: str = "cpu") -> None:
    """Hold an implementation to 2x (output) and 3x (gradients) the error of eager in the same precision.

    The floor is four roundings of the largest value that meets in the sums, as for window attention.
    """
    exact = output_and_gradients(case, "reference", torch.float64)
    eager = output_and_gradients(case, "reference", case.dtype)
    fused = output_and_gradients(case, impl, case.dtype)
    (q, k, v), _, _, grad = arguments(case)
    tables = tables_of(case)
    scale = functional.default_scale(case.widths[0]) if case.scale is None else case.scale
    factor = max(1.0, *(scale * x.abs().max().item() for x in (q, k, v, *tables.values())))
    values = [functional.repeat_heads(v.double(), case.heads)]
    values += [x.double() for name, x in tables.items() if name == "value_table"]
    grad_weights = sum((grad.double() @ x.mT).abs().max().item() for x in values)
    largest = max(factor * grad_weights, *(x.abs().max().item() for x in exact))
    floor = 4 * torch.finfo(torch.float32).eps * max(largest, 1.0)
    for place, (true, plain, ours) in enumerate(zip(exact, eager, fused, strict=True)):
        assert ours.dtype == plain.dtype
        allowed = (3 if place else 2) * (plain.double() - true).abs().max().item() + floor
        error = (ours.double() - true).abs().max().item()
        assert error <= allowed, f"result {place}: error {error:.3g} > {allowed:.3g} in {case}"
