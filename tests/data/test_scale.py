"""Corpora that do not fit in memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from diffwindow.data.store import Store

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_five_million_pairs_in_a_gigabyte(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from corpus import write_pairs
    from memory import measured

    source, target = write_pairs(tmp_path, 5_000_000)
    command = [
        sys.executable,
        "-m",
        "diffwindow",
        "prepare",
        "--source",
        str(source),
        "--target",
        str(target),
    ]
    seconds, peak = measured([*command, "--out", str(tmp_path / "store")], {"PYTHONPATH": str(ROOT / "src")})
    print(f"{seconds:.0f} s, {peak / 2**20:.0f} MiB")
    assert peak < 2**30
    assert len(Store.open(tmp_path / "store").split("train")) == 5_000_000


PLAN = """
import resource, numpy as np
from diffwindow.data.batching import TokenBatches
rng = np.random.default_rng(0)
lengths = [rng.integers(1, 100, 36_000_000, dtype=np.int32) for _ in range(2)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
len(TokenBatches(lengths, max_tokens=4096, seed=1))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_planning_36_million_rows_needs_bounded_memory():
    environment = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", PLAN], env=environment, capture_output=True, check=True)
    # the order and the sort keys: 4 + 8 bytes a row, and little else
    assert int(done.stdout) < 1024


def test_lengths_of_a_store_are_narrow(agreement_store):
    assert agreement_store.split("train").lengths("text").dtype == np.int32
