"""Interval attention in plain PyTorch: what is inside, groups of heads, limits and error messages."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from diffwindow import functional, ops
from diffwindow.ops import Boundaries, interval_attention

FIRST, LAST = torch.tensor(0), torch.tensor(10**9)


def inputs(b=2, h=4, g=2, q=5, k=7, e=4, w=3, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((b, h, q, e), (b, g, k, e), (b, g, k, w))
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def enumerated(q, k, v, seen):
    """Attend from each query to each list of keys, one at a time."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    shared = q.shape[1] // k.shape[1]
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        keys = seen(b, h, i)
        if keys:
            weights = (k[b, h // shared, keys] @ q[b, h, i] / math.sqrt(q.shape[-1])).softmax(0)
            out[b, h, i] = weights @ v[b, h // shared, keys]
    return out


@given(st.integers(0, 10**6))
def test_agrees_with_an_enumeration_of_the_keys(seed):
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator)

    sinks, causal = int(draw(0, 4)), bool(draw(0, 2))
    start, end, origin = draw(-3, 9, 2, 4, 5), draw(-3, 12, 1, 4, 5), draw(-2, 9, 2)
    mask = draw(0, 4, 2, 1, 1, 7) > 0
    q, k, v = inputs(seed=seed)

    def seen(b, h, i):
        first = max(0, int(origin[b]))
        window = set(range(start[b, h, i], end[0, h, i] + 1)) | set(range(first, first + sinks))
        last = i if causal else 6
        return [key for key in range(last + 1) if key in window and mask[b, 0, 0, key]]

    out = interval_attention(
        q, k, v, start, end, sinks=sinks, origin=origin, attn_mask=mask, is_causal=causal
    )
    assert_close(out, enumerated(q, k, v, seen))


def test_an_interval_of_all_keys_is_plain_attention():
    q, k, v = inputs(h=2)
    assert_close(interval_attention(q, k, v, FIRST, LAST), F.scaled_dot_product_attention(q, k, v))
    bias = torch.randn(1, 2, 5, 7, dtype=torch.float64)
    assert_close(
        interval_attention(q, k, v, FIRST, LAST, attn_bias=bias, scale=0.3),
        F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=0.3),
    )


def test_causal_queries_count_from_the_first_key_however_many_keys_there_are():
    q, k, v = inputs()
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert_close(interval_attention(q, k, v, FIRST, LAST, is_causal=True), expected)


def test_it_is_a_normalised_multiplicative_window_of_zeros_and_ones():
    """Sharp pointers at the interval's ends make M 0 or 1, or 2 where both ends are one key."""
    q, k, v = inputs(h=2)
    start, end = torch.tensor([1, 0, 2, 3, 5]), torch.tensor([4, 2, 6, 5, 5])
    point = [1e3 * torch.eye(7, dtype=torch.float64)[side].expand(2, 2, 5, 7) for side in (start, end)]
    keys = torch.eye(7, dtype=torch.float64).expand(2, 2, 7, 7)
    boundaries = Boundaries(point[0], keys, point[1], keys)
    window = ops.window_attention(q, k, v, boundaries, normalize=True)
    assert_close(interval_attention(q, k, v, start, end), window)


def test_a_query_that_sees_nothing_gives_zeros_and_zero_gradients():
    tensors = [x.requires_grad_() for x in inputs()]
    end = torch.tensor([6, 6, -1, 6, 6])
    out = interval_attention(*tensors, torch.tensor(0), end)
    assert not out[:, :, 2].any()
    grads = torch.autograd.grad(out[:, :, 2].sum(), tensors, retain_graph=True)
    assert not any(grad.any() for grad in grads)
    assert not torch.autograd.grad(out.sum(), tensors[0])[0][:, :, 2].any()


def test_what_no_query_of_a_head_sees_may_be_nan():
    q, k, v = inputs()
    start, end = torch.full((4, 1), 2), torch.full((4, 1), 4)
    expected = interval_attention(q, k, v, start, end)
    for x in (k, v):
        x[:, :, [0, 1, 5, 6]] = math.nan
    tensors = [x.requires_grad_() for x in (q, k, v)]
    out = interval_attention(*tensors, start, end)
    assert_close(out, expected)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), tensors))


def test_gradients():
    tensors = tuple(x.requires_grad_() for x in inputs(b=1, q=3, k=4))
    bias = torch.randn(1, 4, 3, 4, dtype=torch.float64, requires_grad=True)

    def attend(q, k, v, bias):
        return interval_attention(q, k, v, torch.tensor([1, 0, 3]), LAST, sinks=1, attn_bias=bias)

    assert torch.autograd.gradcheck(attend, (*tensors, bias))


def test_dropout_follows_the_seed():
    q, k, v = inputs()
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        results.append(interval_attention(q, k, v, FIRST, LAST, dropout_p=0.5))
    assert torch.equal(*results)
    assert not interval_attention(q, k, v, FIRST, LAST, dropout_p=1.0).any()


def test_sinks_count_from_an_origin_within_the_keys():
    origin = torch.tensor([2, -4, 6, 2**62])
    empty = torch.ones(4, 1, 1, dtype=torch.long)
    marked = functional.interval_mask(empty, empty - 1, 7, sinks=2, origin=origin)
    assert [row.nonzero().flatten().tolist() for row in marked[:, 0, 0]] == [[2, 3], [0, 1], [6], []]
    assert functional.interval_mask(empty, empty - 1, 7, sinks=10**30).all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"start": 3}, "start is of type int; pass a torch.Tensor"),
        ({"end": torch.ones(5)}, "end is torch.float32; pass integers, the indices of keys"),
        ({"start": torch.ones(3, dtype=torch.long)}, r"start has shape \[3\], which does not broadcast to"),
        ({"sinks": -1}, "sinks=-1 is negative"),
        ({"sinks": True}, "sinks=True is not an integer"),
        ({"origin": torch.zeros(3, dtype=torch.long)}, r"origin has shape \[3\], not \[batch\] = \[2\]"),
        ({"k": torch.randn(2, 3, 7, 4).double()}, "do not fit; pass q"),
        ({"q": torch.randn(2, 3, 5, 4).double()}, "q has 3 heads and k has 2; those of q must be"),
        ({"k": torch.randn(2, 2, 7, 4)}, "k is torch.float32 and q is torch.float64"),
        ({"attn_mask": torch.ones(5, 6, dtype=torch.bool)}, "attn_mask has shape"),
        ({"dropout_p": 2.0}, "dropout_p=2.0 is not a probability"),
        ({"impl": "trition"}, "impl='trition'"),
    ],
)
def test_errors_name_the_argument_and_the_fix(wrong, message):
    q, k, v = inputs()
    call = {"q": q, "k": k, "v": v, "start": FIRST, "end": LAST, **wrong}
    with pytest.raises((TypeError, ValueError), match=message):
        interval_attention(**call)
