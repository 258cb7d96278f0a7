import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from diffwindow.models.loss import token_log_probs, token_loss


def example(tokens=23, width=6, vocabulary=11):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    targets[::5] = 0
    return hidden, weight, targets


@pytest.mark.parametrize("chunk_size", [1, 7, 100])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
def test_equals_cross_entropy_and_its_gradients(chunk_size, label_smoothing):
    hidden, weight, targets = example()
    loss = token_loss(hidden, weight, targets, label_smoothing=label_smoothing, chunk_size=chunk_size)
    logits = hidden @ weight.T
    options = {"ignore_index": 0, "reduction": "sum"}
    expected = F.cross_entropy(logits, targets, label_smoothing=label_smoothing, **options)
    assert_close(loss.total, expected)
    assert_close(loss.nll, F.cross_entropy(logits, targets, **options).detach())
    assert loss.num_tokens == (targets != 0).sum()
    # A scale, as training divides by the number of tokens.
    inputs = (hidden, weight)
    assert_close(torch.autograd.grad(0.3 * loss.total, inputs), torch.autograd.grad(0.3 * expected, inputs))


def test_transforms_differentiate_it():
    hidden, weight, targets = example()
    loss = token_loss(hidden, weight, targets, label_smoothing=0.1)
    expected = torch.autograd.grad(loss.total, (hidden, weight))

    def transformed(hidden, weight):
        total, nll, num_tokens = token_loss(hidden, weight, targets, label_smoothing=0.1)
        assert num_tokens == loss.num_tokens
        return total, nll

    grads, nll = torch.func.grad(transformed, argnums=(0, 1), has_aux=True)(hidden.detach(), weight.detach())
    assert_close(grads, expected)
    assert_close(nll, loss.nll)


def test_a_second_derivative_is_an_error():
    hidden, weight, targets = example()
    squared = token_loss(hidden, weight, targets).total.square()
    (grad,) = torch.autograd.grad(squared, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.square().sum().backward()


def test_takes_batches_and_only_padding():
    hidden, weight, targets = example(tokens=24)
    batched = token_loss(hidden.view(4, 6, -1), weight, targets.view(4, 6))
    assert_close(batched.total, token_loss(hidden, weight, targets).total)
    nothing = token_loss(hidden, weight, torch.zeros_like(targets))
    assert (nothing.total.item(), nothing.num_tokens) == (0.0, 0)


def test_one_side_may_be_frozen():
    hidden, weight, targets = example()
    (expected,) = torch.autograd.grad(token_loss(hidden, weight, targets).total, hidden)
    (actual,) = torch.autograd.grad(token_loss(hidden, weight.detach(), targets).total, hidden)
    assert_close(actual, expected)
    assert not token_loss(hidden.detach(), weight.detach(), targets).total.requires_grad


def products_of(hidden, weight, targets):
    with LargestTensor() as seen:
        token_loss(hidden, weight, targets)
    return seen.products


def test_without_gradients_none_are_computed():
    example_of_training = example()
    # the logits, and the gradients of both sides
    assert products_of(*example_of_training) == 3
    with torch.no_grad():
        assert products_of(*example_of_training) == 1


class LargestTensor(TorchDispatchMode):
    """Watch how many elements the largest result of any operation has, and count the matrix products."""

    numel = 0
    products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.products += "mm" in str(func)
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


def test_never_holds_all_logits():
    hidden, weight, targets = example(tokens=400, width=2, vocabulary=50)
    with LargestTensor() as seen:
        token_loss(hidden, weight, targets, label_smoothing=0.1, chunk_size=40).total.backward()
    assert seen.numel == 40 * 50


def test_half_precision_sums_in_single():
    hidden, weight, targets = example(tokens=2000)
    half = token_loss(hidden.bfloat16(), weight.bfloat16(), targets)
    assert half.total.dtype == torch.float32
    reference = token_loss(hidden.bfloat16().double(), weight.bfloat16().double(), targets)
    assert_close(half.total.double(), reference.total, rtol=1e-3, atol=0)


def test_log_probs_by_token_are_those_of_the_softmax():
    torch.manual_seed(0)
    hidden, weight = torch.randn(3, 5, 4, requires_grad=True), torch.randn(9, 4)
    targets = torch.randint(1, 9, (3, 5))
    targets[1, 3:] = 0
    found = token_log_probs(hidden, lambda rows: rows @ weight.T, targets, chunk_size=4)
    expected = (hidden @ weight.T).log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
    torch.testing.assert_close(found, expected.detach().masked_fill(targets == 0, 0.0))
    assert not found.requires_grad
