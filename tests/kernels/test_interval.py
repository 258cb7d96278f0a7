"""The kernels of interval attention against the float64 oracle, and what they promise besides."""

import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import grad, vmap
from torch.testing import assert_close

from diffwindow.kernels import interval, registration
from diffwindow.ops import interval_attention
from samples.intervals import (
    BIASES,
    LAYOUTS,
    MASKS,
    TABLES,
    WINDOWS,
    IntervalCase,
    arguments,
    check,
    draw,
    output_and_gradients,
    tables_of,
)
from samples.kernel_marks import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER

VARIANTS = {
    "plain": {},
    "causal": {"causal": True},
    "causal with sinks": {"causal": True, "sinks": 4, "window": "spans"},
    "sinks from an origin": {"sinks": 4, "origin": True},
    "more sinks than a tile": {"sinks": 70, "window": "spans", "mask": "left padding"},
    "one head": {"kv_heads": 1, "shared": 1},
    "groups of three": {"kv_heads": 3, "shared": 3, "window": "spans"},
    "bf16": {"dtype": torch.bfloat16, "window": "spans"},
    "widths": {"widths": (7, 40)},
    "wide heads": {"widths": (112, 80)},
    "dropout": {"dropout_p": 0.3},
    "scale": {"scale": 0.3},
    "int32": {"positions": torch.int32},
    **{f"window {window}": {"window": window} for window in WINDOWS},
    **{f"tables {sizes}": {"tables": sizes, "causal": sizes[0] > 9} for sizes in TABLES[1:]},
    "tables in a window": {"tables": (4, 4), "window": "spans", "sinks": 3, "mask": "left padding"},
    "tables and dropout": {"tables": (16, 16), "dropout_p": 0.3, "window": "none", "mask": "hides all"},
    "tables in bf16": {"tables": (9, 9), "dtype": torch.bfloat16, "widths": (7, 40)},
    **{f"mask {mask}": {"mask": mask, "window": "spans", "sinks": 2} for mask in MASKS[1:]},
    **{f"bias {bias}": {"bias": bias} for bias in BIASES[1:]},
    **{f"layout {layout}": {"layouts": (layout,) * 3, "grad_layout": layout} for layout in LAYOUTS[1:]},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option(variant):
    for queries in (1, 65):
        check(IntervalCase(queries=queries, **VARIANTS[variant]))


@pytest.mark.parametrize("length", [1, 63, 257])
def test_odd_lengths(length):
    for queries in {1, length, 100}:
        check(IntervalCase(queries=queries, keys=length, batch=1, window="spans", sinks=1, causal=True))


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_random_cases(first):
    for seed in range(first, first + 25):
        check(draw(seed))


@given(st.integers(0, 10**9))
def test_any_case(seed):
    case = draw(seed)
    keys = case.keys % 131 + 1
    queries = min(case.queries, keys) if any(case.tables) else case.queries
    check(replace(case, batch=1, keys=keys, queries=queries))


@pytest.mark.slow
def test_many_random_cases():
    first = int.from_bytes(os.urandom(3), "big")
    print(f"seeds {first} to {first + 1999}")
    for seed in range(first, first + 2000):
        check(draw(seed))


CASES = {
    "tables": IntervalCase(queries=130, window="none", tables=(9, 9), mask="right padding", dropout_p=0.2),
    "prefill": IntervalCase(window="spans", sinks=3, mask="right padding"),
    "decode": IntervalCase(queries=1, keys=1100, window="spans", sinks=3, mask="right padding"),
    "bf16": IntervalCase(queries=70, dtype=torch.bfloat16, layouts=("columns", "rows", "sliced")),
}


@pytest.mark.parametrize("name", CASES)
def test_the_number_of_threads_changes_no_bit(name):
    # large enough for several threads
    case = replace(CASES[name], widths=(64, 64), kv_heads=3)
    results = []
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        try:
            results.append(output_and_gradients(case, "cpu", case.dtype))
        finally:
            torch.set_num_threads(1)
    for result in results[1:]:
        assert all(map(torch.equal, results[0], result))


@pytest.mark.parametrize("name", CASES)
def test_results_are_written_in_full(name, monkeypatch):
    # Memory comes filled with NaN: what a kernel forgets to write shows.
    case = CASES[name]
    expected = output_and_gradients(case, "cpu", case.dtype)
    outputs, grads = interval.empty_output, registration.empty_rows_like
    monkeypatch.setattr(interval, "empty_output", lambda *xs: outputs(*xs).fill_(math.nan))
    monkeypatch.setattr(registration, "empty_rows_like", lambda x: grads(x).fill_(math.nan))
    found = output_and_gradients(case, "cpu", case.dtype)
    assert all(map(torch.equal, expected, found))


@pytest.mark.parametrize("name", CASES)
def test_a_query_without_gradients_goes_the_direct_way_with_the_same_result(name, monkeypatch):
    case = CASES[name]
    tensors, bounds, options, _ = arguments(case)
    options |= tables_of(case)
    by_operator = output_and_gradients(case, "cpu", case.dtype)[0]
    torch.manual_seed(case.seed)
    if case.queries == 1:
        monkeypatch.setattr(interval, "attend", lambda _: pytest.fail("the operator was called"))
    assert torch.equal(interval_attention(*tensors, *bounds, impl="cpu", **options), by_operator)


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hides", ["window", "mask", "bias"])
def test_what_no_query_of_a_head_sees_may_be_nan(queries, dtype, hides):
    (q, k, v), _, _, grad_out = arguments(
        IntervalCase(queries=queries, keys=200, shared=1, kv_heads=4, dtype=dtype)
    )
    start = torch.tensor([[3], [70], [100], [64]])
    end = torch.tensor([[90], [80], [199], [127]])
    position = torch.arange(200)
    inside = ((start <= position) & (position <= end)) | ((position >= 1) & (position < 3))
    call = {"start": start, "end": end, "sinks": 2, "origin": torch.tensor([1, 1])}
    if hides != "window":
        call = {"start": torch.tensor(0), "end": torch.tensor(199)}
        mask = inside[None, :, None]
        call |= {"attn_mask": mask} if hides == "mask" else {}
        zeros = torch.zeros(mask.shape)
        call |= {"attn_bias": zeros.masked_fill(~mask, -math.inf)} if hides == "bias" else {}
    results = []
    for filling in (0.0, math.nan, math.inf):
        leaves = [q, *(x.masked_fill(~inside[None, :, :, None], filling) for x in (k, v))]
        leaves = [x.detach().requires_grad_() for x in leaves]
        out = interval_attention(*leaves, impl="cpu", **call)
        with torch.no_grad():
            direct = interval_attention(*leaves, impl="cpu", **call)
        results.append([out, direct, *torch.autograd.grad(out, leaves, grad_out)])
    for found in results[1:]:
        assert all(map(torch.equal, found, results[0]))


def test_one_query_reads_only_the_keys_that_its_own_head_sees():
    """Heads that share keys have windows of their own: what only a neighbour sees may be NaN."""
    (q, k, v), *_ = arguments(IntervalCase(queries=1, keys=40, batch=1, kv_heads=1, shared=2))
    start, end = torch.tensor([[5], [20]]), torch.tensor([[12], [39]])
    expected = interval_attention(q, k, v, start, end, impl="reference")
    k[:, :, 20:] = v[:, :, 20:] = math.nan
    out = interval_attention(q, k, v, start, end, impl="cpu")
    assert_close(out[:, 0], expected[:, 0])
    assert out[:, 1].isnan().all()


@pytest.mark.parametrize("queries", [1, 40])
def test_a_query_that_sees_nothing_is_zero_with_zero_gradients(queries):
    (q, k, v), *_ = arguments(IntervalCase(queries=queries))
    q[:, :, -1] = math.nan
    end = torch.arange(queries).flip(0) + 3
    end[-1] = -1
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = interval_attention(*leaves, torch.tensor(0), end, impl="cpu")
    assert not out[:, :, -1].any()
    assert out.isfinite().all()
    grads = torch.autograd.grad(out.sum(), leaves)
    assert all(x.isfinite().all() for x in grads)
    assert not grads[0][:, :, -1].any()


@pytest.mark.parametrize("queries", [1, 40])
def test_nan_is_not_swallowed(queries):
    for place in range(3):
        tensors, *_ = arguments(IntervalCase(queries=queries))
        tensors[place][0, 0, 0, 0] = math.nan
        out = interval_attention(*tensors, torch.tensor(0), torch.tensor(9), impl="cpu")
        assert out[0, 0].isnan().any(), place
        assert out[1].isfinite().all()


@pytest.mark.parametrize("queries", [1, 40])
def test_roundings_of_huge_scores_leave_gradients_bounded(queries):
    torch.manual_seed(0)
    q, k, v = (scale * torch.randn(2, 2, n, 8) for scale, n in ((1e8, queries), (1e8, 70), (1.0, 70)))
    v.requires_grad_()
    outputs = interval_attention(q, k, v, impl="cpu")
    # each query gives all its weight to one key
    assert_close(torch.autograd.grad(outputs.sum(), v)[0].sum(2), torch.full((2, 2, 8), float(queries)))


@pytest.mark.parametrize("empty", ["batch", "kv_heads", "queries", "keys", "widths", "value width"])
def test_empty_dimensions(empty):
    sizes = {"widths": {"widths": (0, 16)}, "value width": {"widths": (16, 0)}}
    for case in (IntervalCase(**sizes.get(empty, {empty: 0})), IntervalCase(queries=1, sinks=1)):
        case = replace(case, **sizes.get(empty, {empty: 0}), window="all")
        found = output_and_gradients(case, "cpu", torch.float32)
        assert_close(found, output_and_gradients(case, "reference", torch.float32))


@pytest.mark.usefixtures("unchecked")
def test_tables_of_the_wrong_shape():
    (q, k, v), *_ = arguments(IntervalCase(queries=5, keys=9))
    table = torch.zeros(7, 16)
    for tables, message in (
        ({"key_table": table[:6]}, r"key_table has shape \[6, 16\]"),
        ({"value_table": table[:, :8]}, r"value_table has shape \[7, 8\]"),
        ({"key_table": table, "value_table": table[:5]}, "7 and 5 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            interval_attention(q, k, v, **tables)
    with pytest.raises(ValueError, match="5 queries for 3 keys"):
        interval_attention(q, k[:, :, :3], v[:, :, :3], key_table=table)


def test_positions_at_the_ends_of_integers():
    (q, k, v), *_ = arguments(IntervalCase(queries=1, keys=9))
    low, high = torch.tensor(-(2**63)), torch.tensor(2**63 - 1)
    expected = interval_attention(q, k, v, torch.tensor(0), torch.tensor(8), impl="reference")
    for queries in (q, q.expand(-1, -1, 3, -1)):
        out = interval_attention(queries, k, v, low, high, impl="cpu", sinks=2**31 - 1)
        assert_close(out, expected.expand_as(out))
        origin = torch.tensor([2**63 - 1, -(2**63)])
        out = interval_attention(queries, k, v, high, low, impl="cpu", sinks=3, origin=origin)
        first = interval_attention(q, k, v, torch.tensor(0), torch.tensor(2), impl="reference")
        assert not out[0].any()
        assert_close(out[1], first[1].expand_as(out[1]))


def test_kernels_do_not_serve_everything():
    (q, k, v), bounds, *_ = arguments(IntervalCase(queries=5, keys=9, batch=1))
    with pytest.raises(ValueError, match=r'impl="cpu" is not available: .*float64'):
        interval_attention(q.double(), k.double(), v.double(), *bounds, impl="cpu")
    bias = torch.zeros(9, requires_grad=True)
    assert interval_attention(q, k, v, *bounds, attn_bias=bias).requires_grad
    with pytest.raises(ValueError, match="do not support gradients of an interval's attn_bias"):
        interval_attention(q, k, v, *bounds, attn_bias=bias, impl="cpu")


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_transforms_of_torch_func_run_in_plain_torch():
    (q, k, v), bounds, *_ = arguments(IntervalCase(queries=5, keys=9, batch=1, window="spans"))

    def loss(q, impl="auto"):
        return interval_attention(q, k, v, *bounds, sinks=1, impl=impl).square().sum()

    leaf = q.clone().requires_grad_()
    expected = torch.autograd.grad(loss(leaf), leaf)[0]
    assert_close(grad(loss)(q), expected)
    assert_close(vmap(grad(loss))(torch.stack([q, q]))[1], expected)
    with pytest.raises(ValueError, match=r"do not support transforms of torch\.func"):
        grad(lambda x: loss(x, "cpu"))(q)


def test_higher_derivatives_are_those_of_the_reference():
    results = []
    for impl in ("cpu", "reference"):
        case = IntervalCase(
            queries=4, keys=5, window="spans", dropout_p=0.3, mask="right padding", tables=(2, 2)
        )
        tensors, bounds, options, _ = arguments(case)
        tables = {name: x.requires_grad_() for name, x in tables_of(case).items()}
        leaves = [*(x.requires_grad_() for x in tensors), *tables.values()]
        torch.manual_seed(0)
        value = interval_attention(*leaves[:3], *bounds, impl=impl, **tables, **options).square().sum()
        found = []
        for _ in range(3):
            grads = torch.autograd.grad(value, leaves, create_graph=True)
            found += grads
            value = sum((x * leaf.detach()).sum() for x, leaf in zip(grads, leaves, strict=True))
        results.append(found)
    for ours, true in zip(*results, strict=True):
        assert_close(ours, true, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["prefill", "bf16", "tables"])
def test_opcheck(name):
    case = replace(CASES[name], queries=5, keys=9, batch=1, origin=True)
    tensors, (start, end), options, _ = arguments(case)
    tables = tables_of(case)
    given_tables = [tables.get(x) for x in ("key_table", "value_table")]
    leaves = [None if x is None else x.detach().requires_grad_() for x in (*tensors, *given_tables)]
    masks = (options["origin"], options["attn_mask"], None)
    given_arguments = (*leaves, start, end, *masks, torch.tensor(7), True, 2, None, 0.1)
    forward = torch.ops.diffwindow.interval_attention.default
    torch.library.opcheck(forward, given_arguments)
    out, rows = forward(*given_arguments)
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in given_arguments]
    backward = torch.ops.diffwindow.interval_attention_backward.default
    torch.library.opcheck(
        backward, (torch.ones_like(out).detach(), out.detach(), rows.detach(), False, *plain)
    )


# The run-time shape checks of the tests break graphs, so this runs without them.
COMPILED = """
import torch
from diffwindow import interval_attention

def attention(q, k, v, start, end, mask):
    return interval_attention(q, k, v, start, end, sinks=2, attn_mask=mask, is_causal=True)

fast = torch.compile(attention, fullgraph=True, backend="aot_eager", dynamic=True)
for queries, keys in ((6, 9), (7, 7), (1, 12)):
    shapes = ((4, queries), (2, keys), (2, keys))
    leaves = [torch.randn(1, *shape, 8, requires_grad=True) for shape in shapes]
    end = torch.arange(queries)
    mask = torch.arange(keys) < keys - 1
    outs = [f(*leaves, end - 3, end, mask) for f in (fast, attention)]
    assert torch.equal(*outs)
    grads = [torch.autograd.grad(out.square().sum(), leaves) for out in outs]
    assert all(map(torch.equal, *grads))
    with torch.no_grad():
        assert torch.equal(*(f(*leaves, end - 3, end, mask) for f in (fast, attention)))
"""


@pytest.mark.slow
def test_compiled_in_one_graph():
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
