import json
import signal
import time

import numpy as np
import pytest
import torch

from diffwindow.data.batching import TokenBatches
from diffwindow.models.weights import average_weights, read_weights
from diffwindow.progress import show_progress
from diffwindow.training.distributed import World
from diffwindow.training.failures import Interrupted, TrainingError
from diffwindow.training.loader import BatchLoader
from diffwindow.training.records import read_records
from diffwindow.training.trainer import Trainer
from samples.majority_task import MajorityTask, fit, outcome, save, settings


class CutError(Exception):
    pass


class CutTask(MajorityTask):
    """Call `action` in the loss of the `after`-th batch."""

    def __init__(self, after, action):
        super().__init__()
        self._left = after
        self._action = action

    def loss(self, model, batch):
        self._left -= 1
        if self._left == 0:
            self._action()
        return super().loss(model, batch)


def fail():
    raise CutError


@pytest.mark.parametrize("save_every", [5, "epoch"])
@pytest.mark.parametrize("final", ["last", "best", "average"])
def test_a_cut_run_ends_as_an_uncut_one(tmp_path, final, save_every):
    changes = {"final": final, "average_last": 3, "accumulate": 2, "watch": "accuracy"}
    changes["save_every"] = save_every
    fit(tmp_path / "whole", **changes)
    for after in (3, 11, 24, 17):
        with pytest.raises(CutError):
            fit(tmp_path / "cut", CutTask(after, fail), **changes)
    fit(tmp_path / "cut", **changes)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def test_a_run_learns(tmp_path):
    fit(tmp_path, max_updates=300, valid_every=100, save_every=300)
    valid = [record for record in read_records(tmp_path / "log.jsonl") if record["kind"] == "valid"]
    assert valid[-1]["accuracy"] > 0.95


