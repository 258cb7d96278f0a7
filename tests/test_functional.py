"""The equations, against the paper's examples, hand-derived values and properties."""

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


def test_paper_counts_a_shared_boundary_twice_and_exact_once():
    assert f.soft_window(EYE[4], EYE[4])[4] == 2
    assert f.soft_window(EYE[4], EYE[4], expectation="exact")[4] == 1
    assert f.soft_window(EYE[4], EYE[5], segment_size=2)[4] == 2
    assert f.soft_window(EYE[4], EYE[5], segment_size=2, expectation="exact")[4] == 1


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
    with pytest.raises(ValueError, match="expectation='papper' is not one of 'paper', 'exact'"):
        f.soft_window(EYE[4], EYE[5], expectation="papper")
