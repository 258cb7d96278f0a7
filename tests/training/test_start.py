"""How processes meet: one name per start, the same config, and addresses that lead to a machine."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from diffwindow import resolve
from diffwindow.training.distributed import name_start
from diffwindow.training.failures import StopRequest
from diffwindow.training.rendezvous import check_rendezvous
from diffwindow.training.run import check_same


def _start(store: HashStore) -> list[str]:
    with ThreadPoolExecutor() as threads:
        names = [threads.submit(name_start, store, rank, 3, 20.0) for rank in range(3)]
        return [name.result() for name in names]


def test_every_start_has_a_name_of_its_own() -> None:
    store = HashStore()
    first = _start(store)
    # what the first start left in the store is not taken for a process of the second
    with pytest.raises(RuntimeError, match="process 1, 2 of 3 has not come within 0 s"):
        name_start(store, 0, 3, 0.2)
    with pytest.raises(RuntimeError, match="process 0 of 3 has not come"):
        name_start(store, 1, 3, 0.2)
    second = _start(store)
    assert len(set(first)) == len(set(second)) == 1
    assert first != second


def test_signals_under_torchrun_may_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    request = StopRequest()
    for _ in range(3):
        request(signal.SIGTERM, None)
    assert request.signal == signal.SIGTERM
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    with pytest.raises(KeyboardInterrupt):
        request(signal.SIGTERM, None)


def test_processes_must_train_alike() -> None:
    config = resolve("agreement")
    check_same(config, config.with_data("/another/mount"))
    for override in ("train.seed=7", "train.lr=0.5", "model.embed_dim=32", "train.max_updates=5"):
        name = override.partition("=")[0]
        with pytest.raises(ValueError, match=f"{name}=.*but the first process has.*the same command"):
            check_same(config, resolve("agreement", [override]))


@pytest.mark.parametrize("seconds", ["1e300", "1e9", "0.3", "0", "nan"])
def test_timeouts_that_no_run_can_keep(seconds: str) -> None:
    with pytest.raises(ValueError, match="timeout_seconds"):
        resolve("agreement", [f"train.timeout_seconds={seconds}"])


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("0.0.0.0:29500", "no machine's address"),
        ("224.0.0.1:29500", "no machine's address"),
        ("255.255.255.255:29500", "no machine's address"),
        ("a..b:29500", "not known"),
        (f"{'a' * 64}:29500", "not known"),
        ("127.0.0.1:٢٩٥٠٠", "give HOST:PORT"),
        (f"127.0.0.1:{'9' * 5000}", "give HOST:PORT"),
    ],
)
def test_endpoints_where_nobody_meets(endpoint: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_rendezvous(endpoint)
