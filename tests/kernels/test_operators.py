"""The kernels as operators of torch: traced, compiled, exported, batched, called from threads and forks."""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.testing import assert_close

from diffwindow.kernels import toolchain, triton
from samples.configurations import Configuration, call, leaves, options, tensors

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="no C++ compiler")

CONFIGURATIONS = {
    "multiplicative": Configuration(additive=False, queries=5, keys=9, causal=True),
    "additive": Configuration(queries=5, keys=9, segment_size=2, origin=True, mask="per head"),
    "turned": Configuration(queries=5, keys=9, layouts=("columns", "one row", "overlapping") * 3),
    "views in bf16": Configuration(queries=5, keys=9, stacked=True, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_opcheck(name):
    config = CONFIGURATIONS[name]
    chosen = options(config)
    padded = (*leaves(config, config.dtype), None, None)[:9]
    bias = torch.randn(1, config.heads, config.queries, config.keys, requires_grad=True)
    given = (*padded, chosen["attn_mask"], bias, chosen["segment_origin"], torch.tensor(7))
    arguments = (*given, config.causal, config.segment_size, False, 0.3, 0.1, "cpu")
    forward = torch.ops.diffwindow.window_attention.default
    torch.library.opcheck(forward, arguments)
    out, rows = forward(*arguments)
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    backward = torch.ops.diffwindow.window_attention_backward.default
    saved = (torch.ones_like(out).detach(), out.detach(), rows.detach())
    for needs_bias in (True, False):
        torch.library.opcheck(backward, (*saved, needs_bias, *plain))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_gradients_of_many_outputs_at_once(name):
    # as torch.autograd.functional.jacobian asks for with vectorize=True
    config = CONFIGURATIONS[name]
    inputs = leaves(config, config.dtype)
    out = call(inputs, impl="cpu", is_causal=config.causal)
    grads = torch.randn(3, *out.shape, dtype=out.dtype)
    together = torch.autograd.grad(out, inputs, grads, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(out, inputs, grad, retain_graph=True) for grad in grads]
    for found, expected in zip(together, zip(*one_by_one, strict=True), strict=True):
        assert_close(found, torch.stack(expected))


def test_the_output_may_be_changed_in_place():
    # plain attention allows it too
    out = call(leaves(CONFIGURATIONS["multiplicative"], torch.float32), impl="cpu")
    assert out._base is None
    assert out.transpose(1, 2).is_contiguous()
    assert torch.equal(out.clone() * 2, out.mul_(2))


def _sums(_=None):
    inputs = leaves(Configuration(queries=40, keys=70, segment_size=3), torch.float32)
    out = call(inputs, impl="cpu", segment_size=3)
    return [out.sum().item(), *(x.sum().item() for x in torch.autograd.grad(out.square().sum(), inputs))]


def test_threads_call_the_kernels_at_once():
    expected = _sums()
    with ThreadPoolExecutor(4) as pool:
        assert all(sums == expected for sums in pool.map(_sums, range(8)))


def _single_threaded_sums(queue):
    torch.set_num_threads(1)
    queue.put(_sums())


def test_a_fork_of_a_process_that_used_threads():
    # with more than one thread torch itself hangs there, so loaders of batches set one, and so does this
    expected = _sums()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_single_threaded_sums, args=(queue,))
    child.start()
    assert_close(queue.get(), expected)
    child.join(30)
    assert child.exitcode == 0


class Attention(torch.nn.Module):
    def forward(self, *inputs):
        return call(list(inputs), impl="cpu", is_causal=True, segment_size=3)


def test_export_keeps_the_operator():
    inputs = tuple(x.float() for x in tensors(Configuration(queries=6, keys=6)))
    program = torch.export.export(Attention(), inputs)
    assert "diffwindow.window_attention" in str(program.graph)
    assert torch.equal(program.module()(*inputs), Attention()(*inputs))


# The run-time shape checks of the tests break graphs, so this runs without them.
GRAPHS = """
import sys
import torch
from diffwindow import Translator, TranslatorConfig, WindowAttention, ops

def check_compiled(impl):
    inputs = [torch.randn(1, 2, 6, 8, requires_grad=True) for _ in range(7)]

    def attention(q, k, v, *pointers):
        boundaries = ops.Boundaries(*pointers)
        return ops.window_attention(q, k, v, boundaries, is_causal=True, impl=impl)

    expected = attention(*inputs)
    found = torch.compile(attention, fullgraph=True, backend="aot_eager")(*inputs)
    grad = torch.randn_like(found)
    assert torch.equal(found, expected)
    grads = [torch.autograd.grad(out, inputs, grad) for out in (found, expected)]
    assert all(map(torch.equal, *grads))

def check_traced(impl):
    size = {"vocab_size": 32, "embed_dim": 16, "num_heads": 2, "ffn_dim": 16}
    size |= {"encoder_layers": 1, "decoder_layers": 1}
    model = Translator(TranslatorConfig(attention="Enc(AW)-Cr(AW,Seg)-Dec(MW)", **size))
    windows = [module for module in model.modules() if isinstance(module, WindowAttention)]
    for window in windows:
        window.impl = impl
    source, target = torch.randint(4, 32, (2, 2, 5))
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    found = torch._dynamo.explain(model)(source, target, mask)
    assert found.graph_break_count == 0, found.break_reasons
    nodes = [str(node.target) for node in found.graphs[0].graph.nodes]
    calls = sum("diffwindow.window_attention" in name for name in nodes)
    assert calls == len(windows) == 3, nodes

for impl in sys.argv[1:]:
    check_compiled(impl)
    check_traced(impl)
"""


def test_calls_compile_and_models_are_traced_without_a_graph_break():
    impls = ["cpu"] if triton.import_failure() else ["cpu", "triton"]
    done = subprocess.run(
        [sys.executable, "-c", GRAPHS, *impls],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr
