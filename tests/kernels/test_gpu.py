"""The Triton kernels on a GPU, checked as in the interpreter but at real sizes: `pytest -m gpu`."""

import pytest
import torch

from diffwindow import WindowAttention, ops
from samples.configurations import Configuration, call, check, draw, leaves, output_and_gradients
from samples.dropout import check_dropout

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
KINDS = pytest.mark.parametrize("additive", [False, True], ids=["multiplicative", "additive"])
LONG = {"queries": 700, "keys": 900, "batch": 2, "heads": 3, "device": "cuda"}
VARIANTS = {
    "plain": {},
    "causal": {"causal": True},
    "exact": {"expectation": "exact"},
    "segments": {"segment_size": 5, "origin": True},
    "long segments": {"segment_size": 150, "origin": True, "causal": True},
    "fp16": {"dtype": torch.float16, "causal": True},
    "bf16": {"dtype": torch.bfloat16, "mask": "padding"},
    "bf16 segments": {"dtype": torch.bfloat16, "segment_size": 5},
    "masks": {"mask": "per head", "dtype": torch.float16},
    "bias": {"bias": "per head", "dtype": torch.float16},
    "one query": {"queries": 1, "dtype": torch.float16},
    "tolerance": {"window_tolerance": 0.01},
    "tolerance, long segments": {"window_tolerance": 0.01, "segment_size": 150, "dtype": torch.float16},
}


@KINDS
@pytest.mark.parametrize("width", [16, 64, 128, 256])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option_and_width(additive, variant, width):
    narrow = VARIANTS[variant].get("dtype", torch.float32) == torch.float32
    config = LONG | {"widths": (min(width, 128 if narrow else 256),) * 5} | VARIANTS[variant]
    check(Configuration(additive=additive, **config), "triton")


@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize("tolerance", [0.0, 0.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_normalised_windows(width, tolerance, dtype):
    options = {"normalize": True, "window_tolerance": tolerance, "dtype": dtype}
    check(Configuration(additive=False, widths=(width,) * 5, **LONG, **options), "triton")


def test_widths_in_eights():
    options = {"widths": (64, 8, 8, 64, 64), "layouts": ("heads inside",) * 9, "dtype": torch.float16}
    check(Configuration(**LONG, **options), "triton")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch sees one GPU")
def test_a_gpu_that_is_not_the_current_one():
    check(Configuration(**(LONG | {"device": "cuda:1"})), "triton")


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_random_configurations(start):
    for seed in range(start, start + 50):
        config = draw(seed, "triton")
        check(Configuration(**(vars(config) | {"device": "cuda"})), "triton")


@KINDS
def test_dropout_is_that_of_the_reference(additive):
    config = Configuration(additive=additive, device="cuda", queries=70, keys=130)
    check_dropout(config, 0.3, "triton")


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_gradients_repeat_bit_by_bit(additive, dtype):
    config = Configuration(additive=additive, normalize=not additive, dtype=dtype, **LONG)
    first = output_and_gradients(config, "triton", dtype)
    for _ in range(20):
        assert all(map(torch.equal, first, output_and_gradients(config, "triton", dtype)))


def test_more_queries_than_backward_takes_at_once():
    config = {**LONG, "queries": 5000, "keys": 300, "heads": 1, "causal": True}
    check(Configuration(**config), "triton")


def test_memory_is_linear_in_length():
    def extra(length: int) -> int:
        config = {**LONG, "queries": length, "keys": length, "dtype": torch.float16, "widths": (64,) * 5}
        inputs = leaves(Configuration(**config), torch.float16)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = call(inputs, impl="triton", is_causal=True)
        torch.autograd.grad(out, inputs, torch.ones_like(out))
        return torch.cuda.max_memory_allocated() - before

    assert extra(16384) < 2.5 * extra(8192)


def test_auto_chooses_triton():
    assert ops.choose_impl("auto", torch.zeros(1, 1, 1, 16, device="cuda")) == "triton"


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_a_layer_trains_under_autocast_and_compiled(precision):
    layer = torch.compile(WindowAttention(64, 4, impl="triton").cuda(), fullgraph=True)
    x = torch.randn(2, 100, 64, device="cuda", requires_grad=True)
    with torch.autocast("cuda", precision):
        out, _ = layer(x, x, x, need_weights=False)
    out.float().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
