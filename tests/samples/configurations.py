"""One call of window attention with all its options, and how far each implementation is from exact."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from unittest.mock import patch

import torch
from torch import Tensor

from diffwindow import functional, ops

LENGTHS = (1, 2, 31, 63, 64, 65, 257)
MASKS = (
    "none", "padding", "per query", "per head", "one key", "transposed", "hides all", "sliced", "expanded"
)  # fmt: skip
LAYOUTS = (
    "rows", "heads inside", "columns", "batch last", "padded", "sliced",
    "one head", "one column", "overlapping", "shared",
)  # fmt: skip
BIAS_SHAPES = {
    "per key": "b11k", "per query": "b1q1", "per head": "1hqk", "per head and key": "h1k", "shared": "qk",
}  # fmt: skip
BIASES = ("none", *BIAS_SHAPES, "transposed", "hides", "lowest")
ORIGINS = (torch.int64, torch.int32, torch.int16)


@dataclass(frozen=True)
class Configuration:
    """What one call is made with; its tensors follow from it alone."""

    additive: bool = True
    queries: int = 31
    keys: int = 65
    batch: int = 2
    heads: int = 2
    widths: tuple[int, int, int, int, int] = (16, 16, 16, 16, 16)  # score, left, right, local, value
    causal: bool = False
    segment_size: int = 1
    origin: bool = False
    expectation: str = "paper"
    mask: str = "none"
    stacked: bool = False
    layouts: tuple[str, ...] = ("rows",) * 9  # of each tensor in memory
    grad_layout: str = "rows"
    origin_dtype: torch.dtype = torch.int64
    bias: str = "none"
    scale: float | None = None
    dtype: torch.dtype = torch.float32
    spread: float = 1.0
    seed: int = 0
    device: str = "cpu"
    window_tolerance: float = 0.0  # about: `options` moves it to where no M is near
    normalize: bool = False
    sinks: int = 0

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


def draw(seed: int, impl: str = "cpu") -> Configuration:
    """Draw a configuration of what an implementation supports; the seed is all one needs to repeat it."""
    support = ops.SUPPORT[impl]
    random = torch.Generator().manual_seed(seed)

    def choose(*options):
        return options[int(torch.randint(len(options), (), generator=random))]

    queries = choose(*LENGTHS, 5, 16, 17, 100)
    narrow = choose(None, None, 8, 20)
    width, value = choose(1, 7, 8, 16, 24, 32, 64), choose(3, 16, 32, 40)
    return Configuration(
        additive=choose(True, False),
        queries=queries,
        keys=choose(queries, *LENGTHS, 48, 130),
        batch=choose(1, 2, 3),
        heads=choose(1, 2, 4),
        widths=(width, narrow or width, narrow or width, width, value),
        causal=choose(True, False),
        segment_size=choose(1, 1, 2, 5, 16, 33, 64, 100),
        origin=choose(True, False),
        expectation=choose("paper", "exact"),
        mask=choose(*MASKS),
        stacked=choose(True, False),
        scale=choose(None, None, 0.05, 1.0),
        dtype=choose(torch.float32, *support.dtypes),
        spread=choose(0.3, 1.0, 2.0),
        seed=seed,
        layouts=tuple(choose(*LAYOUTS) for _ in range(9)),
        grad_layout=choose(*LAYOUTS[:-1]),
        origin_dtype=choose(*ORIGINS),
        bias=choose("none", *BIASES),
        window_tolerance=choose(0.0, 0.003, 0.1, 0.5),
        normalize=choose(True, False),
        sinks=choose(0, 0, 1, 4, 70),
    )


def lay_out(x: Tensor, layout: str) -> Tensor:
    """Place a `[b h n e]` tensor in memory; those that share elements take the values that fit."""
    if layout == "heads inside":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "columns":
        return x.mT.contiguous().mT
    if layout == "batch last":
        return x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
    if layout in ("padded", "sliced"):
        step = 1 if layout == "padded" else 2
        shape = (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3] + 1)
        view = torch.full(shape, math.nan, dtype=x.dtype, device=x.device)[
            :, :, ::2, : step * x.shape[3] : step
        ]
        return view.copy_(x)
    if layout == "one head":
        return x[:, :1].contiguous().expand_as(x)
    if layout == "one row":
        return x[:, :, :1].contiguous().expand_as(x)
    if layout == "one column":
        return x[..., :1].contiguous().expand_as(x)
    if layout == "overlapping":
        return torch.cat([x[..., 0], x[..., -1, 1:]], -1).unfold(-1, x.shape[-1], 1)
    return x.contiguous()


def laid_out(inputs: list[Tensor], layouts: tuple[str, ...]) -> list[Tensor]:
    """Lay each tensor out; a "shared" one is the memory of the first of its shape."""
    views: list[Tensor] = []
    for x, layout in zip(inputs, layouts, strict=False):
        same = [view for view in views if view.shape == x.shape] if layout == "shared" else []
        views.append(same[0] if same else lay_out(x, layout))
    return views


def tensors(config: Configuration) -> list[Tensor]:
    """Draw q, k, v, the boundaries' and the local pair, as float64 of values that the type can hold."""
    random = config.generator()
    score, left, right, local, value = config.widths
    q, k = config.queries, config.keys
    shapes = [(q, score), (k, score), (k, value), (q, left), (k, left), (q, right), (k, right)]
    if config.additive:
        shapes += [(q, local), (k, local)]
    lead = (config.batch, config.heads)
    drawn = [torch.randn(*lead, *shape, generator=random, dtype=torch.float64) for shape in shapes]
    return laid_out([(x * config.spread).to(config.dtype).double() for x in drawn], config.layouts)


