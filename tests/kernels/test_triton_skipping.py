"""Windows with a tolerance, and normalised ones, in the Triton kernels: results, and skipped tiles."""

import math

import pytest
import torch

from samples.configurations import Configuration, call, check, leaves, tensors
from samples.dropout import check_dropout

pytest.importorskip("diffwindow.kernels.triton_launch", reason="triton is not installed")
from triton.runtime import interpreter

from benchmarks import roofline
from diffwindow.kernels import triton_blocks

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs them instead, see test_gpu.py")

SMALL = {"queries": 21, "keys": 37, "batch": 1, "heads": 1, "spread": 1.5}
KINDS = {
    "multiplicative": {"additive": False, "window_tolerance": 0.5},
    "additive": {"additive": True, "window_tolerance": 0.5},
    "normalised": {"additive": False, "normalize": True},
    "normalised and cut": {"additive": False, "normalize": True, "window_tolerance": 0.3},
}
VARIANTS = {
    "narrow pointers": {"widths": (16, 2, 8, 16, 16), "causal": True, "queries": 40},
    "exact segments from an origin": {
        "segment_size": 5, "expectation": "exact", "origin": True, "causal": True
    },
    "exact segments longer than a tile": {"segment_size": 20, "expectation": "exact", "causal": True},
    "bf16 views": {"dtype": torch.bfloat16, "stacked": True},
    "padding": {"mask": "padding", "batch": 2},
    "rows that see nothing": {"mask": "hides all", "heads": 2},
    "segments longer than a tile from an origin": {"segment_size": 21, "origin": True},
    "fp16": {"dtype": torch.float16, "expectation": "exact"},
    "sinks": {"sinks": 18, "causal": True, "additive": False},
    "sinks in segments from an origin": {"sinks": 6, "segment_size": 5, "origin": True, "additive": False},
    "sinks in segments longer than a tile": {
        "sinks": 23, "segment_size": 20, "expectation": "exact", "additive": False
    },
    "hidden sinks": {"sinks": 4, "mask": "hides all", "heads": 2, "additive": False},
    "bias that hides": {"bias": "hides"},
    "lowest bias": {"bias": "lowest"},
}  # fmt: skip
# What a call takes besides its tensors.
CALLS = {
    "multiplicative": {"window_tolerance": 0.1},
    "additive": {"window_tolerance": 0.1},
    "normalised": {"window_tolerance": 0.1, "normalize": True},
}


@pytest.fixture(autouse=True, scope="module")
def fast_interpreter():
    from samples.interpreter import patch_once

    patch_once()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option(variant):
    kind = list(KINDS)[list(VARIANTS).index(variant) % len(KINDS)]
    check(Configuration(**(SMALL | KINDS[kind] | VARIANTS[variant])), "triton")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_every_option_of_every_kind(kind):
    for variant in VARIANTS.values():
        check(Configuration(**(SMALL | KINDS[kind] | variant)), "triton")


def pointing(kind, places, *, keys=48, dtype=torch.float32):
    """Make a call whose windows lie from key to key as `places` says, one pair per query."""
    random = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(1, 1, *shape, generator=random, dtype=torch.float64)

    count = len(places)
    left, right = (torch.eye(keys, dtype=torch.float64)[[pair[side] for pair in places]] for side in (0, 1))
    sharp = 80 * torch.eye(keys, dtype=torch.float64)[None, None]
    drawn = [
        randn(count, 8),
        randn(keys, 8),
        randn(keys, 8),
        left[None, None],
        sharp,
        right[None, None],
        sharp,
    ]
    drawn += [randn(count, 8), randn(keys, 8)] if kind == "additive" else []
    return [x.to(dtype).requires_grad_() for x in drawn]


# Windows in the first, the last and the middle tile of 16 keys, over two, and over all, in turns.
JUMPING = [(2, 5), (40, 47), (20, 18), (14, 17), (0, 47), (31, 31)] * 6


@pytest.mark.parametrize("kind", CALLS)
def test_windows_that_jump_between_tiles(kind):
    results = []
    for impl, dtype in (
        ("reference", torch.float64),
        ("reference", torch.float32),
        ("triton", torch.float32),
    ):
        inputs = pointing(kind, JUMPING, dtype=dtype)
        out = call(inputs, impl=impl, **CALLS[kind])
        grad = torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out)
        results.append([x.double() for x in (out, *torch.autograd.grad(out, inputs, grad))])
    # the rule of `check`: gradients of weights meet the pointers' scaled keys
    floor = 4 * torch.finfo(torch.float32).eps * (80 / 48**0.5) * (grad @ inputs[2].mT).abs().max().item()
    for place, (true, eager, ours) in enumerate(zip(*results, strict=True)):
        allowed = (3 if place else 2) * (eager - true).abs().max().item() + floor
        assert (ours - true).abs().max() <= allowed, place


# All of these windows lie in the second of three tiles of 16 keys.
IN_ONE_TILE = [(18, 25), (20, 30)] * 10


