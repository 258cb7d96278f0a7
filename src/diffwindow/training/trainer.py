"""Trainer: update, log, validate and save, until done."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic

import torch
from torch import nn

from diffwindow.data.batching import TokenBatches
from diffwindow.evaluation.windows import outside_shares
from diffwindow.models.weights import CheckpointError, write_folder
from diffwindow.progress import SILENT, Progress
from diffwindow.tasks.task import B, Task
from diffwindow.training.checkpoints import read_checkpoint
from diffwindow.training.config import LOG, MODEL, TrainConfig
from diffwindow.training.distributed import World
from diffwindow.training.failures import (
    Interrupted,
    LostProcessError,
    StopNowError,
    StopRequest,
    TrainingError,
    stop_on_signals,
    translate_exceptions,
)
from diffwindow.training.loader import BatchLoader, UpdateBatches
from diffwindow.training.logs import RunLogs, Stopwatch, loss_record, progress_line
from diffwindow.training.records import Record, read_records
from diffwindow.training.state import (
    Best,
    Metrics,
    RunCheckpoints,
    TrainState,
    all_finite,
    check_validation,
    format_metrics,
    load_weights,
    seed_everything,
)
from diffwindow.training.updater import Updater, short_of_warmup

# a run that skips this many updates in a row has stopped learning
MAX_SKIPPED = 100
# updates between two checks for a signal in any process; on a GPU a check waits for the device
ASK_EVERY = {"cpu": 1}


class Trainer(Generic[B]):
    """Train a task's model in a run folder.

    A checkpoint holds the whole state and every batch has its own seed, so a resumed run has the same bits.
    `save` writes a model's files to a folder; `build` builds the model to start from, by default the task's.
    """

    def __init__(
        self,
        task: Task[B],
        config: TrainConfig,
        folder: Path,
        world: World,
        progress: Progress = SILENT,
        *,
        save: Callable[[nn.Module, Path], None],
        build: Callable[[], nn.Module] | None = None,
    ) -> None:
        self._task = task
        self._config = config
        self._folder = folder
        self._world = world
        self._progress = progress
        self._save_files = save
        self._checkpoints = RunCheckpoints(folder, config, world)
        check_validation(task, config)
        seed_everything(config.seed)
        self._updater = Updater(task, (build or task.build_model)().to(world.device), config, world)
        self._sampler = TokenBatches(
            task.lengths("train"),
            max_tokens=config.max_tokens,
            max_rows=config.max_rows,
            seed=config.seed,
            too_long=config.too_long,
        )
        if not len(self._sampler.kept):
            raise ValueError(f"no training example fits train.max_tokens={config.max_tokens}; raise it")
        self._state = TrainState(self._sampler.state())
        # None except in rank 0
        self._logs: RunLogs | None = None
        self._stop = StopRequest()
        self._stopwatch = Stopwatch()

    @property
    def _model(self) -> nn.Module:
        return self._updater.model

    @property
    def _done(self) -> bool:
        return self._state.done(self._config)

    def fit(self) -> Path:
        """Train to the end, from the newest checkpoint if there is one; return the final model's folder."""
        with (
            translate_exceptions(self._config.max_tokens, self._checkpoints.last.last_good),
            stop_on_signals(self._stop),
            self._world.heeding(self._stop),
        ):
            self._checkpoints.remove_leftovers()
            position = self._restore()
            if dropped := self._sampler.dropped:
                self._progress.note(
                    f"{dropped:,} training examples are longer than train.max_tokens="
                    f"{self._config.max_tokens} and are left out"
                )
            if warning := short_of_warmup(self._config):
                self._progress.note(warning)
            with self._logging(position), self._saving_if_lost():
                if self._state.must_validate(self._config):
                    self._validate()
                    self._save(again=True)
                    self._prune()
                    self._world.meet()
                if not self._done:
                    self._loop()
                self._state.check_learned(self._config)
                self._finish()
        return self._folder / MODEL

    def _restore(self) -> int:
        """Resume from the newest good checkpoint, if any; return the size that the log had."""
        resumed = self._checkpoints.restore(self._updater, self._progress.note)
        if resumed is None:
            return 0
        self._state, position = resumed
        self._sampler.load_state(self._state.batches)
        return position

    @contextmanager
    def _logging(self, position: int) -> Iterator[None]:
        """Open the logs in rank 0, the log truncated to `position`; close them at the end."""
        with self._world.together():
            if self._world.main:
                self._logs = RunLogs(self._folder, position, self._state.update, self._config.wandb)
        try:
            yield
        finally:
            if self._logs:
                self._logs.close()

    def _loop(self) -> None:
        self._stopwatch = Stopwatch()
        with BatchLoader(self._task, self._sampler, self._world, self._config.accumulate) as loader:
            while not self._done:
                self._update(next(loader))
                self._stop_if_asked()

    @contextmanager
    def _saving_if_lost(self) -> Iterator[None]:
        """Save if another process is lost inside the context; a signal that came is then why the run ends."""
        try:
            yield
        except LostProcessError as error:
            # NCCL may have changed the weights before it reported the failure
            if not self._world.device.startswith("cuda"):
                # the state is still that of the last whole update
                self._save()
                if self._stop.signal:
                    raise self._interruption(self._stop.signal) from error
            raise LostProcessError(f"{error}; {self._checkpoints.last.last_good()}") from error

    def _update(self, work: UpdateBatches[B]) -> None:
        """Make one update; log, validate and save when it is time."""
        config, state = self._config, self._state
        update = state.update + 1
        logging = update % config.log_every == 0
        self._model.train()
        self._world.now(f"making update {update}")
        state.advance(self._updater(update, work, measure=logging), work)
        self._stopwatch.count()
        if state.skipped_in_a_row >= MAX_SKIPPED:
            raise TrainingError(
                f"the last {state.skipped_in_a_row} updates were all bad and skipped; "
                "start a new run with a lower train.lr"
            )
        self._progress("training", update / config.max_updates)
        if logging:
            self._log()
        if state.must_validate(config):
            self._validate()
        if state.must_save(config):
            self._save()
            self._prune()
            self._world.meet()

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
        self._check_losses()
        state, results = self._state, self._state.pending
        state.pending = []
        if self._logs is None:
            return
        loss, speed = loss_record(results, state, self._config), self._stopwatch.lap(results)
        self._logs.write("train", state.update, loss)
        self._logs.write("speed", state.update, speed)
        last = self._config.max_updates
        detail = progress_line(state.update, last, loss, speed, self._task.unit)
        self._progress("training", state.update / last, detail)

    def _check_losses(self) -> None:
        """Raise if an update that was not checked yet had a bad loss."""
        for result in self._state.pending:
            problem = None if result.skipped or not result.rows else result.check(self._config.max_loss)
            if problem:
                raise TrainingError(f"{problem}; lower train.lr; {self._checkpoints.last.last_good()}")

    def _validate(self) -> None:
        """Validate, and keep the weights if they are the best.

        If a signal stops the validation, save, and let the resumed run begin with it.
        """
        state, config = self._state, self._config
        with self._stopwatch.pause():
            metrics, stopped = self._world.broadcast(self._metrics_unless_stopped())
        if stopped:
            self._save()
            raise self._interruption(stopped)
        # after all processes have the metrics: a run that resumes without them validates again
        if self._logs is not None:
            self._logs.write("valid", state.update, metrics)
            self._progress.note(f"update {state.update}: validation {format_metrics(metrics)}")
        value, bad = metrics[config.watch], not all_finite(metrics)
        state.validated = state.update
        if bad:
            if config.on_bad_loss == "stop":
                good = self._checkpoints.last.last_good()
                raise TrainingError(
                    f"the validation of update {state.update} is not finite; lower train.lr; {good}"
                )
            # an accuracy is finite even if the probabilities are NaN
            value = math.nan
        state.best = state.best.after(state.update, value, config.watch)
        if self._world.main and config.final == "best" and state.best.update == state.update:
            self._checkpoints.best.save(state.update, self._save_model, {"update": state.update})

    def _metrics_unless_stopped(self) -> tuple[Metrics, int]:
        """Validate in rank 0; return the metrics, or else the signal that stopped the validation."""
        if self._logs is None:
            return {}, 0
        try:
            with self._world.doing(f"validating update {self._state.update}"):
                return self._metrics(), 0
        except StopNowError:
            return {}, self._stop.signal

    def _metrics(self) -> Metrics:
        """Validate the model as it is; raise StopNowError as soon as a signal comes."""
        with self._stop.at_once():
            metrics = self._task.validate(
                self._model, "valid", watch=self._config.watch, progress=self._progress
            )
            return metrics | outside_shares(self._task, self._model, "valid")

    def _save_model(self, folder: Path) -> None:
        self._save_files(self._model, folder)

    def _save(self, *, again: bool = False) -> None:
        """Write a checkpoint unless this update has one; write it `again` even then."""
        if self._logs is None or (self._state.update in self._checkpoints.last.updates() and not again):
            return
        self._check_losses()
        with self._world.doing(f"writing update {self._state.update}"):
            self._checkpoints.save(self._state, self._updater, self._save_model, self._logs.position())

    def _prune(self) -> None:
        self._checkpoints.prune(self._state.best.update)

    def _finish(self) -> None:
        """Write the final model in rank 0; raise Interrupted in all processes if a signal stops it."""
        stopped = 0
        if self._logs is not None:
            try:
                with self._world.doing("writing the final model"):
                    self._write_final_model(self._logs)
            except StopNowError:
                stopped = self._stop.signal
        if stopped := self._world.broadcast(stopped):
            raise self._interruption(stopped)

    def _write_final_model(self, logs: RunLogs) -> None:
        """Write the model that `train.final` asks for; validate it first unless it is the last."""
        config, update = self._config, self._state.update
        # a run that was killed after its last checkpoint still has the old ones
        self._prune()
        origin = load_final_weights(self._model, self._state, config, self._checkpoints)
        metrics: Metrics = {}
        if config.final != "last" and config.valid_every:
            metrics = self._metrics()
            if not all_finite(metrics):
                raise TrainingError(
                    f"the validation of the final model, {origin}, is not finite; train.final=last keeps the "
                    "last one"
                )
            logs.write("final", update, metrics)
            self._progress.note(f"final model: validation {format_metrics(metrics)}")
        write_folder(self._folder / MODEL, self._save_model, {"update": update, "weights": origin})
        self._progress.note(f"done after {update} updates: {self._folder / MODEL}, {origin}")
        if metrics and config.final == "average":
            worse = worse_average(metrics[config.watch], read_records(self._folder / LOG), config)
            if worse:
                self._progress.note(worse)


