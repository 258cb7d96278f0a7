"""Trainer: update, log, validate and save, until done."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic

import torch
from torch import nn

from diffwindow.data.batching import TokenBatches
from diffwindow.files import check_inside, remove_temporaries
from diffwindow.progress import SILENT, Progress
from diffwindow.tasks.task import B, Task
from diffwindow.training.batch_loader import BatchLoader, UpdateBatches
from diffwindow.training.checkpoints import Checkpoints, read_checkpoint, write_checkpoint
from diffwindow.training.config import TrainConfig
from diffwindow.training.distributed import World
from diffwindow.training.failures import (
    Interrupted,
    StopNowError,
    StopRequest,
    TrainingError,
    explained,
    is_lost_peer,
    stop_on_signals,
)
from diffwindow.training.logs import RunLogs, read_records
from diffwindow.training.optimizer import learning_rate
from diffwindow.training.run_folder import BEST, CHECKPOINTS, LOG, MODEL
from diffwindow.training.train_state import (
    Best,
    TrainState,
    check_state,
    load_weights,
    restore_state,
    seed_everything,
)
from diffwindow.training.updater import Updater
from diffwindow.training.window_shares import outside_shares

# a run that skips this many updates in a row has stopped learning
MAX_SKIPPED = 100
# updates between two checks for a signal in any process; on a GPU a check waits for the device
ASK_EVERY = {"cpu": 1}


class Trainer(Generic[B]):
    """Train a task's model in a run folder.

    A checkpoint holds the whole state and every batch has its own seed, so a resumed run has the same bits.
    `build` builds the model to start from, by default the task's.
    """

    def __init__(
        self,
        task: Task[B],
        config: TrainConfig,
        folder: Path,
        world: World,
        progress: Progress = SILENT,
        *,
        build: Callable[[], nn.Module] | None = None,
    ) -> None:
        self._task = task
        self._config = config
        self._folder = folder
        self._world = world
        self._progress = progress
        self._checkpoints = Checkpoints(folder / CHECKPOINTS)
        self._best_checkpoints = Checkpoints(folder / BEST)
        _check_validation(task, config)
        seed_everything(config.seed)
        self._updater = Updater(task, (build or task.build_model)().to(world.device), config, world)
        self._sampler = TokenBatches(
            task.lengths("train"),
            max_tokens=config.max_tokens,
            max_rows=config.max_rows,
            seed=config.seed,
            too_long=config.too_long,
        )
        self._state = TrainState(self._sampler.state())
        # None except in rank 0
        self._logs: RunLogs | None = None
        self._stop = StopRequest()
        # the time of the last log, and the updates since
        self._clock = 0.0
        self._since = 0

    @property
    def _model(self) -> nn.Module:
        return self._updater.model

    @property
    def _done(self) -> bool:
        """Return whether all updates are made, or validations have stopped improving."""
        patience = self._config.patience
        given_up = patience is not None and self._state.best.stale >= patience
        return self._state.update >= self._config.max_updates or given_up

    def fit(self) -> Path:
        """Train to the end, from the newest checkpoint if there is one; return the final model's folder."""
        with explained(self._config.max_tokens, self._checkpoints.last_good), stop_on_signals(self._stop):
            if self._world.main:
                for written in (self._checkpoints.folder, self._best_checkpoints.folder):
                    check_inside(written)
                # files that a killed process was writing
                for folder in (self._folder, self._checkpoints.folder, self._best_checkpoints.folder):
                    remove_temporaries(folder)
            position = self._restore()
            if dropped := self._sampler.dropped:
                self._progress.note(
                    f"{dropped:,} training examples are longer than train.max_tokens="
                    f"{self._config.max_tokens} and are left out"
                )
            with self._world.together():
                if self._world.main:
                    self._logs = RunLogs(self._folder, position, self._state.update)
            try:
                if self._state.must_validate:
                    self._validate()
                    self._save(again=True)
                    self._prune()
                if not self._done:
                    self._loop()
                self._check_learned()
                stopped = 0.0
                if self._world.main:
                    try:
                        self._finish()
                    except StopNowError:
                        stopped = float(self._stop.signal)
                (stopped,) = self._world.broadcast_numbers([stopped])
                if stopped:
                    raise self._interruption(int(stopped))
                return self._folder / MODEL
            finally:
                if self._logs:
                    self._logs.close()

    def _loop(self) -> None:
        self._clock = time.perf_counter()
        try:
            with BatchLoader(self._task, self._sampler, self._world, self._config.accumulate) as loader:
                while not self._done:
                    self._update(next(loader))
                    self._stop_if_asked()
        except RuntimeError as error:
            if self._world.size == 1 or not is_lost_peer(error):
                raise
            # the state is still that of the last whole update
            self._save()
            reason, good = str(error).splitlines()[0], self._checkpoints.last_good()
            raise TrainingError(f"another process of the run ended ({reason}); {good}") from error

    def _update(self, work: UpdateBatches[B]) -> None:
        """Make one update; log, validate and save when it is time."""
        config, state = self._config, self._state
        update = state.update + 1
        logging = update % config.log_every == 0
        self._model.train()
        result = self._updater(update, work, measure=logging)
        state.update, state.batches = update, work.state
        state.skipped += result.skipped
        state.skipped_in_a_row = state.skipped_in_a_row + 1 if result.skipped else 0
        state.pending.append(result)
        self._since += 1
        if state.skipped_in_a_row >= MAX_SKIPPED:
            raise TrainingError(
                f"the last {state.skipped_in_a_row} updates were all bad and skipped; "
                "start a new run with a lower train.lr"
            )
        self._progress("training", update / config.max_updates)
        if logging:
            self._log()
        if config.valid_every and update % config.valid_every == 0:
            self._validate()
        if update % config.save_every == 0 or self._done:
            self._save()
            self._prune()

    def _stop_if_asked(self) -> None:
        """Save and raise Interrupted if a signal asked any process to stop."""
        number = self._stop.signal
        if self._world.size > 1:
            if self._state.update % ASK_EVERY.get(self._world.device, 10):
                return
            asked = self._world.total(torch.tensor(float(number), device=self._world.device))
            # a process without a signal stops with those that had one
            number = number or (int(signal.SIGTERM) if asked else 0)
        if not number or self._done:
            return
        self._save()
        raise self._interruption(number)

    def _interruption(self, number: int) -> Interrupted:
        return Interrupted(
            f"stopped by {signal.Signals(number).name} after update {self._state.update}, which is saved; "
            f"`diffwindow train {self._folder}` resumes it",
            128 + number,
        )

    def _log(self) -> None:
        """Log the mean loss since the last log; this waits for the device."""
        state, update = self._state, self._state.update
        self._check_losses()
        sums = torch.stack([result.sums for result in state.pending])
        total, units = sums.sum(0).tolist()
        units_since = float(sums[-self._since :, 1].sum())
        norm = state.pending[-1].norm
        state.pending = []
        if self._logs is None:
            return
        loss = total / units if units else None
        rate = learning_rate(update, self._config)
        record = {"epoch": state.batches["epoch"], "loss": loss, "units": int(units), "lr": rate}
        record |= {"grad_norm": None if norm is None else float(norm), "skipped": state.skipped}
        self._logs.train(update, record)
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        speed = {"updates_per_s": self._since / seconds, "units_per_s": units_since / seconds}
        self._since = 0
        self._logs.timing(update, {"seconds": seconds, **speed})
        left = (self._config.max_updates - update) / speed["updates_per_s"]
        shown = f"loss {loss:.3f}" if loss is not None else "every update skipped"
        pace = f"{speed['units_per_s']:,.0f} {self._task.unit}/s  {speed['updates_per_s']:.1f} updates/s"
        detail = f"{update}/{self._config.max_updates}  {shown}  lr {rate:.2e}  {pace}  {_clock(left)} left"
        self._progress("training", update / self._config.max_updates, detail)

    def _check_losses(self) -> None:
        """Raise if an update that was not checked yet had a bad loss."""
        for result in self._state.pending:
            problem = None if result.skipped or not result.rows else result.check(self._config.max_loss)
            if problem:
                raise TrainingError(f"{problem}; lower train.lr; {self._checkpoints.last_good()}")

    def _validate(self) -> None:
        """Validate in rank 0, tell all processes the watched metric, and keep the best weights.

        If a signal stops the validation, save, and let the resumed run begin with it.
        """
        update, value, bad, stopped = self._state.update, 0.0, 0.0, 0.0
        if self._logs is not None:
            started = time.perf_counter()
            try:
                metrics = self._metrics()
            except StopNowError:
                stopped = float(self._stop.signal)
            else:
                value = metrics[self._config.watch]
                bad = float(not all(map(math.isfinite, metrics.values())))
                self._logs.valid(update, metrics)
                self._progress.note(f"update {update}: validation {_shown(metrics)}")
            self._clock += time.perf_counter() - started
        value, bad, stopped = self._world.broadcast_numbers([value, bad, stopped])
        self._state.must_validate = bool(stopped)
        if stopped:
            self._save()
            raise self._interruption(int(stopped))
        if bad:
            if self._config.on_bad_loss == "stop":
                good = self._checkpoints.last_good()
                raise TrainingError(
                    f"the validation of update {update} is not finite; lower train.lr; {good}"
                )
            # an accuracy is finite even if the probabilities are NaN
            value = math.nan
        best = self._state.best = self._state.best.after(update, value, self._config.watch)
        if self._world.main and self._config.final == "best" and best.update == update:
            self._best_checkpoints.save(update, self._save_model, {}, {"update": update})

    def _metrics(self) -> dict[str, float]:
        """Validate the model as it is; raise StopNowError as soon as a signal comes."""
        with self._stop.at_once():
            metrics = self._task.validate(
                self._model, "valid", watch=self._config.watch, progress=self._progress
            )
            return metrics | outside_shares(self._task, self._model, "valid")

    def _save_model(self, folder: Path) -> None:
        self._task.save(self._model, folder)

    def _save(self, *, again: bool = False) -> None:
        """Write a checkpoint unless this update has one; write it `again` even then."""
        if self._logs is None or (self._state.update in self._checkpoints.updates() and not again):
            return
        self._check_losses()
        if not all(bool(weight.isfinite().all()) for weight in self._model.parameters()):
            raise TrainingError(
                f"the weights of update {self._state.update} are not finite; start a new run with a lower "
                "train.lr, or with train.clip_norm"
            )
        plain = self._state.plain(self._updater)
        plain |= {"log": self._logs.position(), "batches_an_update": self._batches_per_update}
        tensors = self._state.tensors(self._updater)
        self._checkpoints.save(self._state.update, self._save_model, tensors, plain)

    @property
    def _batches_per_update(self) -> int:
        return self._config.accumulate * self._world.size

    def _prune(self) -> None:
        if self._world.main:
            self._checkpoints.prune(
                self._checkpoints.scheduled(self._config.save_every)[-self._config.keep_last :]
            )
            self._best_checkpoints.prune([self._state.best.update])

    def _restore(self) -> int:
        """Load the newest good checkpoint, which rank 0 finds; return the size that the log had."""
        newest = None
        with self._world.together():
            if self._world.main:
                newest = self._checkpoints.newest(self._progress.note)
                if newest is not None:
                    check_state(newest)
        (update,) = self._world.broadcast_numbers([-1.0 if newest is None else float(newest.state["update"])])
        if update < 0:
            return 0
        checkpoint = newest or read_checkpoint(self._checkpoints.path(int(update)))
        saved = checkpoint.state["batches_an_update"]
        if saved != self._batches_per_update:
            raise ValueError(
                f"{self._folder} has updates of {saved} batches, but {self._world.size} processes with "
                f"train.accumulate={self._config.accumulate} make {self._batches_per_update}; "
                "change train.accumulate"
            )
        self._state = restore_state(checkpoint, self._updater, self._world.device)
        self._sampler.load_state(self._state.batches)
        self._progress.note(f"resuming from update {self._state.update} ({checkpoint.folder})")
        return int(checkpoint.state["log"])

    def _finish(self) -> None:
        """Write the final model: the last, the best, or the average of the last checkpoints."""
        config, best = self._config, self._state.best
        # a run that was killed after its last checkpoint still has the old ones
        self._prune()
        origin = f"of update {self._state.update}"
        if config.final == "average":
            updates = self._checkpoints.scheduled(config.save_every)[-config.average_last :]
            self._model.load_state_dict(self._checkpoints.average(updates))
            origin = f"the average of updates {', '.join(map(str, updates))}"
        elif config.final == "best" and best.value is not None:
            load_weights(self._model, read_checkpoint(self._best_checkpoints.path(best.update)))
            origin = f"the best, of update {best.update}"
        if config.final != "last" and config.valid_every and self._logs:
            metrics = self._metrics()
            if not all(map(math.isfinite, metrics.values())):
                raise TrainingError(f"the validation of the final model, {origin}, is not finite")
            self._logs.final(self._state.update, metrics)
            self._progress.note(f"final model: validation {_shown(metrics)}")
            self._compare_average(metrics[config.watch])
        about = {"update": self._state.update, "weights": origin}
        write_checkpoint(self._folder / MODEL, self._save_model, {}, about)
        self._progress.note(f"done after {self._state.update} updates: {self._folder / MODEL}, {origin}")

    def _compare_average(self, value: float) -> None:
        """Print a note if the averaged model validates worse than the last one did."""
        config = self._config
        valid = [record for record in read_records(self._folder / LOG) if record["kind"] == "valid"]
        if config.final != "average" or not valid or valid[-1][config.watch] is None:
            return
        last = Best(valid[-1][config.watch], valid[-1]["update"])
        if value != last.value and last.after(self._state.update, value, config.watch).value == last.value:
            self._progress.note(
                f"the averaged model validates worse than that of update {last.update}: {config.watch} "
                f"{value:.4g}, not {last.value:.4g}; keep the last one with train.final=last, or average "
                f"fewer than train.average_last={config.average_last} checkpoints"
            )

    def _check_learned(self) -> None:
        """Raise if nothing was learned: every update was skipped, or no validation was finite."""
        state = self._state
        remedy = "start a new run with a lower train.lr"
        if state.skipped >= state.update:
            raise TrainingError(f"all {state.update} updates were bad and skipped; {remedy}")
        validated = self._config.valid_every and state.update >= self._config.valid_every
        if validated and state.best.value is None:
            raise TrainingError(f"no validation in {state.update} updates was finite; {remedy}")


def _check_validation(task: Task[B], config: TrainConfig) -> None:
    """Raise before training if the first validation would fail."""
    if config.watch not in task.metrics:
        raise ValueError(
            f"train.watch={config.watch}: the validation of this task has {', '.join(task.metrics)}"
        )
    if not config.valid_every or (config.valid_every > config.max_updates and config.final == "last"):
        return
    try:
        task.lengths("valid")
    except ValueError as error:
        remedy = "train.valid_every=null train.final=last train.patience=null"
        raise ValueError(f"{error}; train without validations with {remedy}") from None


def _shown(metrics: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def _clock(seconds: float) -> str:
    return f"{int(seconds // 3600)}:{int(seconds // 60 % 60):02d}:{int(seconds % 60):02d}"
