"""Run: a folder with its config, corpus and origin; `train` trains it, from random or trained weights."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch.distributed import is_torchelastic_launched

import diffwindow
from diffwindow.console import lossy_stderr
from diffwindow.data.corpora import recipe_of
from diffwindow.data.prepare import open_or_prepare
from diffwindow.data.recipe import Recipe
from diffwindow.data.store import Store, corpus_hashes, is_store
from diffwindow.extras import require
from diffwindow.files import LOCK, lock_folder, make_folder, read_json, write_json
from diffwindow.models.added_windows import add_windows, window_plan
from diffwindow.models.model import TOKENIZER, read_fields
from diffwindow.notation import parse_attention
from diffwindow.progress import SILENT, Progress, show_progress
from diffwindow.tasks.entries import TASKS
from diffwindow.tasks.model_folder import ModelFolder, find_model
from diffwindow.tasks.presets import DECIDED_ELSEWHERE
from diffwindow.tasks.task import StoreTask, model_config, task_of
from diffwindow.training.checkpoints import Checkpoints
from diffwindow.training.config import (
    CHECKPOINTS,
    CURVES,
    LOG,
    MODEL,
    ORIGIN,
    RUN_CONFIG,
    STORE,
    Config,
    Draft,
    check_config,
    differences,
)
from diffwindow.training.distributed import World, connected
from diffwindow.training.failures import Interrupted
from diffwindow.training.records import read_records
from diffwindow.training.trainer import Trainer
from diffwindow.training.updater import pick_precision
from diffwindow.view.figures import draw_curves

# keys that may change when a run resumes: none of them changes an update that is already made
FREE = (
    *("train.max_updates", "train.save_every", "train.keep_last", "train.patience"),
    *(
        "train.wandb",
        "train.device",
        "train.accumulate",
        "train.compile",
        "train.timeout_seconds",
        "data.path",
    ),
)
# keys that may differ from machine to machine
LOCAL = ("data.path", "start", "train.device")
PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "pydantic")


@dataclass(frozen=True)
class Run:
    """A run folder and its config."""

    folder: Path
    config: Config

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a run folder."""
        path = folder / RUN_CONFIG
        if not path.is_file():
            raise ValueError(f"{folder} is not a run folder (no {RUN_CONFIG}); `diffwindow train` makes one")
        return cls(folder, check_config(Draft(read_json(path), str(path))))

    @classmethod
    def start(cls, folder: Path, config: Config, *, resume: bool) -> Self:
        """Make a run folder, or resume one; raise if that would change or replace what is trained."""
        begun = _has_begun(folder)
        if begun and not resume:
            raise ValueError(f"{folder} holds a run; choose another folder, or resume it")
        if (begun or (folder / STORE).exists()) and (folder / RUN_CONFIG).exists():
            cls.open(folder)._check_change(config, begun=begun)
        if begun and not _has_checkpoints(folder):
            raise ValueError(
                f"{folder} has a model but no checkpoint to go on from; choose another folder, or remove "
                f"{folder / MODEL} to start again"
            )
        make_folder(folder)
        write_json(folder / RUN_CONFIG, config.model_dump(mode="json"))
        return cls(folder, config)

    def _check_change(self, config: Config, *, begun: bool) -> None:
        """Raise if a config differs from the run's own in a key that may not change."""
        for name, (before, now) in differences(self.config, config).items():
            # before its first checkpoint, a run has nothing but its corpus
            if name not in FREE and (begun or name.startswith("data.")):
                raise ValueError(
                    f"{self.folder} was started with {name}={before!r}, not {now!r}; choose another folder"
                )
            if name == "data.path" and not begun and now and not is_store(Path(now)):
                raise ValueError(
                    f"{self.folder / STORE} was prepared from {before}, not {now}; remove it, or choose "
                    "another folder"
                )
            schedule = config.train.schedule
            if begun and name == "train.max_updates" and schedule in ("linear", "cosine"):
                raise ValueError(
                    f"{self.folder}: the {schedule} schedule ends at train.max_updates={before}; "
                    "it cannot be extended"
                )

    def open_store(self, data: Path | None = None) -> Store:
        """Open the corpus that the run was trained on, or another store; raise if the former was replaced."""
        path = data or self._store_path()
        if not path.is_dir():
            raise ValueError(f"the corpus of {self.folder} is not at {path}; give its folder")
        store = Store.open(path)
        if store.task != self.config.task.kind:
            raise ValueError(f"{path} is for {store.task}, but {self.folder} is for {self.config.task.kind}")
        if data is None and _has_begun(self.folder):
            self.check_origin(store)
        return store

    def prepare_store(self, *, progress: Progress = SILENT) -> None:
        """Prepare the run's store from raw files or the generator, unless it exists."""
        path, start = self._store_path(), self.config.start
        open_or_prepare(
            path,
            self._recipe,
            # a fine-tuned model keeps its vocabulary
            tokenizer=find_model(Path(start)) / TOKENIZER if start and not path.exists() else None,
            progress=progress,
        )

    def _recipe(self) -> Recipe:
        data = self.config.data
        if not data.corpus:
            raise ValueError(
                f"data.path={data.path} is not a prepared store; prepare one, or set data.corpus"
            )
        raw = Path(data.path) if data.path else None
        return recipe_of(data.corpus, raw, rows=data.rows, seed=data.seed)

    def task(self, store: Store) -> StoreTask[Any]:
        """Return the run's task on a store."""
        return task_of(store, model_config(store, self.config.model_options), self.config.task.options)

    def record_origin(self, store: Store) -> None:
        """Record versions and corpus, unless a run that is resumed did."""
        path = self.folder / ORIGIN
        if not (path.exists() and _has_begun(self.folder)):
            write_json(path, {"corpus": _identity(store), "command": sys.argv, **versions()})

    def check_origin(self, store: Store) -> None:
        """Raise if a corpus is not the one that the run recorded."""
        path = self.folder / ORIGIN
        if not path.exists():
            return
        corpus, recorded = _identity(store), read_json(path).get("corpus", {})
        if not isinstance(recorded, dict):
            raise ValueError(f"{path} is damaged: its corpus is {recorded!r}; delete it to go on without")
        for name, what in (("tokenizer", "vocabulary"), ("splits", "text"), ("labels", "list of labels")):
            if recorded.get(name) != corpus[name]:
                raise ValueError(
                    f"{store.folder} has another {what} than the corpus that {self.folder} was trained "
                    "on; put that back, or name another corpus or another run folder"
                )

    def average(self, last: int, target: Path) -> list[int]:
        """Write the average of the last checkpoints to a model folder; return their updates.

        Each checkpoint is verified first. The average replaces a model that is at `target` already.
        """
        checkpoints = Checkpoints(self.folder / CHECKPOINTS)
        updates = checkpoints.scheduled(self.config.train.save_every)
        if len(updates) < last:
            raise ValueError(
                f"{self.folder} has {len(updates)} checkpoints, not {last}; average fewer, or train with a "
                "greater train.keep_last"
            )
        averaged = updates[-last:]
        ModelFolder.average([checkpoints.path(update) for update in averaged], target, updates=averaged)
        return averaged

    def _store_path(self) -> Path:
        given = self.config.data.path
        if given and is_store(Path(given)):
            return Path(given)
        return self.folder / STORE


