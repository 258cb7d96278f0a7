"""The kernel of single queries: against the float64 oracle, and that every other call goes its usual way."""

import math
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from diffwindow import functional, ops
from diffwindow.kernels import operator, single_query
from samples.configurations import (
    BIASES,
    MASKS,
    Configuration,
    as_views,
    call,
    draw,
    leaves,
    options,
    tensors,
)
from samples.kernel_marks import BOTH_KINDS, NEEDS_COMPILER

pytestmark = NEEDS_COMPILER

# what the kernel reads in place
DENSE = ("rows", "heads inside", "padded", "one head", "overlapping", "shared")
EPS = torch.finfo(torch.float32).eps


def single(**chosen) -> Configuration:
    return Configuration(queries=1, **chosen)


def run(config: Configuration, impl: str, dtype: torch.dtype) -> torch.Tensor:
    with torch.no_grad():
        return call(leaves(config, dtype), impl=impl, **options(config))


def check(config: Configuration) -> None:
    """Hold the output to twice the error of eager in the same precision.

    The floor is four roundings of the largest value that meets in the sums: an output, a value or a score.
    """
    exact = run(config, "reference", torch.float64)
    eager = run(config, "reference", config.dtype)
    # what the kernel does not read in place goes to the tiled ones, if they support it
    ours = run(config, "auto", config.dtype)
    assert ours.dtype == config.dtype
    q, k, v, *pointers = tensors(config)
    pairs = [(q, k), *zip(pointers[::2], pointers[1::2], strict=True)]
    scores = [functional.scores(*pair, config.scale) for pair in pairs]
    largest = max(x.abs().max().item() for x in (exact, v, *scores))
    allowed = 2 * (eager.double() - exact).abs().max().item() + 4 * EPS * max(largest, 1.0)
    error = (ours.double() - exact).abs().max().item()
    assert error <= allowed, f"error {error:.3g} > {allowed:.3g} in {config}"


@pytest.fixture
def no_operator(monkeypatch):
    """Fail where a call does not go the direct way."""
    monkeypatch.setattr(operator, "window_attention", lambda *_: pytest.fail("the operator was called"))


@pytest.mark.parametrize("start", range(0, 150, 50))
def test_random_configurations(start):
    for seed in range(start, start + 50):
        drawn = replace(draw(seed), queries=1, window_tolerance=(0.0, 0.003, 0.1)[seed % 3])
        normalize = seed % 4 == 1 and not drawn.additive
        layouts = drawn.layouts if seed % 2 else tuple(DENSE[i % 6] for i in range(seed, seed + 9))
        if not (drawn.mask == "hides all" and drawn.causal):
            check(replace(drawn, normalize=normalize, layouts=layouts))


VARIANTS = {
    "plain": {},
    "causal": {"causal": True},
    "exact": {"expectation": "exact"},
    "exact segments from an origin": {"segment_size": 5, "expectation": "exact", "origin": True},
    "segments longer than the keys": {"segment_size": 400, "origin": True},
    "scale": {"scale": 0.7},
    "a decoder's cache": {"stacked": True, "heads": 3, "mask": "padding"},
    "bf16": {"dtype": torch.bfloat16, "stacked": True},
    "widths": {"widths": (7, 64, 20, 7, 140)},
    "no tail": {"widths": (64, 8, 8, 64, 64), "heads": 8},
    "wide scores": {"spread": 3.0},
    "tolerance": {"window_tolerance": 0.1, "spread": 2.0},
    "sinks": {"sinks": 3, "window_tolerance": 0.1, "spread": 2.0},
    "sinks in a padded cache": {"sinks": 9, "origin": True, "mask": "per head", "stacked": True},
    **{f"mask {mask}": {"mask": mask} for mask in MASKS[1:]},
    **{f"layout {layout}": {"layouts": (layout,) * 9} for layout in DENSE[1:]},
    **{f"bias {bias}": {"bias": bias} for bias in BIASES[1:]},
}


@BOTH_KINDS
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option_goes_the_direct_way(additive, variant, no_operator):
    for keys in (1, 8, 31, 130):
        check(single(additive=additive, keys=keys, **VARIANTS[variant]))


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_normalised_windows_go_the_direct_way(tolerance, no_operator):
    for keys in (1, 8, 65):
        chosen = {"keys": keys, "window_tolerance": tolerance, "normalize": True, "spread": 2.0}
        check(single(additive=False, **chosen))
        check(single(additive=False, segment_size=3, mask="padding", stacked=True, **chosen))
        check(single(additive=False, sinks=2, **chosen))


@BOTH_KINDS
def test_agrees_with_the_tiled_kernels(additive):
    config = single(additive=additive, keys=200, heads=4, widths=(64,) * 5, mask="per head", segment_size=3)
    inputs = leaves(config, torch.float32)
    tiled = call(inputs, impl="cpu", **options(config))
    assert tiled.requires_grad
    with torch.no_grad():
        direct = call(inputs, impl="cpu", **options(config))
    assert not direct.requires_grad
    assert_close(direct, tiled.detach(), rtol=1e-5, atol=1e-6)
    assert direct.stride() == tiled.stride()


