"""Trainer: update, log, validate, save, until done; the same from any checkpoint as without one."""

from __future__ import annotations

import math
import signal
import time
from pathlib import Path
from typing import Generic

import torch
from torch import nn

from diffwindow.data.batching import TokenBatches
from diffwindow.figures.learning_curves import CURVES, draw_curves
from diffwindow.files import remove_temporaries
from diffwindow.tasks.task import B, Task
from diffwindow.training.batch_loader import Feed, Step
from diffwindow.training.checkpoints import Shelf, read_checkpoint, write_checkpoint
from diffwindow.training.config import TrainConfig
from diffwindow.training.distributed import World
from diffwindow.training.failures import (
    Interrupted,
    Stop,
    TrainingError,
    catching_signals,
    explained,
    is_lost_peer,
)
from diffwindow.training.logs import LOG, Journal, read_records
from diffwindow.training.optimizer import learning_rate
from diffwindow.training.progress import Screen
from diffwindow.training.rng import seed_everything
from diffwindow.training.state import TrainState, load_weights, restored
from diffwindow.training.updater import Updater

MODEL = "model"
# a run that leaves out this many updates in a row learns nothing any more
MAX_SKIPPED = 100
# on a GPU, asking all processes whether a signal came waits for the device
ASK_EVERY = {"cpu": 1}


