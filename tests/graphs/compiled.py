"""Compile and export WindowAttention and compare with eager; run without the tests' type checks.

The checks wrap every function, which a graph cannot trace through, so `test_graphs.py` runs this file alone.

    python compiled.py
"""

import torch
from torch.testing import assert_close

from diffwindow import WindowAttention
from diffwindow.kernels.int8 import Int8Linear
from diffwindow.models.residual import join

CASES = [
    {"window": window, "segment_size": size, "expectation": expectation}
    for window, size, expectation in [
        ("additive", 1, "paper"),
        ("additive", 3, "exact"),
        ("multiplicative", 1, "exact"),
        ("multiplicative", 3, "paper"),
    ]
]
ROTARY = {"window": "multiplicative", "rotary": "both"}
NORMALISED = {"window": "multiplicative", "window_tolerance": 0.3, "normalize": True, "sinks": 2}
PHRASES = {"window": "additive", "phrases": "given"}
LEARNED = {"window": "additive", "phrases": "learned"}


def inputs(attention: WindowAttention, length: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    mask = torch.zeros(2, length, dtype=torch.bool)
    mask[0, :2] = True
    gates = {} if attention.phrases != "given" else {"gates": torch.rand(2, length - 1)}
    return torch.randn(2, length, 16), {"key_padding_mask": mask, **gates}


def check_compile(attention: WindowAttention, backend: str) -> None:
    """Compare output and gradients of one graph, without a break, with those of eager."""
    # all cases share one forward, and dynamo compiles a function only so many times
    torch.compiler.reset()
    compiled = torch.compile(attention, fullgraph=True, backend=backend)
    results = []
    x, options = inputs(attention, 7)
    for module in (attention, compiled):
        leaf = x.clone().requires_grad_()
        output, weights = module(leaf, leaf, leaf, is_causal=True, **options)
        (output.square().sum() + weights.square().sum()).backward()
        results.append((output, weights, leaf.grad))
    assert_close(*results)


def check_residual() -> None:
    """Compare a block's dropout, residual and norm in one graph with its kernel from the same seed."""
    norm, results = torch.nn.LayerNorm(16), []
    compiled = torch.compile(join, fullgraph=True, backend="aot_eager")
    for run in (join, compiled):
        torch.manual_seed(3)
        x, branch = torch.randn(2, 3, 7, 16, requires_grad=True)
        out = run(x, branch, norm, 0.5, training=True)
        results.append((out, *torch.autograd.grad(out.square().sum(), (x, branch))))
    assert_close(*results)


def check_int8() -> None:
    """Compare a linear layer of eight bits in one graph with its kernel."""
    layer, x = Int8Linear(torch.randn(64, 16)), torch.randn(3, 16)
    assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), layer(x))


def check_export(attention: WindowAttention) -> None:
    """Export at one length and run at others."""
    x, options = inputs(attention, 7)
    n = torch.export.Dim("n", min=3, max=64)
    lengths = {name: {1: n - 1 if name == "gates" else n} for name in ("query", "key", "value", *options)}
    program = torch.export.export(
        attention.eval(),
        (x, x, x),
        options | {"need_weights": False},
        dynamic_shapes={**lengths, "need_weights": None},
    )
    for length in (7, 3, 13):
        x, options = inputs(attention, length)
        options = options | {"need_weights": False}
        assert_close(program.module()(x, x, x, **options)[0], attention(x, x, x, **options)[0])


if __name__ == "__main__":
    torch.manual_seed(0)
    for case in (*CASES, ROTARY, NORMALISED, PHRASES, LEARNED):
        check_compile(WindowAttention(16, 2, **case), "aot_eager")
        check_export(WindowAttention(16, 2, **case))
    check_residual()
    check_int8()
    check_compile(WindowAttention(16, 2, **CASES[1]), "inductor")
    print("graphs equal eager")
