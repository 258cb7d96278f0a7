import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from diffwindow.models import weights as weights_module
from diffwindow.models.weights import CheckpointError, FormatError, write_tensors
from diffwindow.training.checkpoints import Checkpoints, read_checkpoint
from diffwindow.training.failures import TrainingError
from diffwindow.training.logs import RunLogs
from diffwindow.training.records import read_records
from samples.majority_task import MajorityTask, fit, outcome
from samples.processes import FORK_WARNING, in_child, small_files

NOBODY = 65534


def save_model(folder: Path) -> None:
    write_tensors(folder / "model.safetensors", {"w": torch.arange(4.0)}, {"config": "{}"})


def write(folder: Path) -> Path:
    checkpoints = Checkpoints(folder)
    checkpoints.save(3, save_model, {"update": 3}, {"step": torch.tensor(3.0)})
    return checkpoints.path(3)


def test_round_trip(tmp_path):
    checkpoint = read_checkpoint(write(tmp_path))
    assert checkpoint.weights["w"].tolist() == [0, 1, 2, 3]
    assert checkpoint.tensors["step"] == 3
    assert checkpoint.state == {"update": 3}


@pytest.mark.parametrize("name", ["model.safetensors", "state.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "remove"])
def test_any_damage_is_seen(tmp_path, name, damage):
    path = write(tmp_path) / name
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage == "flip":
        # in the manifest: the update's own digit, which leaves it valid JSON
        content[-2 if name != "checkpoint.json" else content.index(b'"update": ') + 10] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    with pytest.raises(CheckpointError, match=r"damaged|missing|no checkpoint.json"):
        read_checkpoint(path.parent)


def test_a_write_that_fails_leaves_the_old_one(tmp_path):
    checkpoint = write(tmp_path)

    def write_much(folder: Path) -> None:
        write_tensors(folder / "model.safetensors", {"weight": torch.zeros(1000)}, {"config": "{}"})

    with pytest.raises(OSError, match="too large") as error, small_files():
        Checkpoints(tmp_path).save(3, write_much, {})
    assert error.value.filename == str(checkpoint / "model.safetensors")
    assert read_checkpoint(checkpoint).state == {"update": 3}
    assert list(tmp_path.iterdir()) == [checkpoint]


def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_used(tmp_path):
    fit(tmp_path / "whole")
    fit(tmp_path / "cut", max_updates=20)
    newest = tmp_path / "cut/checkpoints/00000020/state.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    told: list[str] = []
    found = Checkpoints(tmp_path / "cut/checkpoints").newest(told.append)
    assert found is not None
    assert found.state["update"] == 15
    assert "00000020/state.safetensors is damaged" in told[0]
    fit(tmp_path / "cut")
    after = {name: text for name, text in outcome(tmp_path / "cut").items() if "damaged" not in name}
    assert after == outcome(tmp_path / "whole")


@pytest.mark.parametrize(("final", "damaged"), [("average", "checkpoints/00000015"), ("best", "best/*")])
def test_a_damaged_checkpoint_that_the_final_model_needs_is_one_sentence(tmp_path, final, damaged):
    fit(tmp_path, final=final)
    shutil.rmtree(tmp_path / "model")
    (weights,) = tmp_path.glob(f"{damaged}/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"is damaged; train.final={final} needs it: restore it from a copy"):
        fit(tmp_path, final=final)


def test_folders_of_other_names_are_no_checkpoints(tmp_path):
    fit(tmp_path, max_updates=10)
    (tmp_path / "checkpoints/7").mkdir()
    assert Checkpoints(tmp_path / "checkpoints").updates() == [5, 10]


def test_a_run_without_a_good_checkpoint_does_not_begin_again_by_itself(tmp_path):
    fit(tmp_path, max_updates=5, keep_last=1)
    log = (tmp_path / "log.jsonl").read_bytes()
    state = tmp_path / "checkpoints/00000005/state.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"damaged, and .* has no good checkpoint; restore one"):
        fit(tmp_path)
    assert (tmp_path / "log.jsonl").read_bytes() == log
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["00000005"]


def test_a_checkpoint_of_another_version_is_not_put_aside(tmp_path, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr(weights_module, "MANIFEST_FORMAT", 2)
        fit(tmp_path, max_updates=10)
    with pytest.raises(FormatError, match=r"has format 2, .* reads 1; go on with the version"):
        fit(tmp_path)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["00000005", "00000010"]


def test_another_model_is_one_sentence(tmp_path):
    fit(tmp_path, max_updates=5)

    class Wider(MajorityTask):
        def build_model(self):
            return torch.nn.Sequential(torch.nn.EmbeddingBag(9, 8), torch.nn.Dropout(), torch.nn.Linear(8, 2))

    with pytest.raises(ValueError, match=r"holds another model: size mismatch for 0.weight"):
        fit(tmp_path, Wider())


def test_a_log_that_lost_its_end_is_refused(tmp_path):
    fit(tmp_path, max_updates=10)
    (tmp_path / "log.jsonl").write_bytes(b"")
    with pytest.raises(ValueError, match=r"log.jsonl has lost its end"):
        fit(tmp_path)


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a tmpfs here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("room", [4096, 12288, 20480])
def test_a_full_disk_is_one_sentence_and_leaves_the_last_checkpoint(small_disk, room):
    run = small_disk / "run"
    fit(run, max_updates=10)
    status = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(bytes(status.f_bavail * status.f_frsize - room))
    with pytest.raises(TrainingError, match=r"No space left.*newest checkpoint is that of update 1\d"):
        fit(run, max_updates=1000, log_every=1)
    (small_disk / "ballast").unlink()
    fit(run, max_updates=30)
    assert read_checkpoint(run / "checkpoints/00000030").state["update"] == 30


@pytest.mark.filterwarnings(FORK_WARNING)
def test_losing_the_right_to_write_is_one_sentence(tmp_path):
    """As another user where this one is root, who may write anywhere."""
    run, report = tmp_path / "run", tmp_path / "report"
    fit(run, max_updates=10)
    before = outcome(run)
    report.touch(mode=0o666)
    report.chmod(0o666)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.stat().st_uid == os.getuid() and folder != Path("/tmp"):
            folder.chmod(0o755)
    run.chmod(0o555)

    def write_message() -> None:
        if os.getuid() == 0:
            os.setuid(NOBODY)
        report.write_text(_message(run))

    os.waitpid(in_child(write_message), 0)
    run.chmod(0o755)
    assert "Permission denied" in report.read_text()
    assert "the newest checkpoint is that of update 10" in report.read_text()
    assert outcome(run) == before


def _message(folder: Path) -> str:
    try:
        fit(folder)
    except TrainingError as error:
        return str(error)
    return "nothing was raised"


# json.loads and json.dumps stop at different depths
@pytest.mark.parametrize("depth", [300, 900, 990, 3_000, 100_000])
def test_a_deeply_nested_manifest_is_damaged_and_the_one_before_used(tmp_path, depth):
    fit(tmp_path, max_updates=10)
    path = tmp_path / "checkpoints/00000010/checkpoint.json"
    path.write_text(path.read_text().replace('"state": {', f'"state": {{"a": {"[" * depth}{"]" * depth},'))
    notes: list[str] = []
    checkpoint = Checkpoints(tmp_path / "checkpoints").newest(notes.append)
    assert checkpoint is not None
    assert checkpoint.state["update"] == 5
    assert "checkpoint.json is damaged" in notes[0]


@pytest.mark.parametrize("name", ["log", "update", "batches", "scaler"])
def test_a_checkpoint_without_a_part_of_its_state_is_one_sentence(tmp_path, name):
    fit(tmp_path, max_updates=5)
    newest = tmp_path / "checkpoints/00000005"
    state = weights_module.verify(newest)
    del state[name]
    weights_module.write_manifest(newest, state)
    with pytest.raises(ValueError, match=rf"00000005 has no '{name}' in its state, so no run can resume"):
        fit(tmp_path)


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_a_linked_folder_is_not_written_to(tmp_path, name):
    outside, run = tmp_path / "outside", tmp_path / "run"
    fit(run, max_updates=5)
    (run / name).rename(outside)
    (outside / ".mine.tmp").write_text("mine")
    (run / name).symlink_to(outside)
    before = {path.name for path in outside.iterdir()}
    with pytest.raises(ValueError, match=rf"{name} is a link"):
        fit(run)
    assert {path.name for path in outside.iterdir()} == before


@pytest.mark.parametrize("line", ["", "{", "null", "[1]", '{"update": null}', "[" * 100_000, "\udcff"])
def test_a_damaged_log_names_its_file_and_line(tmp_path, line):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"update": 1}\n' + line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(ValueError, match=r"log.jsonl, line 2 is damaged"):
        read_records(path)


def test_deep_nesting_in_timings_is_cut_off(tmp_path):
    good = b'{"update": 1}\n'
    (tmp_path / "timing.jsonl").write_bytes(good + b"[" * 100_000 + b"]" * 100_000 + b"\n")
    RunLogs(tmp_path, update=5).close()
    assert (tmp_path / "timing.jsonl").read_bytes() == good
