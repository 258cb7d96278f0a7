"""The equations, against the paper's examples, hand-derived values and properties."""

from itertools import accumulate, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from diffwindow import functional as f

EYE = torch.eye(10, dtype=torch.float64)


def random_phi(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def triangle_window(phi_left, phi_right, size):
    """Eq. 9 and 11 as printed: products with the triangle L, or with J, whose 1s reach the segment's end."""
    n = phi_left.shape[-1]
    i, j = torch.arange(1, n + 1)[:, None], torch.arange(1, n + 1)[None]
    triangle = (i <= size * j.div(size).ceil()).to(phi_left.dtype)
    return (phi_left @ triangle) * (phi_right @ triangle.T) + (phi_right @ triangle) * (phi_left @ triangle.T)


def test_figure_1():
    """The paper's l=3, r=8, n=10, counted from 1 there."""
    phi_left, phi_right = EYE[2], EYE[7]
    assert f.rightward(phi_left).tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert f.leftward(phi_right).tolist() == [1, 1, 1, 1, 1, 1, 1, 1, 0, 0]
    window = [0, 0, 1, 1, 1, 1, 1, 1, 0, 0]
    assert f.discrete_window(2, 7, 10).tolist() == window
    assert f.soft_window(phi_left, phi_right).tolist() == window


def test_segment_example():
    """The paper's b=2: sums to the end of each pair, and from its start."""
    a = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    assert f.rightward(a, 2).tolist() == [3, 3, 15, 15, 31]
    assert f.leftward(a, 2).tolist() == [31, 31, 28, 28, 16]


@pytest.mark.parametrize(("left", "right"), [(3, 8), (8, 3), (0, 9), (9, 0)])
@pytest.mark.parametrize("expectation", ["paper", "exact"])
def test_one_hot_boundaries_give_the_discrete_window_in_either_order(left, right, expectation):
    window = f.soft_window(EYE[left], EYE[right], expectation=expectation)
    assert_close(window, f.discrete_window(min(left, right), max(left, right), 10).double())


@pytest.mark.parametrize(("left", "right"), [(3, 8), (8, 3), (4, 4)])
def test_ordered_boundaries_give_no_window_if_the_left_is_behind_the_right(left, right):
    window = f.soft_window(EYE[left], EYE[right], expectation="ordered")
    assert_close(window, f.discrete_window(left, right, 10).double())


@given(size=st.integers(1, 5), seed=st.integers(0, 99))
def test_both_orders_together_are_the_papers_window(size, seed):
    phi_left, phi_right = random_phi(2, 7, seed=seed)
    ordered, reversed_ = (
        f.soft_window(*pair, segment_size=size, expectation="ordered")
        for pair in ((phi_left, phi_right), (phi_right, phi_left))
    )
    assert_close(ordered + reversed_, f.soft_window(phi_left, phi_right, segment_size=size))


def test_paper_counts_a_shared_boundary_twice_and_exact_once():
    assert f.soft_window(EYE[4], EYE[4])[4] == 2
    assert f.soft_window(EYE[4], EYE[4], expectation="exact")[4] == 1
    assert f.soft_window(EYE[4], EYE[5], segment_size=2)[4] == 2
    assert f.soft_window(EYE[4], EYE[5], segment_size=2, expectation="exact")[4] == 1


def test_sinks_are_one_from_the_origin_on_whatever_the_window():
    options = {"segment_origin": tensor([0, 7, -5, 99]), "sinks": 2, "expectation": "paper"}
    windows = f.soft_window(EYE[4].expand(4, 10), EYE[4].expand(4, 10), **options)
    assert windows.tolist() == [
        [1, 1, 0, 0, 2, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 2, 0, 0, 1, 1, 0],
        [1, 1, 0, 0, 2, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 2, 0, 0, 0, 0, 0],
    ]
    # in keys, not segments; 1 where both pointers meet, and not cut
    window = f.soft_window(EYE[4], EYE[5], segment_size=3, sinks=5, window_tolerance=0.5)
    assert window.tolist() == [1, 1, 1, 1, 1, 2, 0, 0, 0, 0]
    assert f.soft_window(EYE[4], EYE[4], sinks=99).tolist() == [1] * 10
    hidden = f.soft_window(EYE[4], EYE[4], sinks=2, mask=torch.arange(10) > 0)
    assert hidden.tolist() == [0, 1, 0, 0, 2, 0, 0, 0, 0, 0]


def test_sinks_have_no_gradient():
    phi_left, phi_right = (x.requires_grad_() for x in random_phi(2, 6))
    plain = torch.autograd.grad(f.soft_window(phi_left, phi_right)[2:].sum(), (phi_left, phi_right))
    sunk = torch.autograd.grad(f.soft_window(phi_left, phi_right, sinks=2).sum(), (phi_left, phi_right))
    for ours, expected in zip(sunk, plain, strict=True):
        assert_close(ours, expected)


def test_discrete_window_takes_tensors_and_is_empty_when_reversed():
    windows = f.discrete_window(tensor([0, 2]), tensor([1, 1]), 3)
    assert windows.tolist() == [[1, 1, 0], [0, 0, 0]]


@given(n=st.integers(1, 23), size=st.integers(1, 8), seed=st.integers(0, 99))
def test_windows_equal_the_triangular_products_of_the_paper(n, size, seed):
    phi_left, phi_right = random_phi(2, 3, n, seed=seed)
    assert_close(
        f.soft_window(phi_left, phi_right, segment_size=size), triangle_window(phi_left, phi_right, size)
    )


@given(n=st.integers(1, 23), size=st.integers(1, 8), seed=st.integers(0, 99))
def test_window_is_symmetric_bounded_and_constant_in_segments(n, size, seed):
    phi_left, phi_right = random_phi(2, 3, n, seed=seed)
    for expectation, most in (("paper", 2.0), ("exact", 1.0)):
        window = f.soft_window(phi_left, phi_right, segment_size=size, expectation=expectation)
        swapped = f.soft_window(phi_right, phi_left, segment_size=size, expectation=expectation)
        assert_close(window, swapped)
        assert window.min() >= -1e-12
        assert window.max() <= most + 1e-12
        for segment in window.split(size, dim=-1):
            assert (segment == segment[..., :1]).all()


@pytest.mark.parametrize("size", [1, 3])
def test_exact_window_is_the_expectation_of_the_discrete_one(size):
    """Sample l and r: the mean of the discrete windows between their segments is M, as the appendix says."""
    n, samples = 8, 200_000
    phi_left, phi_right = random_phi(2, n, seed=1)
    generator = torch.Generator().manual_seed(0)
    left, right = (
        phi.multinomial(samples, replacement=True, generator=generator) // size
        for phi in (phi_left, phi_right)
    )
    segments = torch.arange(n) // size
    first, last = torch.minimum(left, right)[:, None], torch.maximum(left, right)[:, None]
    sampled = ((first <= segments) & (segments <= last)).double().mean(0)
    # Five standard errors of a mean of coin flips.
    bound = 5 * 0.5 / samples**0.5
    exact = f.soft_window(phi_left, phi_right, segment_size=size, expectation="exact")
    assert (sampled - exact).abs().max() < bound
    assert (sampled - f.soft_window(phi_left, phi_right, segment_size=size)).abs().max() > bound


@given(origin=st.integers(0, 6), size=st.integers(1, 5), seed=st.integers(0, 99))
def test_segments_count_from_the_origin(origin, size, seed):
    """Padding in front, with an origin behind it, gives the window of the unpadded keys."""
    phi_left, phi_right = random_phi(2, 1, 4, 9, seed=seed)
    padding = torch.zeros(1, 4, origin, dtype=torch.float64)
    padded = f.soft_window(
        torch.cat([padding, phi_left], -1),
        torch.cat([padding, phi_right], -1),
        segment_size=size,
        segment_origin=tensor([origin]),
        expectation="exact",
    )
    plain = f.soft_window(phi_left, phi_right, segment_size=size, expectation="exact")
    assert_close(padded[..., origin:], plain)


def test_each_sequence_has_its_own_origin():
    phi = torch.full((2, 1, 1, 4), 0.25)
    sums = f.rightward(phi, 2, segment_origin=tensor([0, 1]))
    assert sums.squeeze().tolist() == [[0.5, 0.5, 1, 1], [0.25, 0.75, 0.75, 1]]


def test_a_far_origin_is_that_of_the_same_grid():
    """The distance of a key from it is no number of 64 bits."""
    far, near = (f.segment_bounds(7, 5, tensor([origin])) for origin in (-(2**63), -(2**63) % 5))
    assert all(torch.equal(*bounds) for bounds in zip(far, near, strict=True))


def enumerated_phrase_window(phi_left, phi_right, gates, weigh):
    """Take the mean over all segmentations and pairs of boundaries; `weigh` counts a pair's orders."""
    n = phi_left.shape[-1]
    window = torch.zeros(n, dtype=torch.float64)
    for ends in product((0, 1), repeat=n - 1):
        chance = torch.where(tensor(ends, dtype=torch.bool), gates, 1 - gates).prod()
        phrase = [0, *accumulate(ends)]
        for left, right, key in product(range(n), repeat=3):
            forth = phrase[left] <= phrase[key] <= phrase[right]
            back = phrase[right] <= phrase[key] <= phrase[left]
            window[key] += chance * phi_left[left] * phi_right[right] * weigh(forth, back)
    return window


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize(
    ("expectation", "weigh"),
    [("paper", lambda a, b: a + b), ("exact", lambda a, b: a or b), ("ordered", lambda a, b: a)],
)
def test_phrase_window_is_the_mean_over_all_segmentations_and_boundaries(n, expectation, weigh):
    phi_left, phi_right = random_phi(2, 1, n)
    gates = torch.rand(n - 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    window = f.phrase_window(phi_left, phi_right, gates, expectation=expectation)
    expected = enumerated_phrase_window(phi_left[0], phi_right[0], gates, weigh)
    assert_close(window[0], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("expectation", ["paper", "exact", "ordered"])
@given(n=st.integers(1, 23), size=st.integers(1, 8), seed=st.integers(0, 99))
def test_phrases_of_one_size_are_segments_and_of_one_key_are_tokens(expectation, n, size, seed):
    phi_left, phi_right = random_phi(2, 3, n, seed=seed)
    gates = (torch.arange(1, n) % size == 0).double()
    assert_close(
        f.phrase_window(phi_left, phi_right, gates, expectation=expectation),
        f.soft_window(phi_left, phi_right, segment_size=size, expectation=expectation),
    )


@pytest.mark.parametrize("expectation", ["paper", "exact"])
def test_gradients_of_phrase_windows(expectation):
    """With one gate at 0 and one at 1, where a product of the others must not be lost."""
    gates = torch.tensor([0.3, 1.0, 0.0, 0.6], dtype=torch.float64, requires_grad=True)
    logits = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)

    def window(logits, gates):
        phi_left, phi_right = logits.softmax(-1)
        return f.phrase_window(phi_left, phi_right, gates, expectation=expectation)

    assert torch.autograd.gradcheck(window, (logits, gates))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_boundaries_are_fp32_at_least(dtype):
    q = torch.randn(2, 3, 4).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert f.boundary(q, q).dtype == wide
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(f.boundary(q, q), f.boundary(q.to(wide), q.to(wide)), rtol=0, atol=0)


def test_boundary_points_only_at_visible_keys():
    q = torch.randn(3, 4)
    mask = tensor([[True, False, True, False]])
    phi = f.boundary(q, torch.randn(4, 4), mask=mask)
    assert (phi[:, [1, 3]] == 0).all()
    assert_close(phi.sum(-1), torch.ones(3))


def test_a_row_without_keys_is_zero_with_zero_gradients():
    logits = torch.randn(2, 3, requires_grad=True)
    mask = tensor([[True, True, False], [False, False, False]])
    weights = f.masked_softmax(logits, mask)
    assert weights[1].tolist() == [0, 0, 0]
    weights.square().sum().backward()
    assert logits.grad is not None
    assert logits.grad[1].tolist() == [0, 0, 0]
    assert logits.grad[0, :2].abs().min() > 0


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_expectation_is_named():
    with pytest.raises(ValueError, match="expectation='papper' is not one of 'paper', 'exact', 'ordered'"):
        f.soft_window(EYE[4], EYE[5], expectation="papper")


def test_a_window_below_the_tolerance_is_zero_and_has_no_gradient():
    # the left boundary at key 0 or 2, the right one at 1: keys 0-1 or 1-2
    left = tensor([0.9, 0.0, 0.1], dtype=torch.float64, requires_grad=True)
    right = tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    window = f.soft_window(left, right)
    assert_close(window, tensor([0.9, 1.0, 0.1], dtype=torch.float64))
    cut = f.soft_window(left, right, window_tolerance=0.2)
    assert_close(cut, tensor([0.9, 1.0, 0.0], dtype=torch.float64))
    (grad,) = torch.autograd.grad(cut[2], left)
    assert_close(grad, torch.zeros_like(left))
    # M at the tolerance stays
    assert f.soft_window(left, right, window_tolerance=float(window[2].detach()))[2] > 0


@given(st.integers(1, 9), st.integers(0, 99))
def test_normalised_weights_are_the_softmax_times_the_window_over_its_sum(n, seed):
    random = torch.Generator().manual_seed(seed)
    score = torch.randn(3, n, generator=random, dtype=torch.float64)
    window = torch.rand(3, n, generator=random, dtype=torch.float64) + 1e-3
    product = score.softmax(-1) * window
    weights = f.normalized_weights(score, window)
    assert_close(weights, product / product.sum(-1, keepdim=True))
    assert_close(weights, (score + window.log()).softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalised_weights_where_the_largest_score_lies_outside(dtype):
    score = tensor([[1e4, 0.0, 1.0, 500.0], [1e4, 1e4, 1e4, 1e4]], dtype=dtype, requires_grad=True)
    window = tensor([[0.0, 0.5, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=dtype, requires_grad=True)
    weights = f.normalized_weights(score, window)
    assert_close(weights[0, 1:3], score[0, 1:3].softmax(-1))
    assert weights[0, ::3].tolist() == [0, 0]
    assert weights[1].tolist() == [0] * 4
    grads = torch.autograd.grad(
        weights, (score, window), torch.tensor([[3.0, 1.0, 2.0, 5.0]] * 2, dtype=dtype)
    )
    for grad in grads:
        assert grad.isfinite().all()
        assert not grad[window == 0].any()
        assert grad[0, 1:3].all()


def test_normalised_weights_weigh_by_the_window_where_scores_are_lost_in_a_bias():
    lowest = torch.full((1, 3), torch.finfo(torch.float32).min)
    assert_close(f.normalized_weights(lowest, tensor([[0.0, 1.0, 3.0]])), tensor([[0.0, 0.25, 0.75]]))


def test_normalised_weights_of_a_window_too_small_to_divide_by():
    window = tensor([[1e-44, 1e-37]], requires_grad=True)
    weights = f.normalized_weights(tensor([[80.0, 0.0]]), window)
    assert weights.tolist() == [[0.0, 1.0]]
    (grad,) = torch.autograd.grad(weights[0, 1], window)
    assert grad.isfinite().all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda x: f.soft_window(x.tolist(), x), "phi_left is of type list; pass a torch.Tensor"),
        (lambda x: f.rightward(x.long()), "phi is torch.int64; pass torch.float32"),
        (lambda x: f.leftward(x, segment_size=True), "segment_size=True is not an integer"),
        (lambda x: f.soft_window(x, x, segment_origin=[0]), "segment_origin is of type list"),
        (lambda x: f.segment_bounds("3", 2), "num_keys='3' is not an integer"),
        (lambda x: f.kept_weights((3,), 0.5, 7), "seed is of type int; pass a torch.Tensor"),
        (lambda x: f.discrete_window(1.5, 3, 5), "left=1.5 is not an integer"),
        (lambda x: f.boundary(x, x, mask=x), "mask is torch.float32; pass a boolean mask"),
        (lambda x: f.scores(x, x, x.sum()), "scale is a tensor"),
        (lambda x: f.multiplicative_weights(x, None), "window is None; pass a torch.Tensor"),
        (lambda x: f.additive_weights(x, x, x, dropout_p=True), "dropout_p=True is not a number"),
        (lambda x: f.attend(x, x.to_sparse()), "pass v.to_dense()"),
        (lambda x: f.segment_bounds(5, 0), "segment_size=0 is below 1"),
        (lambda x: f.phrase_window(x, x, x), "give one gate for each gap"),
        (lambda x: f.discrete_window(1, 2, -3), "num_keys=-3 is negative"),
    ],
)
def test_wrong_arguments_are_named(compute, message):
    with pytest.raises((TypeError, ValueError)) as caught:
        compute(torch.ones(4, 4))
    assert message in str(caught.value)
