"""The Triton kernels compiled ahead of time for GPUs that are not here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

REPORT = Path(__file__).parents[2] / "benchmarks" / "triton_report.py"
# Counted by hand: sweep by sweep the scores, and dO Vᵀ, and then what is gathered.
PRODUCTS = {
    ("forward", "multiplicative"): 2 + 4,
    ("forward", "additive"): 2 + 5,
    ("query", "multiplicative"): 4 + 4 + 3,
    ("query", "additive"): 5 + 5 + 4,
    ("key", "multiplicative"): 4 + 4,
    ("key", "additive"): 5 + 5,
}


def compile_kernels(*arguments: str) -> list[dict]:
    # the interpreter, which the other tests use, cannot compile: another process does
    done = subprocess.run(
        [sys.executable, REPORT, "--json", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(row: dict) -> None:
    assert row["fits"], row
    # GeForce and L4 have less shared memory than an A100
    assert row["target"] != "sm_80" or row["shared"] <= 99 * 1024, row
    if row["dtype"] == "fp16":
        assert row["matrix_products"] == row["products"], row
        # a pipelined loop may stand there twice
        assert row["products"] % PRODUCTS[row["kernel"], row["kind"]] == 0, row
        assert row["instructions"] >= row["products"], row
        assert row["spills"] == 0 or row["width"] > 128, row


def test_forward_compiles():
    (row,) = compile_kernels(
        "--target", "sm_80", "--width", "64", "--type", "fp16", "--kernel", "forward", "--kind", "additive"
    )
    check(row)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_every_kernel_compiles(target):
    rows = compile_kernels("--target", target)
    # three widths of fp16 and two of fp32
    assert len(rows) == 5 * len(PRODUCTS)
    for row in rows:
        check(row)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("options", ["all", "long", "tolerance", "normalised", "sinks"])
def test_every_option_compiles(options):
    for row in compile_kernels("--options", options, "--width", "64"):
        assert row["fits"], row
        assert row["dtype"] == "fp32" or row["matrix_products"] == row["products"], row
        if options == "tolerance" and row["kernel"] == "forward" and row["dtype"] == "fp16":
            # narrow pointers are loaded as vectors
            assert row["single_loads"] == 0 or row["target"] != "sm_80", row
