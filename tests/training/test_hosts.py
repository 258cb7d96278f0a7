"""Two hosts, each a network namespace: what is cut, killed or delayed changes the time, and not the bits."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import diffwindow
from diffwindow.models.weights import read_weights
from samples.hosts import Host, missing_for_hosts, two_hosts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(missing_for_hosts() is not None, reason=str(missing_for_hosts())),
]
ENDPOINT = "10.77.0.1:29500"
UPDATES = 200
TRAIN = [
    *("agreement", "data.rows=200", "model.embed_dim=16", "model.ffn_dim=16", "model.num_heads=2"),
    *("train.max_tokens=400", f"train.max_updates={UPDATES}", "train.device=cpu", "train.log_every=20"),
    *("train.valid_every=50", "train.save_every=20", "train.keep_last=20", "train.final=last"),
]
# without it, a torchrun that starts anew cannot join, https://github.com/pytorch/pytorch/issues/135712
RETURNING = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(diffwindow.__file__).parents[1])}
LAUNCHER = "torch.distributed.run"
RESTARTS = ("--max-restarts", "5", "--monitor-interval", "1")


def train(out: Path, timeout: float = 60.0) -> list[str]:
    limit = f"train.timeout_seconds={timeout}"
    return ["-m", "diffwindow", "train", *TRAIN, limit, "--virtual-gpus", "2", "--out", str(out)]


def start(host: Host, out: Path, *options: str, nodes: str = "2", timeout: float = 60.0, **environment: str):
    """Start torchrun on a host, with one process."""
    place = ["--rdzv-backend", "c10d", "--rdzv-endpoint", ENDPOINT, "--local-addr", host.address]
    command = [sys.executable, "-m", LAUNCHER, "--nnodes", nodes, "--nproc-per-node", "1"]
    return host.start(
        [*command, *place, *options, *train(out, timeout)], log(out, host), {**ENVIRONMENT, **environment}
    )


def log(out: Path, host: Host) -> Path:
    return out.with_name(f"{out.name}-{host.name}.log")


def wait_for(path: Path, text: str = "") -> None:
    end = time.monotonic() + 300
    while not path.exists() or (text and text not in path.read_text()):
        assert time.monotonic() < end, f"no {text} in {path}"
        time.sleep(0.05)


def checkpoint(out: Path, update: int) -> Path:
    return out / "checkpoints" / f"{update:08}"


@pytest.fixture(scope="module")
def bits(tmp_path_factory):
    """Return what tells whether a run has the bits of one process: its final weights and its log."""
    one = tmp_path_factory.mktemp("one") / "run"
    subprocess.run([sys.executable, *train(one)], env={**os.environ, **ENVIRONMENT}, check=True)

    def same(run: Path) -> bool:
        first, second = (read_weights(folder / "model/model.safetensors")[0] for folder in (one, run))
        equal = first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)
        return equal and (one / "log.jsonl").read_bytes() == (run / "log.jsonl").read_bytes()

    return same


def test_the_line_of_doctor_works_where_own_names_are_loopback(tmp_path, bits):
    # as Debian writes /etc/hosts
    with two_hosts(own_name="127.0.1.1") as (alpha, beta, _):
        running = []
        for host in (alpha, beta):
            said = tmp_path / host.name
            doctor = [sys.executable, "-m", "diffwindow", "doctor", "--rendezvous", ENDPOINT]
            assert host.start(doctor, said, ENVIRONMENT).wait() == 0
            line = said.read_text().splitlines()[-1].removeprefix("torchrun").split(" -m diffwindow")[0]
            line = line.replace("NODES", "2").replace("PROCESSES", "1")
            variable, _, *options = shlex.split(line)
            command = [sys.executable, "-m", LAUNCHER, *options, *train(tmp_path / "run")]
            name, _, value = variable.partition("=")
            running.append(host.start(command, tmp_path / f"{host.name}.log", {**ENVIRONMENT, name: value}))
        assert [process.wait() for process in running] == [0, 0]
    assert bits(tmp_path / "run")


def test_doctor_says_that_a_host_does_not_answer_within_ten_seconds(tmp_path):
    with two_hosts() as (_, beta, wire):
        wire.set(loss=1.0)
        began = time.monotonic()
        doctor = [sys.executable, "-m", "diffwindow", "doctor", "--rendezvous", "alpha:29500"]
        assert beta.start(doctor, tmp_path / "said", ENVIRONMENT).wait() == 2
        assert time.monotonic() - began < 30
    said = (tmp_path / "said").read_text()
    assert said.startswith("diffwindow: alpha (10.77.0.1) port 29500: does not answer; check the address")


def test_latency_and_loss(tmp_path, bits):
    with two_hosts() as (alpha, beta, wire):
        wire.set(delay=0.02, loss=0.01)
        running = [start(host, tmp_path / "run") for host in (alpha, beta)]
        assert [process.wait() for process in running] == [0, 0]
    assert bits(tmp_path / "run")


def test_a_short_cut_is_waited_out(tmp_path, bits):
    run = tmp_path / "run"
    with two_hosts() as (alpha, beta, wire):
        running = [start(host, run) for host in (alpha, beta)]
        wait_for(checkpoint(run, 40))
        wire.set(loss=1.0)
        time.sleep(5)
        wire.set()
        assert [process.wait() for process in running] == [0, 0]
        assert "lost" not in log(run, alpha).read_text()
    assert bits(run)


def test_after_a_cut_one_host_goes_on_alone(tmp_path, bits):
    run = tmp_path / "run"
    with two_hosts() as (alpha, beta, wire):
        first, _ = (start(host, run, *RESTARTS, nodes="1:2", timeout=10.0) for host in (alpha, beta))
        wait_for(checkpoint(run, 40))
        wire.set(loss=1.0)
        # each names the other
        wait_for(log(run, alpha), "diffwindow: lost beta (process 1 of 2), last heard from ")
        wait_for(log(run, beta), "diffwindow: lost alpha (process 0 of 2), last heard from ")
        assert first.wait() == 0
        assert "resuming from update" in log(run, alpha).read_text()
    assert bits(run)


def test_after_a_host_is_killed_the_other_goes_on_alone(tmp_path, bits):
    run = tmp_path / "run"
    with two_hosts() as (alpha, beta, _):
        first, _ = (start(host, run, *RESTARTS, nodes="1:2") for host in (alpha, beta))
        wait_for(checkpoint(run, 40))
        beta.kill()
        assert first.wait() == 0
        assert "lost beta (process 1 of 2)" in log(run, alpha).read_text()
    assert bits(run)


@pytest.mark.parametrize("nodes", ["2", "1:2"])
def test_a_host_that_returns_is_taken_in(tmp_path, bits, nodes):
    run = tmp_path / "run"
    with two_hosts() as (alpha, beta, _):
        first, _ = (start(host, run, *RESTARTS, nodes=nodes, **RETURNING) for host in (alpha, beta))
        wait_for(checkpoint(run, 40))
        beta.kill()
        wait_for(log(run, alpha), "lost beta (process 1 of 2)")
        second = start(beta, run, *RESTARTS, nodes=nodes, **RETURNING)
        assert [first.wait(), second.wait()] == [0, 0]
    assert bits(run)


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_process_that_stops_without_dying_is_named_and_restarted(tmp_path, bits, stopped):
    run = tmp_path / "run"
    with two_hosts() as (alpha, beta, _):
        hosts = alpha, beta
        running = [start(host, run, *RESTARTS, timeout=10.0) for host in hosts]
        wait_for(checkpoint(run, 40))
        hosts[stopped].signal(signal.SIGSTOP, but=LAUNCHER)
        # torchrun kills the stopped one and starts both again
        assert [process.wait() for process in running] == [0, 0]
        lost = f"diffwindow: lost {hosts[stopped].name} (process {stopped} of 2), last heard from "
        assert lost in log(run, hosts[1 - stopped]).read_text()
    assert bits(run)


def test_a_signal_during_a_cut_acts_at_once(tmp_path, bits):
    run = tmp_path / "run"
    with two_hosts() as (alpha, beta, wire):
        first, _ = (start(host, run, timeout=600.0) for host in (alpha, beta))
        wait_for(checkpoint(run, 40))
        wire.set(loss=1.0)
        time.sleep(2)
        began = time.monotonic()
        first.send_signal(signal.SIGTERM)
        wait_for(log(run, alpha), "stopped by SIGTERM after update ")
        assert time.monotonic() - began < 30
    # one process goes on with the batches of both
    subprocess.run([sys.executable, *train(run)], env={**os.environ, **ENVIRONMENT}, check=True)
    assert bits(run)
