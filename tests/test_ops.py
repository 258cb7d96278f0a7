"""The operations: their limits, masks, invariances, gradients and error messages."""

import math
from functools import partial
from inspect import signature
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from diffwindow import ops
from diffwindow.checks import CallOptions
from diffwindow.ops import Boundaries

KINDS = ["multiplicative", "additive"]


def inputs(b=2, h=2, q=5, k=7, e=4, *, dtype=torch.float64, seed=0):
    """Random q, k, v, q_local, k_local and boundaries."""
    generator = torch.Generator().manual_seed(seed)
    rand = partial(torch.randn, dtype=dtype, generator=generator)
    queries = [rand(b, h, q, e) for _ in range(4)]
    keys = [rand(b, h, k, e) for _ in range(5)]
    return queries, keys


def attend(kind, queries, keys, **options):
    q, q_left, q_right, q_local = queries
    k, k_left, k_right, k_local, v = keys
    boundaries = Boundaries(q_left, k_left, q_right, k_right)
    local = (q_local, k_local) if kind == "additive" else None
    return ops.window_attention(q, k, v, boundaries, local, **options)


def with_one_key_moved(keys, position):
    moved = [x.clone() for x in keys]
    for x in moved:
        x[:, :, position] += 1.0
    return moved


def test_multiplicative_with_a_window_of_ones_is_plain_attention():
    """Pointers so sure of the first and the last key that M = 1 everywhere."""
    (q, *_), (k, *_, v) = inputs()
    q_point = torch.zeros_like(q)
    q_point[..., 0] = 1e3
    k_left, k_right = torch.zeros_like(k), torch.zeros_like(k)
    k_left[:, :, 0, 0] = k_right[:, :, -1, 0] = 1e3
    out = ops.window_attention(q, k, v, Boundaries(q_point, k_left, q_point, k_right))
    assert_close(out, F.scaled_dot_product_attention(q, k, v))


def test_additive_with_zero_local_scores_is_plain_attention():
    (q, *_), keys = inputs()
    boundaries = Boundaries(q, keys[1], q, keys[2])
    mask = torch.rand(2, 1, 5, 7) > 0.3
    mask[..., 0] = True
    local = (torch.zeros_like(q), keys[3])
    out = ops.window_attention(q, keys[0], keys[4], boundaries, local, attn_mask=mask, segment_size=3)
    assert_close(out, F.scaled_dot_product_attention(q, keys[0], keys[4], attn_mask=mask))


def test_output_is_the_maps_times_the_values():
    queries, keys = inputs()
    boundaries = Boundaries(queries[1], keys[1], queries[2], keys[2])
    maps = ops.window_maps(queries[0], keys[0], boundaries, is_causal=True)
    assert_close(attend("multiplicative", queries, keys, is_causal=True), maps.weights @ keys[4])
    plain = ops.functional.boundary(queries[0], keys[0], mask=torch.ones(5, 7).tril().bool())
    assert_close(maps.weights, plain * maps.window.values)
    assert_close(maps.window.phi_left.sum(-1), torch.ones_like(maps.window.phi_left[..., 0]))


def test_the_first_causal_position_has_window_2():
    """The paper's double count: with one visible key both boundaries fall on it."""
    queries, keys = inputs(q=4, k=4)
    boundaries = Boundaries(queries[1], keys[1], queries[2], keys[2])
    maps = ops.window_maps(queries[0], keys[0], boundaries, is_causal=True)
    assert_close(maps.window.values[:, :, 0, 0], torch.full((2, 2), 2.0, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("segment_size", [1, 3])
def test_a_later_key_changes_nothing_earlier(kind, segment_size):
    queries, keys = inputs(q=7, k=7)
    keys = [x.requires_grad_() for x in keys]
    before = attend(kind, queries, keys, is_causal=True, segment_size=segment_size)
    after = attend(kind, queries, with_one_key_moved(keys, 4), is_causal=True, segment_size=segment_size)
    assert torch.equal(before[:, :, :4], after[:, :, :4])
    assert not torch.allclose(before[:, :, 4:], after[:, :, 4:])
    used = [x for x in keys if kind == "additive" or x is not keys[3]]
    for grad in torch.autograd.grad(before[:, :, :4].square().sum(), used):
        assert (grad[:, :, 4:] == 0).all()
        assert (grad[:, :, :4] != 0).any()


@pytest.mark.parametrize("kind", KINDS)
def test_causal_and_mask_both_apply(kind):
    queries, keys = inputs(q=7, k=7)
    mask = torch.rand(7, 7, generator=torch.Generator().manual_seed(0)) > 0.4
    joined = attend(kind, queries, keys, attn_mask=mask & torch.ones(7, 7).tril().bool())
    assert torch.equal(attend(kind, queries, keys, attn_mask=mask, is_causal=True), joined)
    assert not torch.equal(attend(kind, queries, keys, attn_mask=mask), joined)
    assert not torch.equal(attend(kind, queries, keys, is_causal=True), joined)


MASK = tensor([[True, True, False, True], [False, True, True, True]])[:, None, None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"expectation": "exact", "attn_mask": MASK},
        {"segment_size": 2, "attn_mask": MASK},
        {"segment_size": 5, "expectation": "exact"},
        {"segment_size": 2, "expectation": "ordered", "attn_mask": MASK},
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_gradients_are_those_of_finite_differences(kind, options):
    queries, keys = inputs(b=2, h=1, q=3, k=4, e=2)
    leaves = [x.requires_grad_() for x in (*queries, *keys)]
    torch.autograd.gradcheck(lambda *x: attend(kind, x[:4], x[4:], **options), leaves)


@pytest.mark.parametrize(
    ("segment_size", "tolerance", "mask", "sinks"),
    [(1, 0.0, MASK, 0), (1, 0.6, None, 0), (2, 0.6, MASK, 0), (2, 0.6, MASK, 1), (1, 0.6, None, 2)],
)
@pytest.mark.usefixtures("unchecked")
def test_gradients_of_a_normalised_window_with_a_tolerance(segment_size, tolerance, mask, sinks):
    queries, keys = inputs(b=2, h=1, q=3, k=4, e=2)
    options = {"attn_mask": mask, "segment_size": segment_size, "window_tolerance": tolerance, "sinks": sinks}
    leaves = [x.requires_grad_() for x in (*queries, *keys)]

    def normalised(*x):
        return attend("multiplicative", x[:4], x[4:], normalize=True, **options)

    window = ops.window_maps(
        queries[0], keys[0], ops.Boundaries(queries[1], keys[1], queries[2], keys[2]), **options
    ).window.values
    if tolerance:
        assert (window == 0).any()
        assert (window > 0).any(-1).all()
    torch.autograd.gradcheck(normalised, leaves)
    torch.autograd.gradgradcheck(normalised, leaves)


@pytest.mark.parametrize("kind", KINDS)
def test_bias_is_added_to_the_score_and_not_to_the_pointers(kind):
    queries, keys = inputs()
    bias = torch.randn(1, 2, 5, 7, dtype=torch.float64)
    boundaries = Boundaries(queries[1], keys[1], queries[2], keys[2])
    local = (queries[3], keys[3]) if kind == "additive" else None
    plain = ops.window_maps(queries[0], keys[0], boundaries, local)
    maps = ops.window_maps(queries[0], keys[0], boundaries, local, attn_bias=bias)
    assert torch.equal(maps.window.values, plain.window.values)
    score = queries[0] @ keys[0].mT / 2 + bias
    if kind == "additive":
        expected = (score + queries[3] @ keys[3].mT / 2 * plain.window.values).softmax(-1)
    else:
        expected = score.softmax(-1) * plain.window.values
    assert_close(maps.weights, expected)
    assert_close(attend(kind, queries, keys, attn_bias=bias), expected @ keys[4])


@pytest.mark.parametrize("kind", KINDS)
def test_a_bias_of_minus_infinity_hides_as_a_mask_does(kind):
    queries, keys = inputs()
    mask = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(0)) > 0.4
    mask[:, :, 2] = False
    bias = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
    expected = attend(kind, queries, keys, attn_mask=mask, segment_size=2)
    assert_close(attend(kind, queries, keys, attn_bias=bias, segment_size=2), expected)
    assert (expected[:, :, 2] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(2, 1, 3, 4), (1, 2, 1, 4), (3, 1)])
@pytest.mark.usefixtures("unchecked")
def test_the_gradient_of_a_bias(kind, shape):
    queries, keys = inputs(b=2, h=2, q=3, k=4, e=2)
    bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda bias: attend(kind, queries, keys, attn_bias=bias, segment_size=2), [bias])


@pytest.mark.parametrize("kind", KINDS)
@given(
    q=st.integers(1, 6),
    k=st.integers(1, 9),
    pad=st.integers(0, 4),
    size=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_padding_changes_nothing(kind, q, k, pad, size, seed):
    """Left or right padding, masked and with the grid's origin behind it, leaves the output as it was."""
    queries, keys = inputs(b=1, q=q, k=k, seed=seed)
    plain = attend(kind, queries, keys, segment_size=size)
    junk = torch.full((1, 2, pad, 4), 7.0, dtype=torch.float64)
    real, none = torch.ones(k, dtype=torch.bool), torch.zeros(pad, dtype=torch.bool)
    left = attend(
        kind,
        queries,
        [torch.cat([junk, x], 2) for x in keys],
        attn_mask=torch.cat([none, real]),
        segment_size=size,
        segment_origin=tensor([pad]),
    )
    right = attend(
        kind,
        queries,
        [torch.cat([x, junk], 2) for x in keys],
        attn_mask=torch.cat([real, none]),
        segment_size=size,
    )
    assert_close(left, plain)
    assert_close(right, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_without_keys_gives_zeros_and_zero_gradients(kind):
    queries, keys = inputs()
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    leaves = [x.requires_grad_() for x in queries]
    out = attend(kind, leaves, keys, attn_mask=mask, segment_size=2)
    assert (out[:, :, 2] == 0).all()
    out.square().sum().backward()
    for leaf in leaves[: 4 if kind == "additive" else 3]:
        assert (leaf.grad[:, :, 2] == 0).all()
        assert leaf.grad.isfinite().all()
        assert (leaf.grad[:, :, 1] != 0).any()


def test_no_keys_at_all_gives_zeros():
    queries, keys = inputs(k=0)
    assert (attend("additive", queries, keys, segment_size=5) == 0).all()


def test_a_normalised_window_attends_within_the_window():
    queries, keys = inputs()
    q, q_left, q_right, _ = queries
    k, k_left, k_right, _, v = keys
    boundaries = Boundaries(4 * q_left, k_left, 4 * q_right, k_right)
    options = {"is_causal": True, "segment_size": 2, "window_tolerance": 0.2}
    plain, normal = (ops.window_maps(q, k, boundaries, **options, normalize=on) for on in (False, True))
    assert (plain.window.values == 0).any()
    assert torch.equal(plain.window.values, normal.window.values)
    sums = plain.weights.sum(-1, keepdim=True)
    assert_close(normal.weights, plain.weights / sums.masked_fill(sums == 0, 1.0))
    out = ops.window_attention(q, k, v, boundaries, **options, normalize=True)
    assert_close(out, normal.weights @ v)


@pytest.mark.parametrize("normalize", [False, True])
def test_a_row_cut_to_nothing_gives_zeros_and_zero_gradients(normalize):
    # both boundaries lie anywhere with the same probability: M ≤ (n + 1)²/2n² < 0.6
    queries, keys = inputs(q=1, k=12)
    leaves = [x.requires_grad_() for x in (*(x * 0.0 for x in queries), *keys)]
    out = attend("multiplicative", leaves[:4], leaves[4:], window_tolerance=0.6, normalize=normalize)
    assert not out.any()
    grads = torch.autograd.grad(out.sum(), leaves, allow_unused=True, materialize_grads=True)
    assert not any(grad.any() for grad in grads)


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_of_a_tolerance_has_its_bound(kind):
    queries, keys = inputs(q=9, k=20, e=8)
    queries[1], queries[2] = queries[1] * 3, queries[2] * 3
    exact = attend(kind, queries, keys)
    for tolerance in (1e-4, 1e-2, 0.3):
        error = (attend(kind, queries, keys, window_tolerance=tolerance) - exact).abs().max()
        assert error > 0 or tolerance == 1e-4
        if kind == "multiplicative":
            assert error <= tolerance * keys[-1].abs().max()
        else:
            # scores that change by at most δ change weights by a factor of at most e^2δ
            local = (queries[3] @ keys[3].mT).abs().max() / math.sqrt(8)
            assert error <= torch.expm1(2 * tolerance * local) * keys[-1].abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_auto_takes_an_implementation_that_has_the_options(dtype):
    queries, keys = inputs(dtype=dtype)
    for options in (
        {"window_tolerance": 0.1},
        {"normalize": True},
        {"window_tolerance": 0.1, "normalize": True},
        {"window_tolerance": 0.1, "normalize": True, "sinks": 3},
    ):
        out = attend("multiplicative", queries, keys, **options)
        expected = attend("multiplicative", queries, keys, impl="reference", **options)
        assert_close(out, expected)


def test_sinks_are_for_a_multiplicative_window():
    (q, *_), (k, *_) = inputs()
    boundaries = Boundaries(q, k, q, k)
    with pytest.raises(ValueError, match="sinks=2 is for a multiplicative window"):
        ops.window_attention(q, k, k, boundaries, (q, k), sinks=2)
    with torch.no_grad(), pytest.raises(ValueError, match="sinks=2 is for a multiplicative window"):
        ops.window_attention(
            q[:, :, :1], k, k, Boundaries(q[:, :, :1], k, q[:, :, :1], k), (q[:, :, :1], k), sinks=2
        )


def test_an_additive_window_is_not_normalised():
    (q, *_), (k, *_) = inputs()
    boundaries = Boundaries(q, k, q, k)
    with pytest.raises(ValueError, match="normalize=True is for a multiplicative window"):
        ops.window_maps(q, k, boundaries, (q, k), normalize=True)


def test_dropout_of_a_normalised_window_drops_weights():
    queries, keys = inputs(k=40)
    torch.manual_seed(0)
    q, q_left, q_right, _ = queries
    k, k_left, k_right, *_ = keys
    boundaries = Boundaries(q_left, k_left, q_right, k_right)
    kept = ops.window_maps(q, k, boundaries, normalize=True).weights
    dropped = ops.window_maps(q, k, boundaries, normalize=True, dropout_p=0.5).weights
    alive = dropped != 0
    assert 0.4 < alive.double().mean() < 0.6
    assert_close(dropped[alive], 2 * kept[alive])


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_keeps_the_mean_and_is_seeded(kind):
    queries, keys = ([x.expand(4000, 1, -1, -1) for x in side] for side in inputs(b=1, h=1))
    torch.manual_seed(0)
    dropped = attend(kind, queries, keys, dropout_p=0.25)
    bound = 5 * dropped.std(0).max().item() / 4000**0.5
    assert_close(dropped.mean(0), attend(kind, queries, keys)[0], rtol=0, atol=bound)
    torch.manual_seed(0)
    assert torch.equal(attend(kind, queries, keys, dropout_p=0.25), dropped)


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_stays_near_fp32_and_keeps_its_type(kind):
    queries, keys = inputs(dtype=torch.float32)
    narrow = attend(kind, [x.bfloat16() for x in queries], [x.bfloat16() for x in keys])
    assert narrow.dtype == torch.bfloat16
    rounded = attend(kind, [x.bfloat16().float() for x in queries], [x.bfloat16().float() for x in keys])
    assert_close(narrow, rounded.bfloat16(), rtol=0.01, atol=0.01)


def test_scale_multiplies_all_scores():
    queries, keys = inputs()
    doubled = attend("additive", [2 * x for x in queries], keys, scale=0.5)
    assert_close(doubled, attend("additive", queries, keys, scale=1.0))
    assert_close(attend("additive", queries, keys), attend("additive", queries, keys, scale=0.5))


def test_values_and_boundaries_may_have_another_width():
    queries, keys = inputs()
    narrow = Boundaries(*(x[..., :2] for x in (queries[1], keys[1], queries[2], keys[2])))
    out = ops.window_attention(queries[0], keys[0], keys[4][..., :3], narrow)
    assert out.shape == (2, 2, 5, 3)


BAD = [
    ({"segment_size": 0}, ValueError, "segment_size=0 is below 1"),
    ({"segment_size": 2.0}, TypeError, "segment_size=2.0 is not an integer"),
    ({"expectation": "exat"}, ValueError, "did you mean 'exact'"),
    ({"impl": "cuda"}, ValueError, "impl='cuda' is not one of"),
    ({"impl": "triton"}, ValueError, 'impl="triton" is not available'),
    ({"window_tolerance": -0.1}, ValueError, "window_tolerance=-0.1 is not in 0 <= tolerance < 1"),
    ({"window_tolerance": 1.0}, ValueError, "window_tolerance=1.0 is not in"),
    ({"window_tolerance": math.nan}, ValueError, "window_tolerance=nan is not in"),
    ({"dropout_p": 1.5}, ValueError, "dropout_p=1.5 is not a probability"),
    ({"attn_mask": torch.zeros(5, 7)}, TypeError, "attn_mask is torch.float32; pass a boolean mask"),
    ({"attn_mask": torch.zeros(5, 7).long()}, TypeError, "attn_mask is torch.int64; pass a boolean mask"),
    ({"attn_mask": torch.ones(5, 6).bool()}, ValueError, "attn_mask has shape [5, 6], which does not"),
    ({"attn_mask": torch.ones(5, 7, device="meta").bool()}, ValueError, "attn_mask is on meta and q is"),
    ({"attn_bias": torch.zeros(5, 7).bool()}, TypeError, "attn_bias is torch.bool; pass torch.float32"),
    ({"attn_bias": torch.zeros(5, 6)}, ValueError, "attn_bias has shape [5, 6], which does not"),
    ({"attn_bias": torch.zeros(7, device="meta")}, ValueError, "attn_bias is on meta and q is"),
    ({"segment_origin": torch.zeros(2).cfloat()}, TypeError, "segment_origin is torch.complex64"),
    ({"segment_origin": torch.zeros(2)}, TypeError, "segment_origin is torch.float32"),
    ({"segment_origin": torch.zeros(3).long()}, ValueError, "segment_origin has shape [3], not [batch]"),
    ({"segment_origin": torch.zeros(2, device="meta").long()}, ValueError, "segment_origin is on meta"),
    # what Python or torch would take for something else
    ({"dropout_p": True}, TypeError, "dropout_p=True is not a number; pass an int or a float"),
    ({"dropout_p": "0.1"}, TypeError, "dropout_p='0.1' is not a number"),
    ({"dropout_p": None}, TypeError, "dropout_p=None is not a number"),
    ({"scale": tensor(0.5, requires_grad=True)}, TypeError, "scale is a tensor, which would have no grad"),
    ({"scale": True}, TypeError, "scale=True is not a number"),
    ({"scale": math.nan}, ValueError, "scale=nan is not finite"),
    ({"scale": -math.inf}, ValueError, "scale=-inf is not finite"),
    ({"segment_size": 2**63}, ValueError, "segment_size=9223372036854775808 is above 2147483647"),
    ({"is_causal": "False"}, TypeError, "is_causal='False' is not a bool; pass True or False"),
    ({"is_causal": None}, TypeError, "is_causal=None is not a bool"),
    ({"segment_size": True}, TypeError, "segment_size=True is not an integer"),
    ({"expectation": ["paper"]}, ValueError, "expectation=['paper'] is not one of"),
    # what is no dense tensor of a type that windows are computed in
    ({"attn_mask": np.ones((5, 7), bool)}, TypeError, "attn_mask is of type ndarray; pass a torch.Tensor"),
    ({"attn_mask": True}, TypeError, "attn_mask is of type bool"),
    ({"attn_bias": torch.zeros(5, 7).to(torch.float8_e5m2)}, TypeError, "attn_bias is torch.float8_e5m2"),
    ({"attn_bias": [0.0] * 7}, TypeError, "attn_bias is of type list"),
    ({"segment_origin": 0}, TypeError, "segment_origin is of type int"),
    ({"segment_origin": torch.zeros(2).long().to_sparse()}, TypeError, "pass segment_origin.to_dense()"),
]


def test_what_kernels_lack_is_named():
    queries, keys = inputs(dtype=torch.float32)
    with pytest.raises(ValueError, match="do not support ordered boundaries"):
        attend("additive", queries, keys, expectation="ordered", impl="cpu")


@pytest.mark.parametrize(("options", "error", "message"), BAD)
@pytest.mark.usefixtures("unchecked")
def test_bad_options_are_named(options, error, message):
    with pytest.raises(error) as caught:
        attend("additive", *inputs(), **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": torch.zeros(2, 5, 4)}, ValueError, "q has shape [2, 5, 4], not [batch, heads, length, width]"),
        ({"v": torch.zeros(2, 2, 6, 4)}, ValueError, "v has shape [2, 2, 6, 4], which does not fit q"),
        ({"k": torch.zeros(2, 1, 7, 4)}, ValueError, "k has shape [2, 1, 7, 4], which does not fit q"),
        ({"q_left": torch.zeros(2, 2, 5, 3)}, ValueError, "q_left has head width 3 and k_left has 4"),
        ({"k_right": torch.zeros(2, 2, 7, 4).double()}, TypeError, "k_right is torch.float64 and q is"),
        ({"v": torch.zeros(2, 2, 7, 4, device="meta")}, ValueError, "v is on meta and q is on cpu"),
        ({"q": torch.zeros(2, 2, 5, 4).long()}, TypeError, "q is torch.int64; pass torch.float32"),
        ({"q": torch.zeros(2, 2, 5, 4).cfloat()}, TypeError, "q is torch.complex64"),
        ({"q": torch.zeros(2, 2, 5, 4).to(torch.float8_e4m3fn)}, TypeError, "q is torch.float8_e4m3fn"),
        (
            {"q": torch.zeros(2, 2, 5, 4).to_sparse()},
            TypeError,
            "q is a torch.sparse_coo tensor; pass q.to_d",
        ),
        ({"k": None}, TypeError, "k is None; pass a torch.Tensor"),
        ({"k_local": "keys"}, TypeError, "k_local is of type str; pass a torch.Tensor"),
        ({"q_local": np.zeros((2, 2, 5, 4))}, TypeError, "q_local is of type ndarray"),
        ({"boundaries": (1, 2, 3, 4)}, TypeError, "boundaries is of type tuple; pass diffwindow.Boundaries"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_tensors_are_named(change, error, message):
    (q, q_left, q_right, q_local), (k, k_left, k_right, k_local, v) = inputs(dtype=torch.float32)
    good = {"q": q, "k": k, "v": v}
    good["local"] = (change.pop("q_local", q_local), change.pop("k_local", k_local))
    boundaries = {"q_left": q_left, "k_left": k_left, "q_right": q_right, "k_right": k_right}
    good["boundaries"] = Boundaries(**{name: change.get(name, x) for name, x in boundaries.items()})
    change = {name: x for name, x in change.items() if name not in boundaries}
    with pytest.raises(error) as caught:
        ops.window_attention(**good | change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("unchecked")
def test_the_direct_kernel_of_one_query_leaves_mistakes_to_the_checks():
    queries, keys = inputs(q=1, dtype=torch.float32)
    # without a local query it would compute a multiplicative window
    with pytest.raises(TypeError, match="q_local is None"):
        attend("additive", [*queries[:3], None], keys)
    for options in ({"dropout_p": False}, {"attn_mask": "all"}, {"attn_bias": [0.0]}, {"is_causal": 1}):
        with pytest.raises(TypeError, match=next(iter(options))):
            attend("additive", queries, keys, **options)


@pytest.mark.usefixtures("unchecked")
def test_local_must_be_a_pair():
    (q, *_), (k, *_) = inputs()
    for local in ((), (q,), q, (q, None)):
        with pytest.raises(TypeError, match=r"local is"):
            ops.window_maps(q, k, Boundaries(q, k, q, k), local)


def test_the_documentation_shows_what_each_backend_supports():
    def cells(name, values):
        return f"| {name} | {' | '.join(values)} |"

    supports = ops.SUPPORT.values()
    lines = [cells("devices", (", ".join(support.devices) for support in supports))]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        lines.append(cells(name, ("yes" if dtype in support.dtypes else "no" for support in supports)))
    for feature in get_args(ops.Feature):
        has = ("no" if feature in support.lacks else "yes" for support in supports)
        lines.append(cells(feature, has))
    page = (Path(__file__).parents[1] / "docs" / "explanation" / "kernels.md").read_text()
    assert "\n".join(lines) in page


def test_doctor_lists_what_backends_lack():
    report = ops.support_report()
    assert set(report) == {'impl="cpu"', 'impl="triton"'}
    assert "heads of more than 512 bytes" in report['impl="triton"']
    assert "on cpu: float32, bfloat16; without transforms of torch.func" in report['impl="cpu"']


def test_the_options_are_the_same_in_signatures_and_types():
    maps, attend = (list(signature(f).parameters) for f in (ops.window_maps, ops.window_attention))
    assert maps == ["q", "k", "boundaries", "local", *ops.Options._fields]
    assert attend == ["q", "k", "v", *maps[2:], "impl"]
    types = ops.Options.__annotations__
    # by their text: each shape of jaxtyping is a class of its own
    assert {name: str(kind) for name, kind in CallOptions.__annotations__.items()} == {
        name: str(kind) for name, kind in types.items()
    }
    assert signature(ops.window_maps).parameters["segment_size"].default == 1
