"""Prepare generated parallel corpora of growing size: processor time, memory, disk, restart after SIGKILL.

    python benchmarks/preparation.py [--pairs 300000 600000 1200000] [--kills 3] [--folder DIR]

Each size is prepared once undisturbed. The largest is prepared again and killed several times on the way: the
store must then have the same files, and the processor time of all attempts shows what the kills cost. The
last line extrapolates to 36 million pairs, the size of WMT14 en-fr, from the two largest sizes.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from corpus import write_pairs
from memory import measured

from diffwindow.data.store import Store, corpus_hashes

WMT14_EN_FR = 36_000_000


@dataclass(frozen=True)
class Cost:
    """Processor seconds, peak memory in bytes, and bytes on disk of text and store."""

    pairs: int
    seconds: float
    peak: int
    text: int
    store: int


def command(folder: Path, out: Path) -> list[str]:
    text = ["--source", str(folder / "train.src"), "--target", str(folder / "train.tgt")]
    return [sys.executable, "-m", "diffwindow", "prepare", *text, "--workers", "1", "--out", str(out)]


def processor_seconds() -> float:
    """Give what the children that ended have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def undisturbed(folder: Path, pairs: int) -> Cost:
    folder.mkdir()
    text = sum(path.stat().st_size for path in write_pairs(folder, pairs))
    before = processor_seconds()
    _, peak = measured(command(folder, folder / "store"))
    return Cost(pairs, processor_seconds() - before, peak, text, size(folder / "store"))


def killed(folder: Path, seconds: float, kills: int) -> float:
    """Prepare again, killed after equal shares of the time; give the processor seconds of all attempts."""
    out, before = folder / "again", processor_seconds()
    for _ in range(kills):
        with subprocess.Popen(command(folder, out), start_new_session=True) as process:
            started = processor_use(process.pid)
            while process.poll() is None and processor_use(process.pid) - started < seconds / (kills + 1):
                time.sleep(0.2)
            os.killpg(process.pid, signal.SIGKILL)
    subprocess.run(command(folder, out), check=True)
    assert corpus_hashes(Store.open(out).manifest) == corpus_hashes(Store.open(folder / "store").manifest)
    return processor_seconds() - before


def processor_use(pid: int) -> float:
    """Give the processor seconds of a running process, without its children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, nargs="+", default=[300_000, 600_000, 1_200_000])
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    costs = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for pairs in sorted(options.pairs):
            cost = undisturbed(Path(name) / str(pairs), pairs)
            costs.append(cost)
            print(
                f"{pairs:>10,} pairs  {cost.seconds:7.1f} s  {1e6 * cost.seconds / pairs:5.1f} s/million  "
                f"{cost.peak / 2**20:5.0f} MiB  {cost.store / cost.text:.2f} bytes per byte of text  "
                f"{cost.store / 1e6:.0f} MB",
                flush=True,
            )
        last = costs[-1]
        seconds = killed(Path(name) / str(last.pairs), last.seconds, options.kills)
        print(f"killed {options.kills} times: the same store, {seconds - last.seconds:.1f} s more")
    if len(costs) > 1:
        share = (WMT14_EN_FR - last.pairs) / (last.pairs - costs[-2].pairs)
        seconds, store, peak = (
            value + share * (value - before)
            for value, before in (
                (last.seconds, costs[-2].seconds),
                (last.store, costs[-2].store),
                (last.peak, costs[-2].peak),
            )
        )
        print(
            f"extrapolated to {WMT14_EN_FR:,} pairs: {seconds:,.0f} s, {peak / 2**20:,.0f} MiB, "
            f"{store / 1e9:.1f} GB"
        )


if __name__ == "__main__":
    main()
