"""The page's JavaScript: its own tests, and its equality with the Python it repeats."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from diffwindow import functional
from diffwindow.evaluation.windows import soft_overlap

PAGE = Path(__file__).parents[2] / "src/diffwindow/view/page"
NODE = shutil.which("node")
REQUIRED = "DIFFWINDOW_REQUIRE_BROWSER" in os.environ
pytestmark = pytest.mark.skipif(NODE is None and not REQUIRED, reason="node is not installed")


def run_node(program, data):
    """Run a module that reads JSON as `input` and returns what it prints, as JSON."""
    script = f"""
        import {{ readFileSync }} from "node:fs";
        const input = JSON.parse(readFileSync(0, "utf8"));
        {program}
    """
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", script],
        input=json.dumps(data),
        capture_output=True,
        text=True,
        check=True,
        cwd=PAGE,
    )
    return json.loads(done.stdout)


def test_the_modules_pass_their_own_tests():
    tests = Path(__file__).parent / "page"
    done = subprocess.run([NODE, "--test", str(tests)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split("# pass ")[1].split()[0]) >= 39


def pointers(rows, keys, seed):
    generator = torch.Generator().manual_seed(seed)
    phi = (4 * torch.randn(2, rows, keys, generator=generator)).softmax(-1)
    phi[:, 0] = 0.0
    return phi


@pytest.mark.parametrize("expectation", ["paper", "exact", "ordered"])
@pytest.mark.parametrize("segment_size", [1, 2, 5, 70])
def test_windows_equal_those_of_functional_in_float32(expectation, segment_size):
    rows = []
    for keys, origin in ((1, 0), (7, 0), (60, 3)):
        left, right = pointers(4, keys, seed=keys)
        window = functional.soft_window(
            left,
            right,
            segment_size=segment_size,
            segment_origin=torch.full((4,), origin),
            expectation=expectation,
        )
        rows += [
            {"left": a.tolist(), "right": b.tolist(), "origin": origin, "window": w.tolist()}
            for a, b, w in zip(left, right, window, strict=True)
        ]
    program = f"""
        import {{ softWindow }} from "./window.js";
        const settings = {{ segmentSize: {segment_size}, expectation: "{expectation}" }};
        const windows = input.map(({{ left, right, origin }}) =>
            [...softWindow(Float32Array.from(left), Float32Array.from(right), {{ ...settings, origin }})]);
        console.log(JSON.stringify(windows));
    """
    for found, row in zip(run_node(program, rows), rows, strict=True):
        np.testing.assert_allclose(found, row["window"], rtol=0, atol=1e-5)


def test_sums_equal_those_of_functional_in_float32():
    phi = pointers(3, 23, seed=1)[0]
    program = """
        import { leftward, prefixSums, rightward, segmentBounds } from "./window.js";
        const sums = input.map((phi) => {
            const bounds = segmentBounds(phi.length, 4);
            const prefix = prefixSums(Float32Array.from(phi));
            return [[...rightward(prefix, bounds)], [...leftward(prefix, bounds)]];
        });
        console.log(JSON.stringify(sums));
    """
    found = np.array(run_node(program, phi.tolist()))
    np.testing.assert_allclose(found[:, 0], functional.rightward(phi, 4), rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[:, 1], functional.leftward(phi, 4), rtol=0, atol=1e-5)


def test_the_overlap_is_that_of_evaluation():
    window = functional.soft_window(*pointers(5, 9, seed=2))
    program = """
        import { softOverlap } from "./statistics.js";
        console.log(JSON.stringify(input.map((row) => softOverlap(row, 2, 5))));
    """
    gold = (np.arange(9) >= 2) & (np.arange(9) <= 5)
    expected = soft_overlap(window.double().numpy(), gold[None])
    np.testing.assert_allclose(run_node(program, window.tolist()), expected, atol=1e-6)
