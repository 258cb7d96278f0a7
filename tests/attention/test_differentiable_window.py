"""The window as a component of its own."""

import pytest
import torch
from torch.testing import assert_close

from diffwindow import DifferentiableWindow, WindowAttention


def padding(batch=2, keys=7):
    mask = torch.ones(batch, keys, dtype=torch.bool)
    mask[0, :2] = False
    return mask


def make(**options):
    torch.manual_seed(0)
    select = DifferentiableWindow(8, 6, num_heads=2, dtype=torch.float64, **options)
    return select, torch.randn(2, 4, 8).double(), torch.randn(2, 7, 6).double()


@pytest.mark.parametrize("rotary", [None, "pointers"])
@pytest.mark.parametrize("options", [{}, {"segment_size": 3}, {"segment_size": 2, "expectation": "exact"}])
def test_its_windows_are_those_of_the_attention_with_its_weights(options, rotary):
    torch.manual_seed(0)
    attention = WindowAttention(8, 2, window="multiplicative", rotary=rotary, dtype=torch.float64, **options)
    select = DifferentiableWindow(8, 8, num_heads=2, rotary=rotary, dtype=torch.float64, **options)
    # in the stack: queries, left and right; keys, left and right; values
    with torch.no_grad():
        for mine, theirs in zip(select.parameters(), attention.in_proj.parameters(), strict=False):
            torch.nn.init.normal_(theirs)
            mine.copy_(theirs[8:24])
        select.key_proj.load_state_dict({k: x[32:48] for k, x in attention.in_proj.state_dict().items()})
    x, mask = torch.randn(2, 7, 8).double(), padding()
    expected = attention.inspect(x, x, key_padding_mask=~mask).window
    found = select(x, x, mask)
    for name in ("values", "phi_left", "phi_right", "start", "end", "width", "cut_probabilities"):
        assert_close(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("shape", ["b k", "b q k", "b h q k", "q k"])
def test_masks_of_every_shape_hide_the_same(shape):
    select, query, key = make(segment_size=2)
    mask = padding() if shape != "q k" else padding()[:1].expand(2, -1)
    sizes = {"b k": mask, "b q k": mask[:, None].expand(-1, 4, -1), "q k": mask[:1, None].expand(1, 4, -1)}
    window = select(query, key, sizes.get(shape, mask[:, None, None].expand(-1, 2, 4, -1)))
    assert_close(window.values, select(query, key, mask).values)
    assert not window.phi_left[0, :, :, :2].any()
    assert window.segment_origin.tolist() == [2, 2 if shape == "q k" else 0]


def test_hidden_keys_change_nothing_and_have_no_gradient():
    select, query, key = make()
    mask = padding()
    poisoned = key.clone()
    poisoned[0, :2] = torch.nan
    poisoned.requires_grad_()
    window = select(query, poisoned, mask)
    assert_close(window.values, select(query, key, mask).values)
    window.pool(torch.randn(2, 7, 3).double()).sum().backward()
    assert not poisoned.grad[0, :2].any()
    assert all(p.grad.isfinite().all() for p in select.parameters())


def test_queries_that_see_nothing_are_zero_throughout():
    select, query, key = make(segment_size=2)
    mask = torch.ones(2, 4, 7, dtype=torch.bool)
    mask[1, 2] = False
    window = select(query, key, mask)
    spans = window.discrete("joint")
    assert (spans.start[1, :, 2].tolist(), spans.end[1, :, 2].tolist()) == ([0, 0], [-1, -1])
    for x in (window.values, window.width, window.start, window.cut_probabilities, window.log_prob(0, 3)):
        assert not x[1, :, 2].any()
    loss = window.pool(key).sum() - window.log_prob(1, 3).sum() + window.sample().values.sum()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in select.parameters())


def test_gradients_by_finite_differences():
    select, query, key = make(segment_size=2, expectation="exact")
    mask = padding()

    def measures(q, k, weight):
        own = dict(select.named_parameters()) | {"query_proj.weight": weight}
        window = torch.func.functional_call(select, own, (q, k, mask))
        return window.values, window.width, window.log_prob(3, 5), window.pool(k)

    inputs = (query, key, select.query_proj.weight.detach().clone())
    assert torch.autograd.gradcheck(measures, tuple(x.requires_grad_() for x in inputs), fast_mode=True)


def test_known_spans_are_learned():
    torch.manual_seed(0)
    select = DifferentiableWindow(6, 6, head_dim=12)
    optimizer = torch.optim.Adam(select.parameters(), lr=0.03)
    # keys 2 and 5 are marked: they are where the window starts and ends
    key = torch.randn(32, 8, 6) * 0.1
    key[:, 2, 0], key[:, 5, 1] = 3.0, 3.0
    query = torch.ones(32, 1, 6)
    for _ in range(60):
        loss = -select(query, key).log_prob(2, 5).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    window = select(query, key)
    for rule in ("argmax", "half", "joint"):
        start, end = window.discrete(rule)
        assert (start == 2).all()
        assert (end == 5).all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DifferentiableWindow(9, 6, 2), "query_dim=9 is not divisible by num_heads=2"),
        (lambda: DifferentiableWindow(8, 0), "key_dim=0 is not positive"),
        (lambda: DifferentiableWindow(8, 6, head_dim=3, rotary="pointers"), "head_dim=3 is odd"),
        (lambda: DifferentiableWindow(8, 6, rotary="both"), "rotary='both' is not one of 'pointers'"),
        (lambda: DifferentiableWindow(8, 6, expectation="exct"), "did you mean 'exact'"),
        (lambda: make()[0](torch.ones(2, 4, 8), torch.ones(2, 7, 5)), r"key has shape \[2, 7, 5\], not"),
        (lambda: make()[0](torch.ones(2, 4, 8), torch.ones(3, 7, 6)), "a batch of 2 and key one of 3"),
        (
            lambda: make(rotary="pointers")[0](torch.ones(2, 9, 8), torch.ones(2, 7, 6)),
            "9 queries for 7 keys: rotary positions take the queries as the last",
        ),
        (
            lambda: make()[0](torch.ones(2, 4, 8), torch.ones(2, 7, 6), torch.ones(2, 6).bool()),
            r"mask has shape \[2, 6\], not \[2, 7\], \[2, 4, 7\] or \[2, 2, 4, 7\]",
        ),
        (
            lambda: make()[0](torch.ones(2, 4, 8), torch.ones(2, 7, 6), torch.ones(2, 7)),
            "mask is torch.float32; pass a boolean mask",
        ),
    ],
)
def test_mistakes_get_a_sentence(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