def test_seeds_differ_and_repeat(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        fit(tmp_path / name, seed=seed)
    a, b, c = (read_weights(tmp_path / name / "model/model.safetensors")[0] for name in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)


def test_a_finished_run_is_left_as_it_is(tmp_path):
    fit(tmp_path)
    before = outcome(tmp_path)
    fit(tmp_path)
    assert outcome(tmp_path) == before


def test_a_run_can_be_made_longer(tmp_path):
    fit(tmp_path / "long", max_updates=40)
    fit(tmp_path / "grown", max_updates=30)
    fit(tmp_path / "grown", max_updates=40)
    assert outcome(tmp_path / "grown") == outcome(tmp_path / "long")


def test_keeps_the_last_checkpoints(tmp_path):
    fit(tmp_path, keep_last=2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["00000025", "00000030"]


def test_the_average_is_that_of_the_last_checkpoints(tmp_path):
    fit(tmp_path, final="average", average_last=3)
    files = [tmp_path / f"checkpoints/{update:08d}/model.safetensors" for update in (20, 25, 30)]
    expected, _ = average_weights(files)
    found, _ = read_weights(tmp_path / "model/model.safetensors")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("accumulate", [1, 5])
def test_checkpoints_at_the_end_of_each_epoch(tmp_path, accumulate):
    task = MajorityTask()
    sampler = TokenBatches(task.lengths("train"), max_tokens=120, seed=1)
    batches = [len(list(sampler)) for _ in range(3)]
    # the update that has the last batch of an epoch, counted from 1
    ends = [-(-sum(batches[:number]) // accumulate) for number in (1, 2, 3)]
    # two updates more than the epochs have, which are saved and not averaged
    last = ends[-1] + 2
    changes = {"max_updates": last, "accumulate": accumulate, "save_every": "epoch", "keep_last": 2}
    fit(tmp_path, **changes, final="average", average_last=2)
    assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == [*ends[1:], last]
    saved = [tmp_path / f"checkpoints/{update:08d}/model.safetensors" for update in ends[1:]]
    average, _ = average_weights(saved)
    final, _ = read_weights(tmp_path / "model/model.safetensors")
    assert all(torch.equal(average[name], final[name]) for name in final)


def test_a_run_that_is_stopped_within_an_epoch_goes_on_from_there(tmp_path):
    changes = {"save_every": "epoch", "final": "average", "average_last": 2}
    fit(tmp_path / "whole", **changes)

    def interrupt():
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        fit(tmp_path / "cut", CutTask(7, interrupt), **changes)
    assert [path.name for path in (tmp_path / "cut/checkpoints").iterdir()] == ["00000007"]
    fit(tmp_path / "cut", **changes)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def test_a_run_shorter_than_an_epoch_has_its_last_checkpoint_to_average(tmp_path):
    fit(tmp_path, max_updates=3, valid_every=3, save_every="epoch", final="average")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["00000003"]


def test_stops_when_validation_gets_no_better(tmp_path):
    class Stuck(MajorityTask):
        def validate(self, model, split, *, watch, progress):
            return {"loss": 1.0}

    fit(tmp_path, Stuck(), patience=2, final="best")
    records = read_records(tmp_path / "log.jsonl")
    assert [r["update"] for r in records if r["kind"] == "valid"] == [6, 12, 18]
    state = json.loads((tmp_path / "model/checkpoint.json").read_text())["state"]
    assert state == {"update": 18, "weights": "the best, of update 6"}


def test_the_best_model_may_be_the_last_between_two_validations(tmp_path):
    class Improving(MajorityTask):
        def validate(self, model, split, *, watch, progress):
            self.calls = getattr(self, "calls", 0) + 1
            return {"loss": 1.0 / self.calls}

    def stop():
        signal.raise_signal(signal.SIGTERM)

    task = Improving()
    fit(tmp_path / "whole", task, max_updates=20, final="best")
    # resumed with a length that it already has
    with pytest.raises(Interrupted):
        fit(tmp_path / "shortened", CutTask(20, stop), final="best")
    fit(tmp_path / "shortened", task, max_updates=20, final="best")
    for folder in (tmp_path / "whole", tmp_path / "shortened"):
        state = json.loads((folder / "model/checkpoint.json").read_text())["state"]
        assert state == {"update": 20, "weights": "the best, of update 20"}


def test_what_the_first_validation_needs_is_asked_before_training(tmp_path):
    class Unvalidated(MajorityTask):
        def lengths(self, split):
            if split == "valid":
                raise ValueError("the corpus has no split 'valid'")
            return super().lengths(split)

    with pytest.raises(ValueError, match=r"train.watch=bleu.*loss, accuracy"):
        fit(tmp_path, CutTask(1, fail), watch="bleu")
    with pytest.raises(ValueError, match=r"train.watch=bleu"):
        fit(tmp_path, CutTask(1, fail), watch="bleu", valid_every=None, final="last")
    with pytest.raises(ValueError, match=r"no split 'valid'; train without .*train.valid_every=null"):
        fit(tmp_path, Unvalidated())
    fit(tmp_path, Unvalidated(), valid_every=None)
    fit(tmp_path / "short", Unvalidated(), valid_every=1000)


def test_examples_that_are_too_long_and_a_warmup_that_is_are_told_of(tmp_path, capsys):
    with show_progress() as progress:
        Trainer(
            MajorityTask(), settings(max_tokens=8, warmup=31), tmp_path, World(), progress, save=save
        ).fit()
    lengths, said = MajorityTask().lengths("train")[0], capsys.readouterr().err
    assert "train.warmup=31 is longer than the run" in said
    assert f"{(lengths > 8).sum()} training examples are longer than train.max_tokens=8" in (said)


@pytest.mark.parametrize("accumulate", [1, 2, 5])
def test_gradients_are_those_of_the_mean_over_all_units(tmp_path, accumulate):
    """However the rows of an update are divided into batches, its gradients are those of their union."""
    task = MajorityTask(dropout=0.0)
    config = settings(accumulate=accumulate)
    updater = Trainer(task, config, tmp_path, World(), save=save)._updater
    sampler = TokenBatches(task.lengths("train"), max_tokens=config.max_tokens, seed=config.seed)
    with BatchLoader(task, sampler, World(), accumulate) as loader:
        work = next(loader)
    union = task.collate("train", np.concatenate(work.rows))
    (task.loss(updater.model, union) / union.units).backward()
    expected = [parameter.grad.clone() for parameter in updater.model.parameters()]
    updater.model.zero_grad()
    updater._accumulate(1, work, union.units)
    for parameter, gradient in zip(updater.model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_a_bad_loss_stops_naming_update_and_rows(tmp_path):
    with pytest.raises(TrainingError, match=r"loss of update \d+ is nan in batch \d of 2 \(training rows"):
        fit(tmp_path, MajorityTask(poison=7), accumulate=2, save_every=1)
    newest = max((tmp_path / "checkpoints").iterdir()) / "model.safetensors"
    assert all(torch.isfinite(weight).all() for weight in read_weights(newest)[0].values())


def test_a_bad_loss_can_be_skipped(tmp_path):
    fit(tmp_path, MajorityTask(poison=7), on_bad_loss="skip")
    weights, _ = read_weights(tmp_path / "model/model.safetensors")
    assert all(torch.isfinite(weight).all() for weight in weights.values())
    records = [r for r in read_records(tmp_path / "log.jsonl") if r["kind"] == "train"]
    assert records[-1]["skipped"] > 0
    assert all(np.isfinite(record["loss"]) for record in records)


class BadGradients(MajorityTask):
    """From the `first` to the `last` update the loss is finite, but its gradients are not."""

    def __init__(self, first, last):
        super().__init__()
        self._bad = range(first, last + 1)
        self._update = 0

    def loss(self, model, batch):
        self._update += 1
        total = super().loss(model, batch)
        if self._update in self._bad:
            # the root of zero has an infinite slope, and zero times it is not a number
            total = total + (0 * total).sqrt()
        return total


def test_gradients_that_are_not_finite_are_skipped_too(tmp_path):
    fit(tmp_path, BadGradients(5, 7), on_bad_loss="skip", clip_norm=None)
    weights, _ = read_weights(tmp_path / "model/model.safetensors")
    assert all(torch.isfinite(weight).all() for weight in weights.values())
    records = [r for r in read_records(tmp_path / "log.jsonl") if r["kind"] == "train"]
    assert records[-1]["skipped"] == 3


def test_a_run_that_skips_everything_stops(tmp_path):
    changes = {"on_bad_loss": "skip", "max_updates": 1000, "save_every": 10}
    with pytest.raises(TrainingError, match=r"last 100 updates were all bad.*start a new run"):
        fit(tmp_path, BadGradients(11, 1000), **changes)
    # nor does it go on by being started again
    with pytest.raises(TrainingError, match=r"last 100 updates were all bad"):
        fit(tmp_path, BadGradients(1, 1000), **changes)


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    with pytest.raises(TrainingError, match=r"weights of update 7 are not finite"):
        fit(tmp_path, BadGradients(7, 7), clip_norm=None, log_every=100, save_every=1)
    assert max((tmp_path / "checkpoints").iterdir()).name == "00000006"


def test_an_exploding_loss_stops(tmp_path):
    with pytest.raises(TrainingError, match="the loss of update"):
        fit(tmp_path, lr=1e4, warmup=0, clip_norm=None, max_loss=50.0)


def test_mixed_precision_trains(tmp_path):
    fit(tmp_path, precision="bf16", max_updates=100, valid_every=100, save_every=100)
    valid = [record for record in read_records(tmp_path / "log.jsonl") if record["kind"] == "valid"]
    assert valid[-1]["loss"] < 0.6


@pytest.mark.slow
# torch's compiler warns of torch's own deprecated parts
@pytest.mark.filterwarnings("default")
def test_a_compiled_run_gives_the_losses_of_an_eager_one(tmp_path):
    losses = []
    for name, compiled in (("eager", False), ("compiled", True)):
        fit(tmp_path / name, MajorityTask(dropout=0.0), compile=compiled)
        records = read_records(tmp_path / name / "log.jsonl")
        losses.append([record["loss"] for record in records if record["kind"] == "train"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_out_of_memory_says_what_to_lower(tmp_path):
    def explode():
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(TrainingError, match=r"train.max_tokens=120; lower train.max_tokens"):
        fit(tmp_path, CutTask(1, explode))


def test_an_error_of_the_batch_thread_reaches_the_caller(tmp_path):
    class Broken(MajorityTask):
        def collate(self, split, indices):
            raise LookupError("row 3")

    with pytest.raises(LookupError, match="row 3"):
        fit(tmp_path, Broken())


def test_timing_is_kept_apart_from_the_log(tmp_path):
    fit(tmp_path)
    names = {name for record in read_records(tmp_path / "log.jsonl") for name in record}
    assert not {name for name in names if "second" in name or "per_s" in name}
    assert len(read_records(tmp_path / "timing.jsonl")) == 30 // 4


@pytest.mark.parametrize("torn", [bytes(19) + b"\n", b"{}\n", b"[1]\n"])
def test_timings_that_a_power_cut_tore_do_not_keep_a_run_from_going_on(tmp_path, torn):
    fit(tmp_path / "whole")
    fit(tmp_path / "cut", max_updates=20)
    with (tmp_path / "cut/timing.jsonl").open("ab") as file:
        file.write(torn)
    fit(tmp_path / "cut")
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")
    assert len(read_records(tmp_path / "cut/timing.jsonl")) == 30 // 4


def test_writes_events(tmp_path):
    fit(tmp_path)
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_resuming_with_other_updates_is_refused(tmp_path):
    fit(tmp_path)
    with pytest.raises(ValueError, match=r"change train.accumulate"):
        fit(tmp_path, accumulate=2, max_updates=40)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interruption_saves_and_leaves_no_trace(tmp_path, number, code):
    changes = {"final": "average", "average_last": 3}
    fit(tmp_path / "whole", **changes)
    with pytest.raises(Interrupted, match="after update 13, which is saved") as caught:
        fit(tmp_path / "cut", CutTask(13, lambda: signal.raise_signal(number)), **changes)
    assert caught.value.code == code
    assert (tmp_path / "cut/checkpoints/00000013").is_dir()
    fit(tmp_path / "cut", **changes)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


class StoppedInValidation(MajorityTask):
    """A signal comes in the `number`-th validation, which would go on for a long time."""

    def __init__(self, number):
        super().__init__()
        self._left = number

    def validate(self, model, split, *, watch, progress):
        self._left -= 1
        if self._left == 0:
            signal.raise_signal(signal.SIGINT)
            time.sleep(60)
        return super().validate(model, split)


@pytest.mark.parametrize(
    ("validation", "update"), [(1, 6), (2, 12), (5, 30), pytest.param(6, 30, id="of the final model")]
)
@pytest.mark.parametrize("final", ["best", "average"])
def test_a_signal_stops_a_validation_at_once_and_leaves_no_trace(tmp_path, final, validation, update):
    changes = {"final": final, "average_last": 2, "save_every": 6, "watch": "accuracy"}
    fit(tmp_path / "whole", **changes)
    started = time.monotonic()
    with pytest.raises(Interrupted, match=f"after update {update}, which is saved"):
        fit(tmp_path / "cut", StoppedInValidation(validation), **changes)
    assert time.monotonic() - started < 30
    fit(tmp_path / "cut", **changes)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def test_an_average_that_validates_worse_is_reported_with_its_keys(tmp_path, capsys):
    class Worse(MajorityTask):
        """Every validation is better than the one before, except that of the final model."""

        calls = 0

        def validate(self, model, split, *, watch, progress):
            self.calls += 1
            return {"loss": 9.0 if self.calls == 6 else 1.0 / self.calls, "accuracy": 0.5}

    changes = settings(final="average", average_last=2)
    with show_progress() as progress:
        Trainer(Worse(), changes, tmp_path, World(), progress, save=save).fit()
    said = capsys.readouterr().err
    assert "the averaged model validates worse than that of update 30: loss 9, not 0.2" in said
    assert "train.final=last" in said
    (tmp_path / "same").mkdir()
    alone = settings(final="average", average_last=1)
    with show_progress() as progress:
        Trainer(MajorityTask(), alone, tmp_path / "same", World(), progress, save=save).fit()
    assert "validates worse" not in capsys.readouterr().err


def test_the_speed_has_the_unit_of_the_task(tmp_path, capsys):
    with show_progress() as progress:
        Trainer(MajorityTask(), settings(), tmp_path, World(), progress, save=save).fit()
    assert " examples/s  " in capsys.readouterr().err