def _identity(store: Store) -> dict[str, Any]:
    """Return what tells a corpus from another: hashes of its tokenizer and splits, its labels."""
    return {**corpus_hashes(store.manifest), "labels": list(store.labels)}


def _has_begun(folder: Path) -> bool:
    """Return whether a folder holds anything that was trained."""
    return _has_checkpoints(folder) or (folder / MODEL).exists()


def _has_checkpoints(folder: Path) -> bool:
    return bool(Checkpoints(folder / CHECKPOINTS).updates())


def versions() -> dict[str, Any]:
    """Return the versions of the packages, the platform, and the commit if the source is a git checkout."""
    packages: dict[str, str | None] = {
        "diffwindow": diffwindow.__version__,
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            packages[package] = None
    return {"versions": packages, "platform": platform.platform(), "commit": _commit()}


def _commit() -> str | None:
    source = Path(diffwindow.__file__).parent
    command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def train(
    config: Config, folder: str | os.PathLike[str], *, resume: bool = True, progress: Progress | None = None
) -> Path:
    """Train in a run folder, from its newest checkpoint if it has one; return the final model's folder.

    Progress is shown on stderr unless `progress` is given; only rank 0 shows it.
    """
    folder = Path(folder)
    with (
        lossy_stderr(),
        connected(config.train.device, config.train.timeout_seconds) as world,
        ExitStack() as stack,
    ):
        progress = progress or stack.enter_context(show_progress()) if world.main else SILENT
        first = world.broadcast(config)
        with world.together():
            check_same(first, config)
        with world.together():
            # mistakes are told before a long preparation, not after it
            if config.train.wandb is not None:
                require("wandb")
            pick_precision(config.train.precision, world.device)
            # rank 0 prepares and verifies what the others open
            if world.main:
                # after a restart, a process of the start before may still have to notice the loss
                wait = config.train.timeout_seconds if is_torchelastic_launched() else 0.0
                stack.enter_context(_lock_folder(folder, wait))
                run = Run.start(folder, config, resume=resume)
                run.prepare_store(progress=progress)
                prepared = run.open_store()
                run.record_origin(prepared)
                for split in {"train", "valid"} & prepared.splits.keys():
                    prepared.split(split)
        world.check_shared(folder)
        with world.together():
            run = Run(folder, config)
            store = run.open_store()
            # that of rank 0, which recorded it
            run.check_origin(store)
            _make_deterministic(config, world)
            task = run.task(store)
            # a checkpoint would replace the weights of the start
            start = None if config.start is None or _has_checkpoints(folder) else Path(config.start)
            build = task.build_model if start is None else partial(starting_model, task, start)
        try:
            trainer = Trainer(
                task, config.train, folder, world, progress,
                save=lambda model, path: ModelFolder.of(task, model, path).write(), build=build,
            )  # fmt: skip
            model = trainer.fit()
        except Interrupted:
            _draw_curves(folder, world, progress)
            raise
        _draw_curves(folder, world, progress)
        return model


def check_same(first: Config, config: Config) -> None:
    """Raise if this process trains otherwise than the first one; corpora are compared by their hashes."""
    for name, (expected, value) in differences(first, config).items():
        if name not in LOCAL:
            raise ValueError(
                f"{name}={value!r}, but the first process has {expected!r}; start all processes with the "
                "same command"
            )


@contextmanager
def _lock_folder(folder: Path, wait: float) -> Iterator[None]:
    """Make the run folder, and keep other runs out of it; leave no trace of a run that is refused."""
    before = {path.name for path in folder.iterdir()} if folder.is_dir() else None
    make_folder(folder)
    with lock_folder(folder, wait=wait):
        try:
            yield
        except (ValueError, OSError):
            written = {path.name for path in folder.iterdir()} - (before or set())
            # a corpus or a log is worth keeping, and then so is the config
            if written <= {RUN_CONFIG, ORIGIN, LOCK}:
                for name in written:
                    (folder / name).unlink()
                if before is None:
                    folder.rmdir()
            raise


def _draw_curves(folder: Path, world: World, progress: Progress) -> None:
    """Draw the learning curves, if that can be done: the run has ended well without them."""
    if not world.main:
        return
    try:
        draw_curves(read_records(folder / LOG), folder / CURVES)
    except (OSError, ValueError) as error:
        progress.note(f"there is no picture of the learning curves: {error}")


def _make_deterministic(config: Config, world: World) -> None:
    """Use deterministic kernels on a GPU; those of the CPU are deterministic anyway."""
    if config.train.deterministic and world.device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)


