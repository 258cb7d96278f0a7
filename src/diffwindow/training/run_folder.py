"""The run folder: the names of its files, and its config, corpus and origin."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import diffwindow
from diffwindow.data.corpora import recipe_of
from diffwindow.data.integrity import corpus_hashes
from diffwindow.data.prepare import open_or_prepare
from diffwindow.data.recipe import Recipe
from diffwindow.data.store import Store, is_store
from diffwindow.files import check_folder_place, make_folder, read_json, write_atomically, write_json
from diffwindow.models.pretrained import TOKENIZER, average_pretrained
from diffwindow.models.weights import MANIFEST, verify
from diffwindow.progress import SILENT, Progress
from diffwindow.tasks.model_folder import TASK
from diffwindow.tasks.registry import AnyTask, model_config, task_of
from diffwindow.tasks.trained_model import model_folder
from diffwindow.training.checkpoints import Checkpoints, write_checkpoint
from diffwindow.training.config import Config, differences
from diffwindow.training.draft import Draft, checked

# the layout of a run folder
CONFIG, ORIGIN = "run.json", "origin.json"
CHECKPOINTS, BEST, MODEL, AVERAGE = "checkpoints", "best", "model", "average"
LOG, TIMING, TENSORBOARD, CURVES = "log.jsonl", "timing.jsonl", "tensorboard", "curves.png"
STORE = "data"
# keys that may change when a run resumes: none of them changes an update that is already made
FREE = (
    *("train.max_updates", "train.save_every", "train.keep_last", "train.patience"),
    *("train.device", "train.accumulate", "train.compile", "data.path"),
)
PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "pydantic")


@dataclass(frozen=True)
class Run:
    """A run folder and its config."""

    folder: Path
    config: Config

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a run folder."""
        path = folder / CONFIG
        if not path.is_file():
            raise ValueError(f"{folder} is not a run folder (no {CONFIG}); `diffwindow train` makes one")
        return cls(folder, checked(Draft(read_json(path), str(path))))

    @classmethod
    def start(cls, folder: Path, config: Config, *, resume: bool) -> Self:
        """Make a run folder, or resume one; raise if that would change or replace what is trained."""
        begun = _begun(folder)
        if begun and not resume:
            raise ValueError(f"{folder} holds a run; choose another folder, or resume it")
        if (begun or (folder / STORE).exists()) and (folder / CONFIG).exists():
            cls.open(folder)._check_change(config, begun=begun)
        if begun and not _has_checkpoints(folder):
            raise ValueError(
                f"{folder} has a model but no checkpoint to go on from; choose another folder, or remove "
                f"{folder / MODEL} to start again"
            )
        make_folder(folder)
        write_json(folder / CONFIG, config.model_dump(mode="json"))
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
        if data is None and _begun(self.folder):
            self._check_origin(store)
        return store

    def prepare_store(self, *, progress: Progress = SILENT) -> None:
        """Prepare the run's store from raw files or the generator, unless it exists."""
        path, start = self._store_path(), self.config.start
        open_or_prepare(
            path,
            self._recipe,
            # a fine-tuned model keeps its vocabulary
            tokenizer=model_folder(Path(start)) / TOKENIZER if start and not path.exists() else None,
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

    def task(self, store: Store) -> AnyTask:
        """Return the run's task on a store."""
        return task_of(store, model_config(store, self.config.model_options), self.config.task.options)

    def record_origin(self, store: Store) -> None:
        """Record versions and corpus, unless a run that is resumed did."""
        path = self.folder / ORIGIN
        if not (path.exists() and _begun(self.folder)):
            write_json(path, {"corpus": _identity(store), "command": sys.argv, **versions()})

    def _check_origin(self, store: Store) -> None:
        """Raise if the run recorded another corpus."""
        path = self.folder / ORIGIN
        if not path.exists():
            return
        corpus, recorded = _identity(store), read_json(path).get("corpus", {})
        if not isinstance(recorded, dict):
            raise ValueError(f"{path} is damaged: its corpus is {recorded!r}; delete it to go on without")
        # older runs recorded no labels
        before = {"labels": corpus["labels"]} | recorded
        for name, what in (("tokenizer", "vocabulary"), ("splits", "text"), ("labels", "list of labels")):
            if before.get(name) != corpus[name]:
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
        check_folder_place(target)
        if target.exists() and any(target.iterdir()) and not _is_model_of_a_run(target):
            raise ValueError(f"{target} holds something other than the model of a run; choose another folder")
        paths = [checkpoints.path(update) for update in updates[-last:]]
        for path in paths:
            verify(path)

        def save(folder: Path) -> None:
            average_pretrained(paths, folder)
            # the same in every checkpoint
            write_atomically(folder / TASK, (paths[-1] / TASK).read_bytes())

        write_checkpoint(target, save, {}, {"updates": updates[-last:]})
        return updates[-last:]

    def _store_path(self) -> Path:
        given = self.config.data.path
        if given and is_store(Path(given)):
            return Path(given)
        return self.folder / STORE


def _identity(store: Store) -> dict[str, Any]:
    """Return what tells a corpus from another: hashes of its tokenizer and splits, its labels."""
    return {**corpus_hashes(store.manifest), "labels": list(store.labels)}


def _begun(folder: Path) -> bool:
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


def _is_model_of_a_run(folder: Path) -> bool:
    """Return whether a run wrote this folder; one that `save_pretrained` wrote to may hold other files."""
    return (folder / MANIFEST).is_file() and not verify(folder).keys().isdisjoint(("update", "updates"))