@BOTH_KINDS
@pytest.mark.parametrize("stacked", [False, True])
def test_threads_change_no_bit(additive, stacked):
    # large enough for several threads
    config = single(additive=additive, keys=1030, heads=7, widths=(64,) * 5, stacked=stacked)
    results = []
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        try:
            results.append(run(config, "cpu", torch.float32))
        finally:
            torch.set_num_threads(1)
    assert all(torch.equal(results[0], result) for result in results[1:])


@BOTH_KINDS
def test_a_query_that_sees_nothing_gives_zeros(additive):
    with torch.no_grad():
        inputs = [x.float() for x in tensors(single(additive=additive))]
        mask = torch.ones(2, 1, 1, 65, dtype=torch.bool)
        mask[1] = False
        for x in inputs:
            x[1] = math.nan
        out = call(inputs, impl="cpu", attn_mask=mask)
    assert out[0].isfinite().all()
    assert not out[1].any()


@BOTH_KINDS
@pytest.mark.parametrize("bias", [False, True])
def test_what_is_hidden_may_be_nan(additive, bias, no_operator):
    mask = torch.ones(2, 1, 1, 65, dtype=torch.bool)
    # on the left, in the middle and on the right
    hidden = [*range(9), *range(20, 30), *range(50, 65)]
    mask[..., hidden] = False
    chosen = {"attn_mask": mask}
    if bias:
        chosen = {"attn_bias": torch.zeros(mask.shape).masked_fill(~mask, -math.inf)}
    results = []
    for filling in (0.0, math.nan):
        inputs = [x.float() for x in tensors(single(additive=additive))]
        for x in inputs:
            if x.shape[2] > 1:
                x[:, :, hidden] = filling
        results.append(call(inputs, impl="cpu", **chosen))
    assert torch.equal(*results)


@BOTH_KINDS
def test_nan_is_not_swallowed(additive, no_operator):
    for place in range(9 if additive else 7):
        inputs = [x.float() for x in tensors(single(additive=additive))]
        inputs[place][0, 0, 0, 0] = math.nan
        out = call(inputs, impl="cpu")
        assert out[0, 0].isnan().any(), place
        assert out[1:].isfinite().all()


def pointing(keys: int, left: list[int], right: list[int]) -> ops.Boundaries:
    """Make pointers of one head per entry that each point at one key only."""
    one_hot = torch.eye(keys)[None, None].expand(1, len(left), keys, keys)
    queries = [40.0 * keys**0.5 * torch.eye(keys)[side][None, :, None] for side in (left, right)]
    return ops.Boundaries(queries[0], one_hot, queries[1], one_hot)


# windows within a block of eight keys, at its edges, over several, and from the right to the left
LEFT, RIGHT = [3, 8, 7, 16, 60, 0], [4, 15, 8, 40, 20, 63]


@BOTH_KINDS
@pytest.mark.parametrize("normalize", [False, True])
def test_what_lies_outside_of_the_window_is_not_read(additive, normalize, no_operator):
    if additive and normalize:
        pytest.skip("additive windows are not normalised")
    keys, heads = 64, len(LEFT)
    boundaries = pointing(keys, LEFT, RIGHT)
    q, q_local = torch.randn(2, 1, heads, 1, 16)
    k, v, k_local = torch.randn(3, 1, heads, keys, 16)
    chosen = {"window_tolerance": 0.25} | ({"normalize": True} if normalize else {})

    def attend(impl):
        local = (q_local, k_local) if additive else None
        return ops.window_attention(q, k, v, boundaries, local, impl=impl, **chosen)

    expected = attend("reference")
    for head, (left, right) in enumerate(zip(LEFT, RIGHT, strict=True)):
        key = torch.arange(keys)
        outside = (key < min(left, right)) | (key > max(left, right))
        # scores need all keys unless they are normalised within the window
        for x in [k_local] if additive else [v, k] if normalize else [v]:
            x[0, head, outside] = math.nan
    # a block in which some keys count is read whole, and what does not count is left out
    assert_close(attend("cpu"), expected, rtol=1e-5, atol=1e-6)