# fields of a model's config that may differ from those of the model to start from
FREE_FIELDS = {"dropout", "attention_dropout", "activation_dropout", "init", "window_tolerance"}
# the weights of a classifier with a row per class
HEAD = ("output.weight", "output.bias")


def follow_start(draft: Draft) -> None:
    """Take the model's fields from the trained model that `start` names, unless they are set.

    Windows that the attention adds to a plain model start without effect: a multiplicative one gets a gate.
    """
    fields: dict[str, Any] = read_fields(find_model(Path(draft.values["start"])))
    entry = TASKS.get(str(draft.values.get("task", {}).get("kind")))
    if entry is not None and fields.get("model", entry.kind) != entry.kind:
        raise ValueError(f"start={draft.values['start']} holds a {fields['model']}, not a {entry.kind}")
    model = draft.values.setdefault("model", {})
    for name, value in fields.items():
        if name not in DECIDED_ELSEWHERE and ("model", name) not in draft.places:
            model[name] = value
    trained = fields.get("attention", "Global")
    if ("attention",) not in draft.places:
        draft.values["attention"] = trained
    elif parse_attention(trained) != (plan := parse_attention(str(draft.values["attention"]))):
        if parse_attention(trained).terms:
            raise ValueError(
                f"{draft.place(('attention',))}: the model to start from has attention={trained!r}; "
                "windows can only be added to a plain model"
            )
        gated = window_plan(plan, layers=None, boundary_dim=None, init="identity")
        draft.values["attention"] = str(gated)


def starting_model(task: StoreTask[Any], start: Path) -> nn.Module:
    """Return the task's model with the weights of a trained one; added windows do not change its outputs."""
    trained = ModelFolder.read(start)
    trained.check_tokens(task.store)
    source, config, classes = trained.model, task.config, trained.classes_of(task.store)
    free = FREE_FIELDS | {"attention"} | ({"num_classes"} if classes else set())
    for name in type(config).model_fields:
        before, now = getattr(source.config, name, None), getattr(config, name)
        if before != now and name not in free:
            raise ValueError(f"model.{name}={now!r}, but the model of {start} has {before!r}; leave it out")
    model = task.build_model()
    if source.config.attention != config.attention:
        add_windows(source, config.attention)
    weights = source.state_dict()
    if classes:
        # the rows of the labels that the corpus has, in its order
        weights |= {name: weights[name][list(classes)] for name in HEAD}
    model.load_state_dict(weights)
    return model
