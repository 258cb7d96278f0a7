"""Window attention under torch.func, forward-mode differentiation and torch.compile."""

import subprocess
import sys

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacrev, jvp, vmap
from torch.testing import assert_close

from diffwindow import Boundaries, WindowAttention, ops
from samples.small_models import language_model, tokens

# torch's own forward-mode rules still use its old compiler
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")

TENSORS = [torch.randn(1, 2, 4, 3, generator=torch.Generator().manual_seed(i)) for i in range(7)]


def loss(q, impl="auto", dtype=torch.float32):
    """A scalar of one tensor of the attention."""
    k, v, *pointers = (x.to(dtype) for x in TENSORS[1:])
    out = ops.window_attention(q, k, v, Boundaries(*pointers), is_causal=True, segment_size=2, impl=impl)
    return out.square().sum()


def exact(transform):
    """Apply a transform to the float64 reference."""
    return transform(lambda q: loss(q, "reference", torch.float64), TENSORS[0].double())


TRANSFORMS = {
    "grad": lambda f, q: grad(f)(q),
    "jacrev": lambda f, q: jacrev(f)(q),
    "jvp": lambda f, q: jvp(f, (q,), (torch.ones_like(q),))[1],
    "vmap of grad": lambda f, q: vmap(grad(f))(torch.stack([q, 2 * q])),
    "vmap": lambda f, q: vmap(f)(torch.stack([q, 2 * q])),
    "hessian": lambda f, q: hessian(f)(q),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_torch_func(name):
    found = TRANSFORMS[name](loss, TENSORS[0])
    assert found.abs().max() > 0.01
    assert_close(found.double(), exact(TRANSFORMS[name]), rtol=1e-4, atol=1e-4)


def test_forward_mode():
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(TENSORS[0], torch.ones_like(TENSORS[0]))
        tangent = forward_ad.unpack_dual(loss(dual)).tangent
    assert_close(tangent.double(), exact(TRANSFORMS["jvp"]), rtol=1e-4, atol=1e-4)


def test_an_explicit_request_for_the_kernels_is_refused():
    message = (
        r'impl="cpu" is not available: its kernels do not support transforms of torch.func; use impl="auto"'
    )
    with pytest.raises(ValueError, match=message):
        grad(lambda q: loss(q, "cpu"))(TENSORS[0])


@pytest.mark.usefixtures("unchecked")
def test_torchs_old_tracer_is_refused():
    x = torch.randn(2, 5, 8)
    with pytest.raises(RuntimeError, match=r"^torch.jit.trace cannot .*; use torch.export.export$"):
        torch.jit.trace(WindowAttention(8, 2).eval(), (x, x, x))
    with pytest.raises(RuntimeError, match=r"^torch.jit.trace cannot .*; use torch.export.export$"):
        torch.jit.trace(loss, TENSORS[0])
    with pytest.raises(RuntimeError, match=r"^torch.jit.trace cannot .*; use torch.export.export$"):
        torch.jit.trace(language_model("Global"), tokens(2, 3))
    with pytest.raises(RuntimeError, match=r"^torch.jit.script cannot .*; use torch.export.export$"):
        torch.jit.script(WindowAttention(8, 2))


# The run-time shape checks of the tests break graphs, so this runs without them.
COMPILED = """
import torch
from torch.autograd import forward_ad
from diffwindow import WindowAttention

def compiled(module, **options):
    torch._dynamo.reset()
    return torch.compile(module, fullgraph=True, backend="eager", **options)

x, y = torch.randn(3, 5, 8), torch.randn(3, 7, 8)
padding = torch.arange(7) >= torch.tensor([7, 4, 6])[:, None]
bias = torch.randn(5, 7)
calls = [
    ((x, x, x), {}),
    ((y, y, y), {"key_padding_mask": padding}),
    ((x, y, y), {"attn_mask": bias.masked_fill(bias < -1, float("-inf")), "key_padding_mask": padding}),
]
for dynamic, need_weights in ((None, False), (True, False), (True, True)):
    attention = WindowAttention(8, 2, dropout=0.1).eval()
    fast = compiled(attention, dynamic=dynamic)
    for inputs, masks in calls:
        expected = attention(*inputs, need_weights=need_weights, **masks)[0]
        torch.testing.assert_close(fast(*inputs, need_weights=need_weights, **masks)[0], expected)
for relative_size in (None, 2):
    training = WindowAttention(8, 2, dropout=0.1, relative_size=relative_size)
    compiled(training, dynamic=True)(x, x, x, need_weights=False)

def loss(x):
    return attention.eval()(x, x, x, need_weights=False)[0].square().sum()

# a function that is transformed in one place and not in another
both = compiled(lambda x: (loss(x), torch.func.grad(loss)(x)))
torch.testing.assert_close(both(x), (loss(x), torch.func.grad(loss)(x)))

# what was compiled without tangents must not drop them later
attention.requires_grad_(False)
fast = compiled(loss)
fast(x)
with forward_ad.dual_level():
    dual = forward_ad.make_dual(x, torch.ones_like(x))
    tangents = [forward_ad.unpack_dual(f(dual)).tangent for f in (fast, loss)]
torch.testing.assert_close(*tangents)
"""


def test_compiled_in_one_graph_with_any_masks_and_lengths():
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


IMPORTED = """
import sys
from diffwindow import WindowAttention
assert "torch._dynamo" not in sys.modules
"""


def test_importing_does_not_load_the_compiler():
    """It takes as long to import as torch itself."""
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
