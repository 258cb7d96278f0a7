"""Windows that leave tiles of keys out: results are those of the reference, whichever tiles are skipped."""

import math

import pytest
import torch

from diffwindow import ops
from samples import configurations
from samples.configurations import Configuration, call, check, options, tensors
from samples.dropout import check_dropout
from samples.kernel_marks import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER

KINDS = {
    "multiplicative": {"additive": False},
    "additive": {"additive": True},
    "normalised": {"additive": False, "normalize": True},
}
TOLERANCES = {name: {**kind, "window_tolerance": 0.003} for name, kind in KINDS.items()}
KEYS = 300


def pointing(config: Configuration, left: torch.Tensor, right: torch.Tensor) -> list[torch.Tensor]:
    """Draw tensors whose boundaries point at keys `left` and `right` of each query, `[b h q]`.

    Keys lie on a half circle, in order, and a query points at one of them.
    """
    inputs = [x.clone() for x in plain_tensors(config)]
    sharpness = math.sqrt(config.widths[1]) * (config.keys / 20) ** 2
    for place, target in ((3, left), (5, right)):
        for x, at, length in (
            (inputs[place], target, sharpness),
            (inputs[place + 1], torch.arange(config.keys), 1.0),
        ):
            angle = math.pi * at.double() / config.keys
            x[..., :2] = length * torch.stack([angle.cos(), angle.sin()], -1)
    return inputs


plain_tensors = tensors


def jumping(config: Configuration) -> list[torch.Tensor]:
    """Draw windows of about ten keys anywhere, in either order: neighbours look at different tiles."""
    shape = (config.batch, config.heads, config.queries)
    left = torch.randint(config.keys, shape, generator=config.generator())
    return pointing(config, left, (left + 10).clamp(max=config.keys - 1).where(left % 2 == 0, left - 10))


def halves(config: Configuration) -> list[torch.Tensor]:
    """Let 16 queries, a panel, have their windows in one tile, and the next 16 far away in another."""
    far = torch.arange(config.queries) // 16 % 2 * (config.keys - 40)
    return pointing(config, 5 + far, 30 + far)


def one_place(config: Configuration) -> list[torch.Tensor]:
    """Put all windows on the last keys of the second tile."""
    return pointing(config, torch.full((config.queries,), 100), torch.full((config.queries,), 127))


PLACES = {"halves": halves, "one place": one_place}
VARIANTS = {
    "plain": {},
    "causal": {"causal": True},
    "segments": {"segment_size": 7, "origin": True},
    "long segments": {"segment_size": 70},
    "exact": {"expectation": "exact", "segment_size": 3},
    "mask": {"mask": "per head"},
    "padding": {"mask": "padding", "causal": True},
    "hides all": {"mask": "hides all"},
    "bias": {"bias": "hides"},
    "bf16": {"dtype": torch.bfloat16},
    "two wide": {"widths": (16, 2, 2, 16, 16)},
    "three wide": {"widths": (16, 3, 3, 16, 7)},
    "sinks": {"sinks": 4, "causal": True},
    "sinks within segments from an origin": {"sinks": 5, "segment_size": 7, "origin": True},
    "sinks that are hidden": {"sinks": 3, "mask": "per head", "dtype": torch.bfloat16},
    "views": {"stacked": True, "widths": (16, 8, 8, 16, 16)},
}


@pytest.mark.parametrize("kind", TOLERANCES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_windows_that_jump_between_tiles(kind, variant, monkeypatch):
    check_places(jumping, {**TOLERANCES[kind], **VARIANTS[variant]}, monkeypatch)


@pytest.mark.parametrize("kind", TOLERANCES)
@pytest.mark.parametrize("variant", ["plain", "causal", "segments", "sinks"])
@pytest.mark.parametrize("places", PLACES)
def test_windows_that_leave_tiles_out(kind, variant, places, monkeypatch):
    check_places(PLACES[places], {**TOLERANCES[kind], **VARIANTS[variant]}, monkeypatch)


def check_places(places, settings, monkeypatch):
    monkeypatch.setattr(configurations, "tensors", places)
    check(Configuration(queries=77, keys=KEYS, batch=1, **settings))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 2, 4, 7, 8, 9, 16])
def test_narrow_boundaries(kind, width):
    check(Configuration(queries=70, keys=131, widths=(16, width, width, 16, 16), **KINDS[kind]))
    check(Configuration(queries=5, keys=66, widths=(16, width, 8, 16, 16), causal=True, **KINDS[kind]))