class Trainer(Generic[B]):
    """Train a task's model in a run folder.

    A checkpoint holds the whole state and every batch has its own seed: where a run was cut leaves no trace.
    """

    def __init__(
        self, task: Task[B], config: TrainConfig, folder: Path, world: World, screen: Screen
    ) -> None:
        self._task = task
        self._config = config
        self._folder = folder
        self._world = world
        self._screen = screen
        self._shelf = Shelf(folder / "checkpoints")
        self._best_shelf = Shelf(folder / "best")
        _check_validation(task, config)
        seed_everything(config.seed)
        self._updater = Updater(task, task.build_model().to(world.device), config, world)
        self._sampler = TokenBatches(
            task.lengths("train"),
            max_tokens=config.max_tokens,
            max_rows=config.max_rows,
            seed=config.seed,
            too_long=config.too_long,
        )
        self._state = TrainState(self._sampler.state())
        # only rank 0 has one
        self._journal: Journal | None = None
        # when the last log was, and how many updates there were since
        self._clock = 0.0
        self._since = 0

    @property
    def _model(self) -> nn.Module:
        return self._updater.model

    @property
    def _done(self) -> bool:
        """Say whether all updates are made, or validations have stopped getting better."""
        patience = self._config.patience
        given_up = patience is not None and self._state.best.stale >= patience
        return self._state.update >= self._config.max_updates or given_up

    def fit(self) -> Path:
        """Train to the end, from the newest checkpoint if there is one; give the final model's folder."""
        with explained(self._config.max_tokens, self._shelf.last_good), catching_signals() as stop:
            if self._world.main:
                # what a kill left of a file being written
                for folder in (self._folder, self._shelf.folder, self._best_shelf.folder):
                    remove_temporaries(folder)
            position = self._restore()
            if dropped := self._sampler.dropped:
                self._screen.tell(
                    f"{dropped:,} training examples are longer than train.max_tokens="
                    f"{self._config.max_tokens} and are left out"
                )
            with self._world.together():
                if self._world.main:
                    self._journal = Journal(self._folder, position, self._state.update)
            try:
                if not self._done:
                    self._loop(stop)
                self._check_learned()
                if self._world.main:
                    self._finish()
                self._world.wait()
                return self._folder / MODEL
            finally:
                if self._journal:
                    self._journal.close()

    def _loop(self, stop: Stop) -> None:
        self._clock = time.perf_counter()
        try:
            with Feed(self._task, self._sampler, self._world, self._config.accumulate) as feed:
                while not self._done:
                    self._take(next(feed))
                    self._obey(stop)
        except RuntimeError as error:
            if self._world.size == 1 or not is_lost_peer(error):
                raise
            # the optimizer has not moved since the last whole update: that state is worth saving
            self._save()
            raise TrainingError(
                f"another process of the run ended ({str(error).splitlines()[0]}); {self._shelf.last_good()}"
            ) from error

    def _take(self, step: Step[B]) -> None:
        """Make one update, and log, validate and save where it is time to."""
        config, state = self._config, self._state
        update = state.update + 1
        logging = update % config.log_every == 0
        self._model.train()
        outcome = self._updater(update, step, measure=logging)
        state.update, state.batches = update, step.state
        state.skipped += outcome.skipped
        state.skipped_in_a_row = state.skipped_in_a_row + 1 if outcome.skipped else 0
        state.pending.append(outcome)
        self._since += 1
        if state.skipped_in_a_row >= MAX_SKIPPED:
            raise TrainingError(
                f"the last {state.skipped_in_a_row} updates were all bad and left out; "
                "begin a new run with a lower train.lr"
            )
        self._screen.advance(update)
        if logging:
            self._log()
        if config.valid_every and update % config.valid_every == 0:
            self._validate()
        if update % config.save_every == 0 or self._done:
            self._save()
            self._prune()

    def _obey(self, stop: Stop) -> None:
        """Save and stop if a signal asked any of the processes to."""
        number = stop.signal
        if self._world.size > 1:
            if self._state.update % ASK_EVERY.get(self._world.device, 10):
                return
            asked = self._world.total(torch.tensor(float(number), device=self._world.device))
            # a process that was not told yet stops with those that were
            number = number or (int(signal.SIGTERM) if asked else 0)
        if not number or self._done:
            return
        self._save()
        self._draw()
        raise Interrupted(
            f"stopped by {signal.Signals(number).name} after update {self._state.update}, which is saved; "
            f"go on with `diffwindow train {self._folder}`",
            128 + number,
        )

    def _log(self) -> None:
        """Write down the mean loss since the last log: where the loop waits for the device."""
        state, update = self._state, self._state.update
        self._check()
        sums = torch.stack([outcome.sums for outcome in state.pending])
        total, units = sums.sum(0).tolist()
        units_since = float(sums[-self._since :, 1].sum())
        norm = state.pending[-1].norm
        state.pending = []
        if self._journal is None:
            return
        loss = total / units if units else None
        rate = learning_rate(update, self._config)
        record = {"epoch": state.batches["epoch"], "loss": loss, "units": int(units), "lr": rate}
        record |= {"grad_norm": None if norm is None else float(norm), "skipped": state.skipped}
        self._journal.train(update, record)
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        speed = {"updates_per_s": self._since / seconds, "units_per_s": units_since / seconds}
        self._since = 0
        self._journal.timing(update, {"seconds": seconds, **speed})
        left = (self._config.max_updates - update) / speed["updates_per_s"]
        shown = f"loss {loss:.3f}" if loss is not None else "every update skipped"
        pace = f"{speed['units_per_s']:,.0f} units/s  {speed['updates_per_s']:.1f} updates/s"
        self._screen.show(update, f"{shown}  lr {rate:.2e}  {pace}  {_clock(left)} left")

    def _check(self) -> None:
        """Stop on a bad loss of the updates that nobody looked at yet."""
        for outcome in self._state.pending:
            problem = None if outcome.skipped or not outcome.rows else outcome.check(self._config.max_loss)
            if problem:
                raise TrainingError(f"{problem}; lower train.lr; {self._shelf.last_good()}")

    def _validate(self) -> None:
        """Let rank 0 measure the model, tell all the watched metric, and keep the best weights."""
        update, value, bad = self._state.update, 0.0, 0.0
        if self._journal is not None:
            started = time.perf_counter()
            metrics = self._task.validate(self._model, "valid")
            value = metrics[self._config.watch]
            bad = float(not all(map(math.isfinite, metrics.values())))
            self._journal.valid(update, metrics)
            self._screen.tell(f"update {update}: validation {_shown(metrics)}")
            self._clock += time.perf_counter() - started
        value, bad = self._world.shared([value, bad])
        if bad:
            if self._config.on_bad_loss == "stop":
                good = self._shelf.last_good()
                raise TrainingError(
                    f"the validation of update {update} is not finite; lower train.lr; {good}"
                )
            # an accuracy is finite even where no probability is
            value = math.nan
        best = self._state.best = self._state.best.after(update, value, self._config.watch)
        if self._world.main and self._config.final == "best" and best.update == update:
            self._best_shelf.save(update, self._save_model, {}, {"update": update})

    def _save_model(self, folder: Path) -> None:
        self._task.save(self._model, folder)

    def _save(self) -> None:
        """Write a checkpoint of everything, unless this update has one."""
        if self._journal is None or self._state.update in self._shelf.updates():
            return
        self._check()
        if not all(bool(weight.isfinite().all()) for weight in self._model.parameters()):
            raise TrainingError(
                f"the weights of update {self._state.update} are not finite; begin a new run with a lower "
                "train.lr, or with train.clip_norm"
            )
        plain = self._state.plain(self._updater)
        plain |= {"log": self._journal.position(), "batches_an_update": self._batches_an_update}
        tensors = self._state.tensors(self._updater)
        self._shelf.save(self._state.update, self._save_model, tensors, plain)

    @property
    def _batches_an_update(self) -> int:
        return self._config.accumulate * self._world.size

    def _prune(self) -> None:
        if self._world.main:
            self._shelf.prune(self._shelf.scheduled(self._config.save_every)[-self._config.keep_last :])
            self._best_shelf.prune([self._state.best.update])

    def _restore(self) -> int:
        """Take up the newest good checkpoint; rank 0 finds it, all read it. Give where the log was."""
        found = None
        with self._world.together():
            if self._world.main:
                found = self._shelf.newest(self._screen.tell)
        (update,) = self._world.shared([-1.0 if found is None else float(found.state["update"])])
        if update < 0:
            return 0
        checkpoint = found or read_checkpoint(self._shelf.path(int(update)))
        saved = checkpoint.state["batches_an_update"]
        if saved != self._batches_an_update:
            raise ValueError(
                f"{self._folder} makes updates of {saved} batches, but {self._world.size} processes with "
                f"train.accumulate={self._config.accumulate} make others; change train.accumulate"
            )
        self._state = restored(checkpoint, self._updater, self._world.device)
        self._sampler.load_state(self._state.batches)
        self._screen.tell(f"going on from update {self._state.update} ({checkpoint.folder})")
        return int(checkpoint.state["log"])

    def _finish(self) -> None:
        """Write the final model: the last, the best or the average of the last checkpoints."""
        config, best = self._config, self._state.best
        # a run that was cut after its last checkpoint has not put away the old ones
        self._prune()
        origin = f"of update {self._state.update}"
        if config.final == "average":
            updates = self._shelf.scheduled(config.save_every)[-config.average_last :]
            self._model.load_state_dict(self._shelf.average(updates))
            origin = f"the average of updates {', '.join(map(str, updates))}"
        elif config.final == "best" and best.value is not None:
            load_weights(self._model, read_checkpoint(self._best_shelf.path(best.update)))
            origin = f"the best, of update {best.update}"
        if config.final != "last" and config.valid_every and self._journal:
            metrics = self._task.validate(self._model, "valid")
            if not all(map(math.isfinite, metrics.values())):
                raise TrainingError(f"the validation of the final model, {origin}, is not finite")
            self._journal.final(self._state.update, metrics)
            self._screen.tell(f"final model: validation {_shown(metrics)}")
        about = {"update": self._state.update, "weights": origin}
        write_checkpoint(self._folder / MODEL, self._save_model, {}, about)
        self._draw()
        self._screen.tell(f"done after {self._state.update} updates: {self._folder / MODEL}, {origin}")

    def _check_learned(self) -> None:
        """Raise if nothing was learned: every update was left out, or no validation was finite."""
        state = self._state
        remedy = "begin a new run with a lower train.lr"
        if state.skipped >= state.update:
            raise TrainingError(f"all {state.update} updates were bad and left out; {remedy}")
        validated = self._config.valid_every and state.update >= self._config.valid_every
        if validated and state.best.value is None:
            raise TrainingError(f"no validation in {state.update} updates was finite; {remedy}")

    def _draw(self) -> None:
        if self._journal is not None:
            draw_curves(read_records(self._folder / LOG), self._folder / CURVES)


def _check_validation(task: Task[B], config: TrainConfig) -> None:
    """Raise what the first validation would, before hours of training."""
    if not config.valid_every or (config.valid_every > config.max_updates and config.final == "last"):
        return
    try:
        task.lengths("valid")
    except ValueError as error:
        remedy = "train.valid_every=null train.final=last train.patience=null"
        raise ValueError(f"{error}; train without validations with {remedy}") from None
    if config.watch not in task.metrics:
        raise ValueError(
            f"train.watch={config.watch}: a validation of this task gives {', '.join(task.metrics)}"
        )


def _shown(metrics: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def _clock(seconds: float) -> str:
    return f"{int(seconds // 3600)}:{int(seconds // 60 % 60):02d}:{int(seconds % 60):02d}"
