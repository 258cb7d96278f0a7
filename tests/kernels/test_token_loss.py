"""Cross-entropy over a vocabulary: loss and gradients against float64, and what goes to torch instead."""

import math

import pytest
import torch
import torch.nn.functional as F

from diffwindow.kernels import token_loss
from samples.kernel_marks import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER

EPS = torch.finfo(torch.float32).eps


def example(tokens: int, width: int, words: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens + width + words)
    hidden = torch.randn(tokens, width, generator=generator)
    weight = torch.randn(words, width, generator=generator)
    return hidden, weight, torch.randint(words, (tokens,), generator=generator)


def score(hidden, weight, labels, smoothing=0.1, *, needs_hidden=True, needs_weight=True):
    return token_loss.score(
        hidden, weight, labels, smoothing, needs_hidden=needs_hidden, needs_weight=needs_weight
    )


def in_float64(hidden, weight, labels, smoothing):
    inputs = [hidden.double().requires_grad_(), weight.double().requires_grad_()]
    logits = inputs[0] @ inputs[1].mT
    total = F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")
    nll = F.cross_entropy(logits, labels, reduction="none")
    return nll.detach(), -logits.log_softmax(-1).mean(-1).detach(), *torch.autograd.grad(total, inputs)


# sizes about a panel of tokens, a tile and two of words, a piece of the width, and a block of tokens
@pytest.mark.parametrize("tokens", [1, 15, 17, 70, 300])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_odd_sizes(tokens, smoothing):
    for width, words in ((1, 1), (7, 119), (16, 120), (33, 121), (128, 250), (300, 130)):
        inputs = example(tokens, width, words)
        found, expected = score(*inputs, smoothing), in_float64(*inputs, smoothing)
        # a logit is off by its products' roundings, and so, relatively, is a probability
        error = EPS * width * (4 + math.sqrt(width))
        sizes = (1, 1, inputs[1].abs().sum(0).max(), inputs[0].abs().sum(0).max())
        for ours, true, size in zip(found, expected, sizes, strict=True):
            torch.testing.assert_close(ours.double(), true, rtol=error, atol=float(error * size))


def test_logits_far_apart():
    hidden, weight, labels = example(20, 16, 500)
    found, expected = score(hidden * 50, weight, labels), in_float64(hidden * 50, weight, labels, 0.1)
    for ours, true in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=1e-3)


def test_inputs_with_any_strides():
    hidden, weight, labels = example(40, 16, 200)
    found = score(hidden.mT.contiguous().mT, weight.mT.contiguous().mT, labels.repeat_interleave(2)[::2])
    for ours, true in zip(found, score(hidden, weight, labels), strict=True):
        assert torch.equal(ours, true)


def test_threads_change_no_bit():
    inputs = example(700, 48, 1000)
    expected = score(*inputs)
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        try:
            assert all(torch.equal(*pair) for pair in zip(score(*inputs), expected, strict=True))
        finally:
            torch.set_num_threads(1)


def test_only_what_is_wanted():
    inputs = example(40, 16, 200)
    both = score(*inputs)
    for needs in ((True, False), (False, True), (False, False)):
        found = score(*inputs, needs_hidden=needs[0], needs_weight=needs[1])
        for ours, true, wanted in zip(found, both, (True, True, *needs), strict=True):
            assert torch.equal(ours, true) if wanted else ours is None


def test_nan_is_seen():
    hidden, weight, labels = example(40, 16, 200)
    hidden[3, 2] = math.nan
    nll = score(hidden, weight, labels).nll
    assert nll.isnan().nonzero().tolist() == [[3]]
    weight[150, 0] = math.inf
    # a logit of infinity; of minus infinity, which has no weight
    assert not score(hidden, weight, labels).nll[hidden[:, 0] > 0].isfinite().any()


def test_what_goes_to_torch():
    hidden, weight, labels = example(40, 16, 200)
    assert token_loss.can_serve(hidden, weight, labels)
    assert not token_loss.can_serve(hidden[:0], weight, labels[:0])
    assert not token_loss.can_serve(hidden.double(), weight.double(), labels)
    assert not token_loss.can_serve(hidden.bfloat16(), weight.bfloat16(), labels)
    assert not token_loss.can_serve(hidden, weight[:, :8], labels)
    assert not token_loss.can_serve(hidden, weight, labels.int())
    assert not token_loss.can_serve(hidden, weight[: int(labels.max())], labels)
    assert not token_loss.can_serve(hidden, weight, labels - 200)
    with torch.autocast("cpu"):
        assert not token_loss.can_serve(hidden, weight, labels)
