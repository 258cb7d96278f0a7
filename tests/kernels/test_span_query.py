"""The windows of one query in C++: those of the adapter in PyTorch, and what is left to it."""

import pytest
import torch

from diffwindow.kernels import span_query
from diffwindow.models.span_adapter import SpanAdapter, SpanSettings
from samples.kernel_marks import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER
HEADS, GROUPS, WIDTH, KEYS = 6, 3, 8, 40


def adapter(spans="query", per="head"):
    settings = SpanSettings(spans=spans, per=per, sinks=2, choices=(1, 3, 8, 20), block=30)
    window = SpanAdapter(settings, HEADS, GROUPS, WIDTH)
    for parameter in window.parameters():
        parameter.data.normal_()
    return window


def rotation(batch, width, dtype):
    angle = torch.randn(batch, 1, width // 2).repeat(1, 1, 2)
    return (1.3 * angle.cos()).to(dtype), (1.3 * angle.sin()).to(dtype)


def padded(rows):
    """The mask of a step: row i hides its first i keys, and a static cache's room at the end."""
    keys = torch.arange(KEYS)
    mask = (keys >= torch.arange(rows)[:, None]) & (keys < KEYS - 3)
    return mask[:, None, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("turned", [0, 4, WIDTH])
@pytest.mark.parametrize("per", ["head", "kv_group"])
@pytest.mark.parametrize("spans", ["head", "query", "query-mlp"])
def test_windows_are_those_of_pytorch(spans, per, turned, dtype):
    torch.manual_seed(0)
    window, q = adapter(spans, per), torch.randn(4, HEADS, 1, WIDTH).to(dtype)
    window.rotation = rotation(1 if per == "head" else 4, turned, dtype) if turned else None
    for mask in (None, padded(1), padded(4)):
        window.impl = "cpu"
        assert window._place_one(q, KEYS, mask) is not None
        found = window.intervals(q, KEYS, mask)
        window.impl = "reference"
        expected = window.intervals(q, KEYS, mask)
        for got, want in zip(found[:2], expected[:2], strict=True):
            assert torch.equal(got.expand(4, HEADS, 1), want.expand(4, HEADS, 1))
        assert (found.origin is None) == (mask is None)
        assert mask is None or torch.equal(found.origin, expected.origin)
        assert found.told


@pytest.mark.parametrize(
    ("hidden", "told"),
    [([], True), ([0, 1], True), ([5], False), (range(1, KEYS), False), (range(KEYS), False)],
)
def test_a_mask_is_told_if_it_hides_the_ends_alone(hidden, told):
    """A hole must stay hidden; so must sinks that lie behind the query."""
    mask = torch.ones(1, 1, 1, KEYS, dtype=torch.bool)
    mask[..., list(hidden)] = False
    window, q = adapter(), torch.randn(1, HEADS, 1, WIDTH)
    found = window.intervals(q, KEYS, mask)
    assert found.told == told
    window.impl = "reference"
    for got, want in zip(found[:3], window.intervals(q, KEYS, mask)[:3], strict=True):
        assert torch.equal(got, want)


def test_what_is_not_plain_is_left_to_pytorch():
    window, q = adapter(), torch.randn(1, HEADS, 1, WIDTH)
    assert window._place_one(q.expand(-1, -1, 2, -1), KEYS, None) is None
    assert window._place_one(q.double(), KEYS, None) is None
    assert window._place_one(q, KEYS, torch.ones(1, HEADS, 1, KEYS, dtype=torch.bool)) is None
    assert window._place_one(q.mT.contiguous().mT.expand(-1, -1, 1, -1), KEYS, None) is not None
    window.rotation = rotation(1, WIDTH, torch.float64)
    assert window._place_one(q, KEYS, None) is None
    window.rotation = None
    assert window.to(torch.bfloat16)._place_one(q, KEYS, None) is None


def test_no_memory_is_said(monkeypatch):
    class Library:
        dw_span_query = staticmethod(lambda *_: 1)

    monkeypatch.setattr(span_query.build, "load", Library)
    with pytest.raises(MemoryError, match="windows of a query"):
        adapter()._place_one(torch.randn(1, HEADS, 1, WIDTH), KEYS, None)
