"""Sums and largest values of rows of logits: against PyTorch, and what goes to torch instead."""

import math

import pytest
import torch

from diffwindow.kernels import ranking
from samples.kernel_marks import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER


@pytest.fixture(autouse=True)
def short_rows_too(monkeypatch):
    monkeypatch.setattr(ranking, "_MIN_WIDTH", 1)


@pytest.mark.parametrize("width", [1, 15, 63, 64, 65, 128, 1000])
def test_sums_and_largest_values_at_odd_widths(width):
    torch.manual_seed(width)
    x = 5 * torch.randn(3, 7, width)
    expected = x.double().logsumexp(-1, keepdim=True)
    torch.testing.assert_close(ranking.logsumexp(x).double(), expected, rtol=1e-6, atol=1e-6)
    for count in {1, min(5, width), min(64, width)}:
        top, columns = ranking.topk(x, count)
        values, places = x.topk(count)
        assert torch.equal(top, values)
        assert torch.equal(columns, places)


def test_of_equal_values_the_first_come_first():
    x = torch.zeros(2, 300)
    x[1, 200] = 1.0
    assert ranking.topk(x, 3)[1].tolist() == [[0, 1, 2], [200, 0, 1]]


def test_what_is_forbidden_or_not_a_number():
    x = torch.full((4, 200), -math.inf)
    x[1, 150] = 3.0
    x[2], x[2, 70] = 0.0, math.nan
    x[3], x[3, 5] = 0.0, math.inf
    sums, (top, columns) = ranking.logsumexp(x), ranking.topk(x, 2)
    assert sums[:2, 0].tolist() == [-math.inf, 3.0]
    assert sums[2].isnan()
    assert not sums[3].isfinite()
    assert top[:2].tolist() == [[-math.inf, -math.inf], [3.0, -math.inf]]
    assert columns[1, 0] == 150
    assert top[2].tolist() == [0.0, 0.0]
    assert columns[3, 0] == 5


def test_threads_do_not_change_a_bit():
    x = torch.randn(9, 5000)
    expected = ranking.logsumexp(x)
    torch.set_num_threads(3)
    try:
        assert torch.equal(ranking.logsumexp(x), expected)
        assert torch.equal(ranking.topk(x, 4)[1], x.topk(4)[1])
    finally:
        torch.set_num_threads(1)


def test_what_goes_to_torch(monkeypatch):
    monkeypatch.setattr(ranking, "_run", lambda *_: pytest.fail("the kernel was called"))
    x = torch.randn(4, 100)
    for other in (x.double(), x.T.contiguous().T, x.clone().requires_grad_()):
        assert torch.equal(ranking.logsumexp(other), other.logsumexp(-1, keepdim=True))
        assert torch.equal(ranking.topk(other, 3)[1], other.topk(3)[1])
    assert ranking.topk(x, 65)[0].shape == (4, 65)