def attention_mask(config: Configuration) -> Tensor | None:
    """Make the mask of the kind that the configuration names."""
    random = config.generator()
    b, h, q, k = config.batch, config.heads, config.queries, config.keys
    if config.mask == "none":
        return None
    if config.mask == "padding":
        lengths = torch.randint(1, k + 1, (b, 1, 1, 1), generator=random)
        return torch.arange(k) < lengths
    if config.mask == "one key":
        return torch.rand(b, 1, q, 1, generator=random) < 0.8
    if config.mask == "hides all":
        return torch.rand(b, h, q, k, generator=random) < 2 / k
    if config.mask == "expanded":
        return (torch.rand(b, 1, 1, k, generator=random) < 0.7).expand(b, h, q, k)
    if config.mask == "sliced":
        return (torch.rand(b, h, 2 * q, 3 * k, generator=random) < 0.7)[:, :, ::2, ::3]
    visible = torch.rand(b if config.mask == "per head" else 1, h, q, k, generator=random) < 0.7
    if config.mask == "transposed":
        return visible.mT.contiguous().mT
    return visible[0, 0] if config.mask == "per query" else visible


def attention_bias(config: Configuration) -> Tensor | None:
    """Make the bias of the kind that the configuration names, as values that fp32 can hold."""
    if config.bias == "none":
        return None
    sizes = {"b": config.batch, "h": config.heads, "q": config.queries, "k": config.keys, "1": 1}
    shape = [sizes[name] for name in BIAS_SHAPES.get(config.bias, "bhqk")]
    bias = torch.randn(shape, generator=config.generator())
    if config.bias == "transposed":
        return bias.mT.contiguous().mT
    if config.bias == "hides":
        return bias.masked_fill(bias < 0.5, -math.inf)
    if config.bias == "lowest":
        # what some libraries add in the place of -inf; in a whole row it cancels
        bias[:, :, : config.queries // 2 + 1] = torch.finfo(torch.float32).min
    return bias


def options(config: Configuration) -> dict:
    # every other element, so that it is not contiguous
    origin = torch.randint(0, config.keys, (2 * config.batch,), generator=config.generator())[::2]
    origin = origin.to(config.origin_dtype)
    mask, bias = attention_mask(config), attention_bias(config)
    chosen = {
        "attn_mask": None if mask is None else mask.to(config.device),
        "attn_bias": None if bias is None else bias.to(config.device),
        "is_causal": config.causal,
        "segment_size": config.segment_size,
        "segment_origin": origin.to(config.device) if config.origin else None,
        "expectation": config.expectation,
        "scale": config.scale,
    }
    # additive windows take neither
    if not config.additive:
        chosen |= {"normalize": config.normalize, "sinks": config.sinks}
    if config.window_tolerance > 0:
        chosen["window_tolerance"] = clear_tolerance(config, chosen)
    return chosen


def clear_tolerance(config: Configuration, chosen: dict) -> float:
    """Find a tolerance near that of the configuration from which every M of the call is far.

    An M that lies within a rounding of it is 0 in one implementation and not in another.
    """
    q, k, _, *pointers = (x.to(config.device) for x in tensors(config))
    window = ops.window_maps(q, k, ops.Boundaries(*pointers[:4]), **chosen).window.values.flatten()
    low, high = config.window_tolerance / 2, config.window_tolerance * 1.5
    near = window[(window > low) & (window < high)].tolist()
    edges = sorted([low, *near, high])
    gap, start = max((after - before, before) for before, after in pairwise(edges))
    assert gap > 1e-6, f"M is too dense around {config.window_tolerance}; take another configuration"
    return start + gap / 2


def as_views(inputs: list[Tensor]) -> list[Tensor]:
    """Lay `[b h n e]` tensors out as a projection does: rows of one length, then kinds, then heads."""
    lengths = {x.shape[2] for x in inputs}
    views = {}
    for length in lengths:
        group = [i for i, x in enumerate(inputs) if x.shape[2] == length]
        stack = torch.cat([inputs[i].transpose(1, 2).flatten(2) for i in group], -1)
        parts = stack.split([inputs[i].shape[1] * inputs[i].shape[3] for i in group], -1)
        for i, part in zip(group, parts, strict=True):
            views[i] = part.unflatten(-1, (inputs[i].shape[1], -1)).transpose(1, 2)
    return [views[i] for i in range(len(inputs))]


def call(inputs: list[Tensor], *, impl: str, **chosen) -> Tensor:
    q, k, v, *pointers = inputs
    boundaries = ops.Boundaries(*pointers[:4])
    local = tuple(pointers[4:]) or None
    return ops.window_attention(q, k, v, boundaries, local, impl=impl, **chosen)


def output_and_gradients(
    config: Configuration, impl: str, dtype: torch.dtype, *, of_bias: bool = False
) -> list[Tensor]:
    """Run forward and backward; the gradient that comes in is random but the same for all."""
    inputs, chosen = leaves(config, dtype), options(config)
    learned = list(inputs)
    if of_bias and chosen["attn_bias"] is not None:
        learned.append(chosen["attn_bias"].to(config.dtype).to(dtype).requires_grad_())
        chosen["attn_bias"] = learned[-1]
    out = call(inputs, impl=impl, **chosen)
    grad = lay_out(incoming(config).to(config.device, dtype), config.grad_layout)
    return [out, *torch.autograd.grad(out, learned, grad)]


def leaves(config: Configuration, dtype: torch.dtype) -> list[Tensor]:
    """Return the tensors in the memory layouts of the configuration, each a leaf of its own."""
    inputs = [x.to(config.device, dtype) for x in tensors(config)]
    views = as_views(inputs) if config.stacked else laid_out(inputs, config.layouts)
    return [x.detach().requires_grad_() for x in views]


def incoming(config: Configuration) -> Tensor:
    """Draw the gradient of the output."""
    shape = (config.batch, config.heads, config.queries, config.widths[-1])
    grad = torch.randn(shape, generator=config.generator(), dtype=torch.float64).to(config.dtype)
    return lay_out(grad, config.grad_layout)


class RoundedProduct(torch.autograd.Function):
    """Multiply as the matrix units of a GPU do: operands of 16 bits, sums in fp32, which are then scaled.

    To scale gradients before they are rounded would round them elsewhere than the kernels do.
    """

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
        a = a.to(dtype).float()
        ctx.save_for_backward(a, b)
        ctx.dtype, ctx.scale = dtype, scale
        return a @ b * scale

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        a, b = ctx.saved_tensors
        grad = grad.to(ctx.dtype).float()
        return grad @ b.mT * ctx.scale, a.mT @ grad * ctx.scale, None, None


@contextmanager
def matrix_units(dtype: torch.dtype) -> Iterator[None]:
    """Let the reference round what it multiplies to `dtype`."""

    def scores(q: Tensor, k: Tensor, scale: float | None = None, *, mask: Tensor | None = None) -> Tensor:
        scale = functional.default_scale(q.shape[-1]) if scale is None else scale
        return RoundedProduct.apply(q.float(), k.float().mT, dtype, scale)

    def attend(weights: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return RoundedProduct.apply(weights, v.float(), dtype, 1.0).to(dtype)

    with patch.multiple(functional, scores=scores, attend=attend):
        yield


def check(config: Configuration, impl: str = "cpu") -> None:
    """Hold the kernels to 2x (output) and 3x (gradients) the error of eager in the same precision.

    On a GPU the same precision means products of 16-bit operands for 16-bit inputs. The floor is four
    roundings of the largest value that meets in the sums, be it a result, a gradient of a weight (dO · V) or
    its product with a scaled query or key: among few numbers eager may be exact by luck. In a normalised
    window the weights over M meet there too, large where the largest scores lie outside the window.
    """
    # Triton's kernels have no gradient of the bias
    run = partial(output_and_gradients, config, of_bias=impl == "cpu")
    exact = run("reference", torch.float64)
    on_gpu = impl == "triton" and config.dtype != torch.float32
    with matrix_units(config.dtype) if on_gpu else nullcontext():
        eager = run("reference", config.dtype)
    fused = run(impl, config.dtype)
    inputs = tensors(config)
    scale = min(config.widths[:4]) ** -0.5 if config.scale is None else config.scale
    factor = max(1.0, *(scale * x.abs().max().item() for x in inputs))
    if config.normalize and not config.additive:
        q, k, _, *pointers = (x.to(config.device) for x in inputs)
        maps = ops.window_maps(q, k, ops.Boundaries(*pointers[:4]), **options(config))
        over = torch.where(maps.weights > 0, maps.weights / maps.window.values, 1.0)
        factor *= max(1.0, over.max().item())
    grad_weights = factor * incoming(config).double() @ inputs[2].mT
    largest = max(x.abs().max().item() for x in (*exact, grad_weights))
    floor = 4 * torch.finfo(torch.float32).eps * max(largest, 1.0)
    for place, (true, plain, ours) in enumerate(zip(exact, eager, fused, strict=True)):
        assert ours.dtype == config.dtype
        assert ours.device.type == config.device
        allowed = (3 if place else 2) * (plain.double() - true).abs().max().item() + floor
        error = (ours.double() - true).abs().max().item()
        assert error <= allowed, f"result {place}: error {error:.3g} > {allowed:.3g} in {config}"


def check_unseen(config: Configuration, hidden: slice, kind: str, impl: str) -> None:
    """Hold that keys and values hidden from all, and queries that see nothing, may be NaN.

    `kind` says what hides: "padding", "per query", which blinds a query too, or "bias".
    """
    mask = attention_mask(replace(config, mask="per head" if kind == "per query" else "none"))
    q = config.queries
    mask = torch.ones(config.batch, 1, 1, config.keys, dtype=torch.bool) if mask is None else mask.clone()
    mask[..., hidden] = False
    blind = kind == "per query"
    if blind:
        mask[:, :, q // 2] = False
    chosen = {"attn_mask": mask}
    if kind == "bias":
        chosen = {"attn_bias": torch.zeros(mask.shape).masked_fill(~mask, -math.inf)}
    results = []
    for filling in (0.0, math.nan):
        inputs = [x.to(config.dtype) for x in tensors(config)]
        for place, x in enumerate(inputs):
            if place in (1, 2, 4, 6, 8):
                x[:, :, hidden] = filling
            elif blind:
                x[:, :, q // 2] = filling
        inputs = [x.requires_grad_() for x in inputs]
        out = call(inputs, impl=impl, **chosen)
        results.append([out, *torch.autograd.grad(out, inputs, incoming(config))])
    for clean, found in zip(*results, strict=True):
        assert torch.equal(found, clean)