@pytest.mark.parametrize(
    ("kind", "hidden", "sinks"),
    [("multiplicative", [2], 0), ("additive", [8], 0), ("normalised", [1, 2], 0), ("normalised", [1, 2], 3)],
)
def test_what_a_window_does_not_reach_is_not_read(kind, hidden, sinks):
    # NaN in the values, the local keys, or the keys and values of other tiles would show if it were read.
    assert triton_blocks.INTERPRETED.forward.keys == 16
    inputs = pointing(kind, IN_ONE_TILE)
    results = []
    for filling in (0.0, math.nan):
        filled = [x.detach().clone() for x in inputs]
        for place in hidden:
            if not sinks:
                filled[place][:, :, :16] = filling
            filled[place][:, :, 32:] = filling
        filled = [x.requires_grad_() for x in filled]
        out = call(filled, impl="triton", **CALLS[kind], **({"sinks": sinks} if sinks else {}))
        results.append([out, *torch.autograd.grad(out.square().sum(), filled)])
    for clean, found in zip(*results, strict=True):
        assert torch.equal(found, clean)
    # a sink is read, wherever the windows are; so are all values beside an additive window
    assert results[0][3][:, :, 0].any() == (sinks > 0 or kind == "additive")


# Products per tile that a window reaches and per other tile, of forward, of both sweeps over keys and of the
# sweep over queries: those for φ and its gradients, and what else is left.
PRODUCTS = {
    "multiplicative": ((4 + 2) + (6 + 5) + (4 + 4), (4 + 1) + (6 + 2) + (4 + 2)),
    "additive": ((4 + 3) + (6 + 8) + (4 + 6), (4 + 2) + (6 + 5) + (4 + 4)),
    "normalised": ((4 + 2) + (6 + 5) + (4 + 4), 4 + 6 + 4),
}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize(("places", "tiles"), [(IN_ONE_TILE, 1), (JUMPING[:20], 3)], ids=["one", "all"])
def test_products_are_skipped_where_no_window_reaches(kind, places, tiles, monkeypatch):
    count = 0
    multiply = interpreter.InterpreterBuilder.create_dot

    def create_dot(*arguments):
        nonlocal count
        count += 1
        return multiply(*arguments)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
    inputs = pointing(kind, places)
    out = call(inputs, impl="triton", **CALLS[kind])
    torch.autograd.grad(out.sum(), inputs)
    near, far = PRODUCTS[kind]
    assert count == tiles * near + (3 - tiles) * far


@pytest.mark.parametrize("kind", CALLS)
def test_the_roofline_counts_the_same_products(kind):
    counts = zip(*(roofline.OURS[kernel, kind] for kernel in ("forward", "query", "key")), strict=True)
    assert tuple(sum(each.pointers + each.heads for each in side) for side in counts) == PRODUCTS[kind]


def test_the_roofline_counts_the_tiles_that_a_block_reaches():
    # Windows of 10 keys that start at any key, for blocks of 3 queries and tiles of 4 keys.
    block, keys = triton_blocks.Block(3, 4, 1, 1), 1000
    reached = [(start + 2 + 10 - 1) // 4 - start // 4 + 1 for start in range(4)]
    share = sum(reached) / 4 * 4 / keys
    problem = roofline.Problem(1, keys, 64, 64, 10 / keys, 0.1)
    assert roofline.reached(block, problem) == pytest.approx(share)
    assert roofline.reached(block, problem._replace(tolerance=0.0)) == 1.0


@pytest.mark.parametrize("normalize", [False, True])
def test_a_row_cut_to_nothing_is_zero_with_zero_gradients(normalize):
    inputs = [x.float() for x in tensors(Configuration(additive=False, **SMALL))]
    # Query 4 points anywhere, so that its M is little more than a half; all its logits are very low.
    for place in (3, 5):
        inputs[place][:, :, :] *= 3
        inputs[place][:, :, 4] = 0
    for place in (4, 6):
        inputs[place][..., 0] = 1
        inputs[place - 1][:, :, 4, 0] = -2000
    inputs = [x.requires_grad_() for x in inputs]
    out = call(inputs, impl="triton", window_tolerance=0.8, normalize=normalize)
    assert not out[:, :, 4].any()
    assert out.any()
    grads = torch.autograd.grad(out[:, :, 4].sum(), inputs, retain_graph=True)
    assert not any(grad.any() for grad in grads)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), inputs))


@pytest.mark.parametrize("kind", CALLS)
def test_output_and_gradients_under_dropout(kind):
    config = Configuration(additive=kind == "additive", **(SMALL | {"spread": 1.0}))
    check_dropout(config, 0.3, "triton", **CALLS[kind])


@pytest.mark.filterwarnings("ignore:All-NaN slice", "ignore:overflow encountered in exp2")
def test_nan_is_not_swallowed():
    for place in range(7):
        inputs = [x.float() for x in tensors(Configuration(additive=False, **SMALL))]
        inputs[place][0, 0, 3, 0] = math.nan
        assert call(inputs, impl="triton", normalize=True).isnan().any(), place


def test_empty_lengths():
    for queries, keys in ((0, 5), (3, 0)):
        inputs = leaves(Configuration(additive=False, queries=queries, keys=keys), torch.float32)
        out = call(inputs, impl="triton", normalize=True, window_tolerance=0.1)
        assert not out.any()
        assert not any(grad.any() for grad in torch.autograd.grad(out.sum(), inputs))
