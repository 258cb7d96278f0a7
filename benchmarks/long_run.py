"""Train for long with validations, checkpoints and SIGKILLs, beside a server, to see if anything grows.

    python benchmarks/long_run.py [--updates 20000] [--kills 20] [--requests-per-second 2]

Two runs of the same tiny classifier at once, one undisturbed and one killed and resumed; a reader follows
their logs, and a server answers requests about the first checkpoint. The script stops by itself, fails unless
both runs end with the same weights and log, and prints how resident memory, open files, threads and disk
changed with the updates (of the server: with the answers): least-squares slopes with their standard errors.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from diffwindow.training.records import read_records

# of the tiny classifier; an update takes milliseconds
SIZES = [
    *("data.rows=200", "model.embed_dim=8", "model.ffn_dim=8", "model.num_heads=1", "model.num_layers=1"),
    *("train.max_tokens=64", "train.device=cpu", "train.log_every=50", "train.valid_every=500"),
    *("train.save_every=250", "train.keep_last=3", "train.final=last"),
]
MEASURES = ("resident KiB", "open files", "threads", "disk KiB")
# the share of the samples at the start that shows caches filling
WARM_UP = 0.2
# neighbouring samples resemble each other: means of this many blocks are nearly independent
BLOCKS = 20


@dataclass
class Subject:
    """A process that is watched, and its samples: progress, then MEASURES."""

    folder: Path
    samples: list[list[float]] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        with (self.folder.parent / f"{self.folder.name}.err").open("ab") as errors:
            command = [sys.executable, "-m", "diffwindow", *arguments]
            self.process = subprocess.Popen(command, stdout=errors, stderr=errors)

    def sample(self, progress: float) -> None:
        assert self.process is not None
        place = Path(f"/proc/{self.process.pid}")
        try:
            status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
            files = len(os.listdir(place / "fd"))
            resident, threads = int(status["VmRSS"].split()[0]), int(status["Threads"])
        except (OSError, KeyError):
            return
        self.samples.append([progress, resident, files, threads, disk(self.folder) / 1024])


def disk(folder: Path) -> int:
    # os.walk passes over folders that vanish meanwhile, as old checkpoints do
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_blocks * 512
            except OSError:
                continue
    return total


def last_update(folder: Path) -> int:
    """Read the log as any reader does, while it is written, and give its last update."""
    path = folder / "log.jsonl"
    records = read_records(path) if path.exists() else []
    updates = [record["update"] for record in records]
    assert updates == sorted(updates), "the log is out of order"
    return updates[-1] if updates else 0


def slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Give the least-squares slope of block means and its standard error."""
    x, y = (np.array([block.mean() for block in np.array_split(values, BLOCKS)]) for values in (x, y))
    centred = x - x.mean()
    value = float((centred * (y - y.mean())).sum() / (centred**2).sum())
    rest = y - y.mean() - value * centred
    return value, float(np.sqrt((rest**2).sum() / (len(x) - 2) / (centred**2).sum()))


def report(name: str, subject: Subject, unit: str) -> None:
    samples = np.array(subject.samples)
    samples = samples[int(WARM_UP * len(samples)) :]
    for number, measure in enumerate(MEASURES, 1):
        if len(samples) < BLOCKS or np.ptp(samples[:, 0]) == 0:
            print(f"{name}: too few samples")
            return
        value, error = slope(samples[:, 0], samples[:, number])
        print(
            f"{name:12} {measure:13} {samples[:, number].min():9.0f} to {samples[:, number].max():9.0f}   "
            f"{1000 * value:+8.3f} ± {1000 * error:.3f} per 1,000 {unit}"
        )


def ask(port: int, number: int) -> bool:
    """Ask the server about a sentence; return False if it does not listen yet."""
    words = ["the", "keys", "to", "the", "cabinet", str(number % 50)]
    body = json.dumps({"text": " ".join(words)}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/attention", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=1200) as answer:
            answer.read()
    except urllib.error.URLError as error:
        if number == 0 and isinstance(error.reason, ConnectionRefusedError):
            return False
        raise
    return True


def watch(root: Path, updates: int, kills: int, rate: float, port: int) -> tuple[dict[str, Subject], int]:
    """Run all three until both runs have ended; give the subjects and the number of answers."""
    chance = random.Random(0)
    train = [*SIZES, f"train.max_updates={updates}"]
    calm, killed, server = (Subject(root / name) for name in ("calm", "killed", "server"))
    server.folder = root / "calm-model"

    def start(run: Subject) -> None:
        run.start("train", "agreement", "--attention", "Enc(AW)", *train, "--out", str(run.folder))

    start(calm)
    start(killed)
    at = sorted(chance.sample(range(updates // 50, updates), kills))
    answers, next_answer, done = 0, 0.0, {"calm": False, "killed": False}
    try:
        while not all(done.values()):
            time.sleep(0.25)
            for name, run in (("calm", calm), ("killed", killed)):
                if done[name]:
                    continue
                update = last_update(run.folder)
                run.sample(update)
                assert run.process is not None
                if run is killed and at and update >= at[0]:
                    run.process.send_signal(signal.SIGKILL)
                    run.process.wait()
                    at.pop(0)
                    start(run)
                elif run.process.poll() is not None:
                    assert run.process.returncode == 0, f"{name} ended with {run.process.returncode}"
                    done[name] = True
            if server.process is None and (checkpoints := sorted((calm.folder / "checkpoints").glob("0*"))):
                subprocess.run(["cp", "-r", checkpoints[0], server.folder], check=True)
                server.start("view", str(server.folder), "--serve", "--port", str(port))
            elif server.process is not None and time.monotonic() >= next_answer:
                next_answer = time.monotonic() + 1 / rate
                if ask(port, answers):
                    answers += 1
                    server.sample(answers)
    finally:
        for subject in (calm, killed, server):
            if subject.process is not None and subject.process.poll() is None:
                subject.process.kill()
                subject.process.wait()
    assert not at, f"{len(at)} kills were not reached"
    return {"undisturbed": calm, "killed": killed, "server": server}, answers


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--requests-per-second", type=float, default=2.0)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--out", type=Path, help="keep the samples here as samples.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.out) as name:
        root, began = Path(name), time.monotonic()
        subjects, answers = watch(
            root, options.updates, options.kills, options.requests_per_second, options.port
        )
        if options.out is not None:
            samples = {name: subject.samples for name, subject in subjects.items()}
            (options.out / "samples.json").write_text(json.dumps(samples))
        for file in ("model/model.safetensors", "log.jsonl"):
            assert (root / "calm" / file).read_bytes() == (root / "killed" / file).read_bytes(), file
        print(
            f"{options.updates:,} updates, {options.kills} kills, {answers:,} answers in "
            f"{time.monotonic() - began:.0f} s: the same weights and the same log"
        )
        for name, subject in subjects.items():
            report(name, subject, "answers" if name == "server" else "updates")


if __name__ == "__main__":
    main()