def load_final_weights(
    model: nn.Module, state: TrainState, config: TrainConfig, checkpoints: RunCheckpoints
) -> str:
    """Load the weights that `train.final` asks for into the trained model; return where they are from."""
    try:
        if config.final == "average":
            updates = checkpoints.last.scheduled(config.save_every)[-config.average_last :]
            model.load_state_dict(checkpoints.last.average(updates))
            return f"the average of updates {', '.join(map(str, updates))}"
        if config.final == "best" and state.best.value is not None:
            load_weights(model, read_checkpoint(checkpoints.best.path(state.best.update)))
            return f"the best, of update {state.best.update}"
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}; train.final={config.final} needs it: restore it from a copy, or start a new run"
        ) from None
    return f"of update {state.update}"


def worse_average(value: float, records: Sequence[Record], config: TrainConfig) -> str | None:
    """Return a sentence if the averaged model validates worse than the last one in the log, else None.

    `value` is the average's metric to watch.
    """
    valid = [record for record in records if record["kind"] == "valid"]
    if not valid or valid[-1][config.watch] is None:
        return None
    last = Best(valid[-1][config.watch], valid[-1]["update"])
    if value == last.value or last.after(last.update, value, config.watch).value != last.value:
        return None
    return (
        f"the averaged model validates worse than that of update {last.update}: {config.watch} "
        f"{value:.4g}, not {last.value:.4g}; keep the last one with train.final=last, or average "
        f"fewer than train.average_last={config.average_last} checkpoints"
    )
