"""The Triton kernels in Triton's interpreter against the float64 oracle, and what they promise besides."""

import math

import pytest
import torch

from diffwindow import ops
from diffwindow.kernels import operator, registration
from samples.configurations import (
    Configuration,
    call,
    check,
    check_unseen,
    draw,
    leaves,
    output_and_gradients,
    tensors,
)
from samples.dropout import check_dropout

triton_launch = pytest.importorskip("diffwindow.kernels.triton_launch", reason="triton is not installed")
from diffwindow.kernels import triton, triton_backward, triton_blocks, triton_forward  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs them instead, see test_gpu.py")

KINDS = pytest.mark.parametrize("additive", [False, True], ids=["multiplicative", "additive"])
SMALL = {"queries": 21, "keys": 37, "batch": 1, "heads": 1}
VARIANTS = {
    "plain": {},
    "causal": {"causal": True, "queries": 40},
    "exact": {"expectation": "exact"},
    "segments": {"segment_size": 5},
    "exact segments from an origin": {
        "segment_size": 5, "expectation": "exact", "origin": True, "causal": True
    },
    "segments longer than a tile": {"segment_size": 21, "origin": True},
    "exact segments longer than a tile": {"segment_size": 20, "expectation": "exact", "causal": True},
    "bf16 views": {"dtype": torch.bfloat16, "stacked": True, "causal": True},
    "fp16": {"dtype": torch.float16},
    "widths": {"widths": (7, 64, 20, 7, 40)},
    "widths in eights": {"widths": (16, 8, 8, 16, 24), "heads": 2, "layouts": ("heads inside",) * 9},
    "padding": {"mask": "padding", "batch": 2},
    "rows that see nothing": {"mask": "hides all", "heads": 2},
    "one query": {"queries": 1},
    "sinks": {"sinks": 3, "causal": True, "additive": False},
    "bias of keys": {"bias": "per key"},
    "bias that hides": {"bias": "hides", "dtype": torch.bfloat16},
    "lowest bias": {"bias": "lowest"},
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def fast_interpreter():
    from samples.interpreter import patch_once

    patch_once()


# the kinds of window in turns: both compute M by the same function
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option(variant):
    additive = list(VARIANTS).index(variant) % 2 == 0
    check(Configuration(**({"additive": additive} | SMALL | VARIANTS[variant])), "triton")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_option_of_the_other_kind():
    for place, variant in enumerate(VARIANTS.values()):
        check(Configuration(**({"additive": place % 2 == 1} | SMALL | variant)), "triton")


def small_draws(seeds: range) -> list[Configuration]:
    """Draw configurations, and keep those that the interpreter computes in seconds."""
    drawn = [draw(seed, "triton") for seed in seeds]
    return [x for x in drawn if x.batch * x.heads * math.ceil(x.queries / 32) * math.ceil(x.keys / 16) <= 2]


def test_random_configurations():
    for config in small_draws(range(1000, 1060)):
        check(config, "triton")


# 1060: eager is exact by luck if it rounds gradients elsewhere than the kernels. 1228: a row with one large
# weight, a large D and large local scores; the sums with D and those without it all but cancel.
@pytest.mark.parametrize("seed", [1060, 1228])
def test_configurations_that_were_once_wrong(seed):
    check(draw(seed, "triton"), "triton")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_random_configurations():
    for seed in range(2000, 2300):
        check(draw(seed, "triton"), "triton")


def test_widths_are_padded_to_what_a_product_takes():
    # What NVIDIA's matrix units take of 16 bits, and `tl.dot` of fp32; powers of two from there on.
    widths = {width: torch.empty(1, 1, 1, width) for width in (0, 1, 8, 9, 20, 64)}
    assert [triton_launch.padded(x) for x in widths.values()] == [8, 8, 8, 16, 32, 64]
    assert [triton_launch.padded(x.bfloat16()) for x in widths.values()] == [16, 16, 16, 16, 32, 64]


def test_strides_are_counted_in_eights_where_triton_would_not_see_them():
    wide, narrow, odd = (torch.empty(2, 4, 5, width).transpose(1, 2) for width in (64, 8, 7))
    assert triton_launch.step_of([wide]) == 1
    assert triton_launch.step_of([wide, narrow]) == 8
    assert triton_launch.step_of([wide, narrow, odd]) == 1
    assert triton_launch.matrix(narrow, 8)[1:] == (20, 1, 5, 1)


@KINDS
def test_output_and_gradients_under_dropout(additive):
    config = Configuration(additive=additive, **(SMALL | {"batch": 2}))
    check_dropout(config, 0.3, "triton")


@pytest.mark.parametrize(
    "variant", [{"additive": False, "causal": True}, {"dtype": torch.bfloat16, "segment_size": 20}]
)
def test_runs_of_queries_add_up(variant, monkeypatch):
    monkeypatch.setattr(triton_launch, "QUERIES_AT_ONCE", 16)
    check(Configuration(**(SMALL | variant)), "triton")


@KINDS
def test_results_are_written_in_full(additive, monkeypatch):
    # Memory comes filled with NaN: what a kernel forgets to write shows, and what it reads before it wrote.
    config = Configuration(additive=additive, mask="padding", causal=True, **SMALL)
    expected = output_and_gradients(config, "triton", torch.float32)
    outputs, grads, empty = operator.empty_outputs, registration.empty_grads, torch.empty
    poison = lambda xs: type(xs)(x.fill_(math.nan) for x in xs)  # noqa: E731
    monkeypatch.setattr(operator, "empty_outputs", lambda call: poison(outputs(call)))
    monkeypatch.setattr(registration, "empty_grads", lambda call, **how: poison(grads(call, **how)))
    monkeypatch.setattr(torch, "empty", lambda *shape, **how: empty(*shape, **how).fill_(math.nan))
    found = output_and_gradients(config, "triton", torch.float32)
    assert all(map(torch.equal, expected, found))


@KINDS
def test_a_row_that_sees_nothing_is_zero_with_zero_gradients(additive):
    inputs = leaves(Configuration(additive=additive, **SMALL), torch.float32)
    mask = torch.ones(21, 37, dtype=torch.bool)
    mask[4] = False
    out = call(inputs, impl="triton", attn_mask=mask)
    assert not out[:, :, 4].any()
    assert out.isfinite().all()
    grads = torch.autograd.grad(out[:, :, 4].sum(), inputs)
    assert not any(grad.any() for grad in grads)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_nan_is_not_swallowed():
    for place in range(9):
        inputs = [x.float() for x in tensors(Configuration(**SMALL))]
        inputs[place][0, 0, 3, 0] = math.nan
        assert call(inputs, impl="triton").isnan().any(), place


@pytest.mark.parametrize("kind", ["padding", "per query", "bias"])
def test_what_nobody_sees_may_be_nan(kind):
    config = Configuration(additive=kind != "padding", seed=3, **SMALL)
    check_unseen(config, slice(13, 20), kind, "triton")


def test_keys_after_the_last_causal_query_may_be_nan():
    config = Configuration(**SMALL)
    results = []
    for filling in (0.0, math.nan):
        inputs = [x.float() for x in tensors(config)]
        for place in (1, 2, 4, 6, 8):
            inputs[place][:, :, 21:] = filling
        inputs = [x.requires_grad_() for x in inputs]
        out = call(inputs, impl="triton", is_causal=True)
        results.append([out, *torch.autograd.grad(out.sum(), inputs)])
    assert all(map(torch.equal, *results))


def test_tuning_keeps_the_fastest_blocks_that_fit(monkeypatch):
    monkeypatch.setenv("DIFFWINDOW_TUNE", "1")
    monkeypatch.setattr(triton_blocks, "_fastest", {})
    tried = []

    def milliseconds(run, blocks):
        run(blocks)
        tried.append(blocks)
        # the third candidate is the fastest; one takes forever, as blocks do that do not fit
        return {3: 0.1, 4: math.inf}.get(len(tried), 1.0)

    monkeypatch.setattr(triton_blocks, "milliseconds", milliseconds)
    config = Configuration(**SMALL)
    inputs = [x.float() for x in tensors(config)]
    results = [call(inputs, impl="triton") for _ in range(2)]
    assert len(tried) == len(list(triton_blocks.candidates("forward", triton_blocks.INTERPRETED)))
    assert list(triton_blocks._fastest.values()) == [tried[2]]
    assert torch.equal(*results)


def test_empty_lengths():
    for queries, keys in ((0, 5), (3, 0)):
        inputs = leaves(Configuration(queries=queries, keys=keys), torch.float32)
        out = call(inputs, impl="triton")
        assert out.shape == (2, 2, queries, 16)
        assert not out.any()
        assert not any(grad.any() for grad in torch.autograd.grad(out.sum(), inputs))


def test_what_the_kernels_lack_is_an_error_by_name():
    inputs = leaves(Configuration(**SMALL), torch.float32)
    bias = torch.zeros(37, requires_grad=True)
    with pytest.raises(
        ValueError, match=r"impl=.triton. is not available: .*not support gradients of attn_bias"
    ):
        call(inputs, impl="triton", attn_bias=bias)
    wide = leaves(Configuration(**SMALL, widths=(16, 16, 16, 16, 129)), torch.float32)
    with pytest.raises(ValueError, match="not support heads of more than 512 bytes"):
        call(wide, impl="triton")
    with pytest.raises(ValueError, match="float64 is not"):
        call(leaves(Configuration(**SMALL), torch.float64), impl="triton")


def test_only_a_request_runs_the_interpreter(monkeypatch):
    half = torch.zeros(1, 1, 1, 1, dtype=torch.float16)
    assert ops.choose_impl("triton", half) == "triton"
    assert ops.choose_impl("auto", half) == "reference"
    monkeypatch.setitem(ops.SUPPORT, "triton", ops.SUPPORT["triton"]._replace(on_request=()))
    with pytest.raises(ValueError, match="the tensors are on cpu, not on cuda"):
        ops.choose_impl("triton", half)


def plain_call(x, **changes):
    """Make a call whose tensors are all the same."""
    return operator.Call(
        *(x,) * 7, None, None, None, None, None, None, is_causal=False, segment_size=1, exact=False,
        scale=None, dropout_p=0.0, backend="triton",
    )._replace(**changes)  # fmt: skip


def test_no_kernel_is_compiled_again_for_another_length():
    def sizes(length):
        call = plain_call(torch.empty(1, 2, length, 16, device="meta"))
        return triton_launch.describe(call, triton_blocks.INTERPRETED.forward, 1)[0].shape

    assert sizes(1) == sizes(100) == sizes(128)
    kernels = (triton_forward.forward_kernel, triton_backward.query_kernel, triton_backward.key_kernel)
    for kernel, lengths in zip(
        kernels, (("query_count", "key_count"), *(triton_backward.LENGTHS,) * 2), strict=True
    ):
        assert set(lengths) == set(kernel.kwargs["do_not_specialize"])


def test_segments_longer_than_the_sequence_take_one_tile():
    call = plain_call(torch.empty(1, 2, 10, 16, device="meta"), segment_size=512)
    shape = triton_launch.describe(call, triton_blocks.INTERPRETED.forward, 1)[0].shape
    assert triton_launch.count_tiles(call, shape) == 1


def test_a_key_that_only_forward_cut_has_bounded_gradients():
    """An M near the threshold may round to either side of it, in forward and in backward."""
    generator = torch.Generator().manual_seed(0)
    call = plain_call(torch.randn(1, 1, 20, 16, generator=generator), normalize=True)
    out, rows = operator.empty_outputs(call)
    triton.forward(call, out, rows)
    # as if forward had cut the keys of the largest scores
    rows[..., 0] -= 300
    grads = registration.empty_grads(call)
    triton.backward(call, torch.ones_like(out), out, rows, grads, None)
    assert all(grad.isfinite().all() for grad in grads)


def test_a_gpu_before_ampere_is_named(monkeypatch):
    monkeypatch.setattr(triton, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    assert triton.status().startswith(
        "unavailable: Tesla T4 has compute capability 7.5 and the kernels need 8.0"
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 0))
    assert triton.old_gpu() is None


def test_without_triton_auto_uses_the_reference_with_one_warning(monkeypatch):
    monkeypatch.setattr(triton, "import_failure", lambda: "triton cannot be imported")
    triton.why_not.cache_clear()
    try:
        with pytest.warns(UserWarning, match="slower reference: triton cannot be imported") as caught:
            reasons = [triton.why_not() for _ in range(2)]
        assert len(caught) == 1
        assert reasons == ["triton cannot be imported"] * 2
        assert triton.status() == "unavailable: triton cannot be imported"
    finally:
        triton.why_not.cache_clear()


def test_doctor_says_that_kernels_are_interpreted():
    assert "interprets them on the CPU" in triton.status()