class TestOtherCallsGoTheirUsualWay:
    def inputs(self, dtype=torch.float32):
        return [x.to(dtype) for x in tensors(single(additive=False, keys=9))]

    def direct(self, inputs, **chosen):
        q, k, v, *pointers = inputs
        return single_query.attend(q, k, v, ops.Boundaries(*pointers), None, ops.Options(**chosen))

    def test_the_plain_case_is_served(self):
        assert self.direct(self.inputs()) is not None

    def test_gradients(self):
        inputs = self.inputs()
        inputs[4].requires_grad_()
        assert self.direct(inputs) is None
        assert call(inputs, impl="cpu").requires_grad
        with torch.no_grad():
            assert self.direct(inputs) is not None

    def test_a_bias_with_gradients(self):
        bias = torch.zeros(9, requires_grad=True)
        assert self.direct(self.inputs(), attn_bias=bias) is None
        assert call(self.inputs(), impl="auto", attn_bias=bias).requires_grad

    def test_dropout_float64_and_other_shapes(self):
        assert self.direct(self.inputs(), dropout_p=0.5) is None
        assert self.direct(self.inputs(torch.float64)) is None
        assert self.direct([x.float() for x in tensors(Configuration(additive=False))]) is None
        assert self.direct([x.mT.contiguous().mT for x in self.inputs()]) is None
        assert self.direct([x[:, :, :0] if x.shape[2] > 1 else x for x in self.inputs()]) is None

    def test_views_that_are_negated_lazily(self):
        inputs = self.inputs()
        expected = call(inputs, impl="cpu")
        lazy = [torch.complex(torch.zeros_like(x), -x).conj().imag for x in inputs]
        assert all(x.is_neg() for x in lazy)
        assert torch.equal(call([x.contiguous() for x in lazy], impl="cpu"), expected)
        assert self.direct(lazy) is None

    def test_shapes_that_do_not_agree(self):
        for place in range(7):
            inputs = self.inputs()
            for wrong in (inputs[place][:, :1], inputs[place][0], inputs[place][:1], inputs[place][..., :8]):
                # values may have a width of their own
                if place != 2 or wrong.shape[-1] == 16:
                    assert self.direct([*inputs[:place], wrong, *inputs[place + 1 :]]) is None
        shorter = [x[:, :, :8] if place == 4 else x for place, x in enumerate(self.inputs())]
        assert self.direct(shorter) is None
        for shape in ((8,), (2, 9), (3, 1, 1, 9), (1, 2, 1, 1, 9)):
            assert self.direct(self.inputs(), attn_mask=torch.ones(shape, dtype=torch.bool)) is None
            assert self.direct(self.inputs(), attn_bias=torch.ones(shape)) is None
        for origin in (torch.zeros(3, dtype=torch.long), torch.zeros(2, 1, dtype=torch.long), torch.zeros(2)):
            assert self.direct(self.inputs(), segment_origin=origin) is None

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("segment_size", True), ("segment_size", 2.0), ("segment_size", 0), ("attn_mask", torch.ones(9)),
            ("attn_bias", torch.ones(9, dtype=torch.bool)), ("dropout_p", math.nan), ("expectation", "exect"),
            ("window_tolerance", 1.0), ("window_tolerance", math.nan), ("is_causal", None), ("scale", "1"),
            ("scale", math.nan), ("segment_size", 2**63),
        ],
    )  # fmt: skip
    def test_options_that_are_wrong(self, name, value):
        assert self.direct(self.inputs(), **{name: value}) is None

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    def test_sparse_and_nested_tensors(self):
        inputs = self.inputs()
        assert self.direct([*inputs[:1], inputs[1].to_sparse(), *inputs[2:]]) is None
        nested = torch.nested.nested_tensor([torch.randn(2, 9, 16)] * 2)
        assert self.direct([*inputs[:1], nested, *inputs[2:]]) is None

    @pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
    def test_transforms_modes_and_tracers(self):
        inputs = self.inputs()
        expected = call(inputs, impl="cpu")
        batched = [torch.stack([x, x]) for x in inputs]
        found = torch.func.vmap(lambda *xs: call(list(xs), impl="auto"))(*batched)
        assert_close(found, torch.stack([expected, expected]))
        with FakeTensorMode() as mode:
            fake = call([mode.from_tensor(x) for x in inputs], impl="cpu")
        assert fake.shape == expected.shape
        graph = make_fx(lambda *xs: call(list(xs), impl="cpu"))(*inputs)
        assert "diffwindow.window_attention" in graph.code
        served = []
        torch.jit.trace(lambda *xs: served.append(self.direct(xs)) or xs[0] + 1, tuple(inputs))
        # the trace is followed by a plain call that checks it
        assert served[0] is None
        _, tangent = torch.func.jvp(
            lambda q: call([q, *inputs[1:]], impl="auto"), (inputs[0],), (torch.ones_like(inputs[0]),)
        )
        assert tangent.any()


def test_a_projected_cache_is_not_copied(no_operator, monkeypatch):
    views = as_views([x.float() for x in tensors(single(heads=3))])
    assert not any(x.is_contiguous() for x in views if x.shape[2] > 1)
    monkeypatch.setattr(torch.Tensor, "contiguous", None)
    monkeypatch.setattr(torch.Tensor, "clone", None)
    call(views, impl="cpu", attn_mask=torch.ones(2, 1, 1, 65, dtype=torch.bool))


def test_tensors_of_another_device_do_not_ask_for_the_cpu_kernels(monkeypatch):
    """On a GPU without a compiler beside it there is nothing to compile and nothing to warn of."""

    def compiled():
        raise AssertionError("asked for the CPU kernels")

    monkeypatch.setattr(single_query.build, "why_not", compiled)
    q, pointers = torch.empty(1, 2, 1, 4, device="meta"), torch.empty(1, 2, 5, 4, device="meta")
    boundaries = ops.Boundaries(q, pointers, q, pointers)
    assert single_query.attend(q, pointers, pointers, boundaries, None, ops.Options()) is None