@pytest.mark.parametrize("normalize", [False, True])
def test_rows_that_are_cut_to_nothing(normalize):
    # uniform boundaries, as the first queries have, give an M of a half at most
    config = Configuration(queries=40, keys=KEYS, additive=False, normalize=normalize)
    inputs = one_place(config)
    for place in (3, 5):
        inputs[place][:, :, :20] = 0.0
    leaves = [x.float().requires_grad_() for x in inputs]
    out = call(leaves, impl="cpu", window_tolerance=0.6, normalize=normalize)
    exact = [x.clone().requires_grad_() for x in inputs]
    expected = call(exact, impl="reference", window_tolerance=0.6, normalize=normalize)
    assert not expected[:, :, :20].any()
    assert not out[:, :, :20].any()
    assert out[:, :, 20:].any(-1).all()
    grad = torch.randn_like(expected)
    found = torch.autograd.grad(out, leaves, grad.float())
    for ours, true in zip(found, torch.autograd.grad(expected, exact, grad), strict=True):
        assert (ours - true).abs().max() <= 1e-4 * true.abs().max()
    for place in (0, 3, 5):
        assert not found[place][:, :, :20].any()


@pytest.mark.parametrize("kind", ["multiplicative", "normalised"])
def test_values_outside_of_all_windows_are_not_read(kind):
    config = Configuration(queries=40, keys=KEYS, **TOLERANCES[kind])
    inputs = [x.float() for x in one_place(config)]
    inputs[2][:, :, 192:] = math.nan
    leaves = [x.requires_grad_() for x in inputs]
    out = call(leaves, impl="cpu", **options(Configuration(**TOLERANCES[kind])))
    assert out.isfinite().all()
    grads = torch.autograd.grad(out.sum(), leaves)
    assert all(grad.isfinite().all() for grad in grads)
    assert not grads[2][:, :, 192:].any()


@pytest.mark.parametrize("kind", ["multiplicative", "normalised"])
@pytest.mark.parametrize("start", [0, 70])
def test_sinks_are_read_and_the_rest_of_their_tile_is_not(kind, start):
    config = Configuration(queries=40, keys=KEYS, batch=1, sinks=4, **TOLERANCES[kind])
    chosen = options(config) | {"segment_origin": torch.tensor([start])}
    place = torch.full((config.queries,), 210)
    results = []
    for filling in (0.0, math.nan):
        inputs = [x.float() for x in pointing(config, place, place + 20)]
        inputs[2][:, :, start + 4 : 128] = filling
        leaves = [x.requires_grad_() for x in inputs]
        out = call(leaves, impl="cpu", **chosen)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for clean, found in zip(*results, strict=True):
        assert torch.equal(found, clean)
    assert results[0][3][:, :, start : start + 4].all()


def test_a_score_outside_of_the_window_may_be_far_larger():
    # a normalised window does not see it: e^200 would be infinite
    config = Configuration(queries=20, keys=KEYS, additive=False, normalize=True)
    inputs = [x.float() for x in one_place(config)]
    inputs[0][..., 0], inputs[1][..., 0] = 800.0, 0.0
    inputs[1][:, :, [0, 100, 135, 200], 0] = 1.0
    leaves = [x.requires_grad_() for x in inputs]
    out = call(leaves, impl="cpu", normalize=True, window_tolerance=1e-3)
    wide = [x.detach().double() for x in inputs]
    true = ops.window_maps(wide[0], wide[1], ops.Boundaries(*wide[3:]), normalize=True, window_tolerance=1e-3)
    assert (true.weights[..., [0, 200]] == 0).all()
    torch.testing.assert_close(out.double(), true.weights @ wide[2], rtol=1e-4, atol=1e-4)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), leaves))


@pytest.mark.parametrize("kind", TOLERANCES)
def test_dropout_with_a_window_that_leaves_tiles_out(kind):
    # M is large in the middle, below 0.4 in the outer tiles
    config = Configuration(queries=37, keys=KEYS, **KINDS[kind])
    chosen = {"window_tolerance": 0.4, **({"normalize": True} if kind == "normalised" else {})}
    check_dropout(config, 0.3, "cpu", **chosen)
    if kind != "additive":
        check_dropout(config, 0.3, "cpu", sinks=3, **chosen)
