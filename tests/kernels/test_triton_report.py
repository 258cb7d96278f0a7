"""The Triton kernels compiled ahead of time for GPUs that are not here."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="triton is not installed")
from diffwindow.kernels import triton_blocks, triton_report

# The interpreter, which the other tests use, cannot compile: another process does.
ENVIRONMENT = {**os.environ, "TRITON_INTERPRET": "0"}
# What one program of other GPUs of the family can have: GeForce and L4 have less than an A100.
SMALLEST = {"sm_80": 99 * 1024}


def report(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "diffwindow.kernels.triton_report", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)


def rows(*arguments: str) -> list[dict]:
    done = report("--json", *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(row: dict) -> None:
    assert row["shared"] <= SMALLEST.get(row["target"], triton_report.TARGETS[row["target"]].shared), row
    if row["dtype"] == "fp16":
        assert row["matrix_products"] == row["products"], row
        # a pipelined loop may stand there twice
        assert row["products"] % PRODUCTS[row["kernel"], row["kind"]] == 0, row
        assert row["instructions"] >= row["products"], row
    if row["width"] <= triton_blocks.NO_SPILLS_UP_TO[row["target"]] and row["dtype"] == "fp16":
        assert row["spills"] == 0, row


# Counted by hand: sweep by sweep the scores, and dO Vᵀ, and then what is gathered.
PRODUCTS = {
    ("forward", "multiplicative"): 2 + 4,
    ("forward", "additive"): 2 + 5,
    ("query", "multiplicative"): 4 + 4 + 3,
    ("query", "additive"): 5 + 5 + 4,
    ("key", "multiplicative"): 4 + 4,
    ("key", "additive"): 5 + 5,
}


def test_a_kernel_compiles_for_each_target():
    found = rows("--width", "64", "--type", "fp16", "--kernel", "forward", "--kind", "multiplicative")
    assert [row["target"] for row in found] == list(triton_report.TARGETS)
    for row in found:
        check(row)


@pytest.mark.slow
def test_narrow_pointers_are_not_loaded_one_value_at_a_time():
    chosen = ("--target", "sm_80", "--width", "64", "--type", "fp16", "--kernel", "forward")
    (row,) = rows(*chosen, "--kind", "multiplicative", "--options", "tolerance")
    assert row["single_loads"] == 0


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", triton_report.TARGETS)
def test_every_entry_of_the_table(target):
    found = rows("--target", target)
    assert len(found) == len(triton_report.entries({"target": target}))
    for row in found:
        check(row)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("options", "count"), [("all", 18), ("long", 18), ("tolerance", 18), ("normalised", 9)]
)
def test_every_option_compiles(options, count):
    found = rows("--options", options, "--width", "64", "--type", "fp16")
    assert len(found) == count
    assert all(row["fits"] and row["matrix_products"] == row["products"] for row in found), found


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_narrow_pointers_compile_in_fp32():
    found = rows("--options", "tolerance", "--width", "64", "--type", "fp32")
    assert len(found) == 18
    assert all(row["fits"] for row in found), found


def test_occupancy_is_bounded_by_registers_memory_and_warps():
    a100 = triton_report.TARGETS["sm_80"]
    # 65,536 registers hold 2,048 threads of 32, 512 of 128 or 256 of 255 (which are given as 256).
    assert triton_report.occupancy(a100, 4, 32, 0) == 1.0
    assert triton_report.occupancy(a100, 4, 128, 0) == 0.25
    assert triton_report.occupancy(a100, 4, 255, 0) == 0.125
    # 164 KiB hold three programs of 50 KiB, each with 1 KiB of its own.
    assert triton_report.occupancy(a100, 4, 32, 50 * 1024) == 3 * 4 / 64
    mi300 = triton_report.TARGETS["gfx942"]
    # A SIMD holds two waves of 256 registers per lane; there are four SIMDs, and room for 32 waves.
    assert triton_report.occupancy(mi300, 4, 256, 0) == 8 / 32


def test_a_width_that_is_not_in_the_table_is_an_error():
    done = report("--width", "65")
    assert done.returncode == 1
    assert "no entry for width 65" in done.stderr


def test_the_interpreter_compiles_nothing(monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert triton_report.main([]) == 1
    assert "TRITON_INTERPRET is set" in capsys.readouterr().err
