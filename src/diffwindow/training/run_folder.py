"""The run folder: what was asked, with which versions, on which corpus; everything else works from it."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import diffwindow
from diffwindow.data.corpora import recipe_of
from diffwindow.data.prepare import Progress, prepare, quiet, usual_workers
from diffwindow.data.store import Store
from diffwindow.files import read_json, write_json
from diffwindow.tasks.registry import AnyTask, model_config, task_of
from diffwindow.training.checkpoints import Shelf
from diffwindow.training.config import Config
from diffwindow.training.overrides import RUN_CONFIG as CONFIG
from diffwindow.training.overrides import differences, read_config

ORIGIN = "origin.json"
STORE = "data"
# settings that may change when a run goes on: none of them changes an update that is already made
FREE = (
    *("train.max_updates", "train.save_every", "train.keep_last", "train.patience"),
    *("train.device", "train.accumulate", "train.compile", "data.path"),
)
PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "pydantic")


@dataclass(frozen=True)
class Run:
    """A run folder and its settings."""

    folder: Path
    config: Config

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a run folder."""
        path = folder / CONFIG
        if not path.is_file():
            raise ValueError(f"{folder} is not a run folder (no {CONFIG}); `diffwindow train` makes one")
        return cls(folder, read_config(read_json(path), str(path)))

    @classmethod
    def start(cls, folder: Path, config: Config, *, resume: bool) -> Self:
        """Make a run folder, or go on in one if its settings are the same where they must be."""
        begun = _begun(folder)
        if begun and not resume:
            raise ValueError(f"{folder} holds a run; choose another --out, or go on with --resume auto")
        if (begun or (folder / STORE).exists()) and (folder / CONFIG).exists():
            changed = differences(cls.open(folder).config, config)
            for name, (before, now) in changed.items():
                # what failed before its first checkpoint leaves a corpus at most
                if name not in FREE and (begun or name.startswith("data.")):
                    raise ValueError(
                        f"{folder} was started with {name}={before!r}, not {now!r}; "
                        "choose another --out for other settings"
                    )
                if begun and name == "train.max_updates" and config.train.schedule in ("linear", "cosine"):
                    raise ValueError(
                        f"{folder}: the {config.train.schedule} schedule ends at train.max_updates={before}; "
                        "it cannot go on to another"
                    )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / CONFIG, config.model_dump(mode="json"))
        return cls(folder, config)

    def open_store(self, data: Path | None = None) -> Store:
        """Open the corpus that the run was trained on, or another store."""
        path = data or self._store_path()
        if not path.is_dir():
            raise ValueError(f"the corpus of {self.folder} is not at {path}; say where it is with --data")
        store = Store.open(path)
        if store.task != self.config.task.kind:
            raise ValueError(f"{path} is for {store.task}, but {self.config.name} is {self.config.task.kind}")
        return store

    def prepare_store(self, *, progress: Progress = quiet) -> None:
        """Make the run's store from raw files or the generator, unless there is one."""
        path = self._store_path()
        if path != self.folder / STORE or path.exists():
            return
        data = self.config.data
        raw = Path(data.path) if data.path else None
        recipe = recipe_of(data.corpus, raw, rows=data.rows, seed=data.seed)
        prepare(recipe, path, workers=usual_workers(recipe), progress=progress)

    def task(self, store: Store) -> AnyTask:
        """Make the run's task on a store."""
        return task_of(store, model_config(store, self.config.model_settings), self.config.task.options)

    def check_origin(self, store: Store) -> None:
        """Write down versions and corpus, or see that the corpus is the one that was written down."""
        path = self.folder / ORIGIN
        corpus = corpus_hashes(store)
        if path.exists() and _begun(self.folder):
            before = read_json(path).get("corpus", {})
            for name, what in (("tokenizer", "vocabulary"), ("splits", "text")):
                if before.get(name) != corpus[name]:
                    raise ValueError(
                        f"{store.folder} has another {what} than the corpus that {self.folder} was trained "
                        "on; give --data the same corpus, or choose another --out"
                    )
            return
        write_json(path, {"corpus": corpus, "command": sys.argv, **versions()})

    def _store_path(self) -> Path:
        given = self.config.data.path
        if given and (Path(given) / "manifest.json").exists():
            return Path(given)
        return self.folder / STORE


def _begun(folder: Path) -> bool:
    """Say whether a folder holds anything that was trained."""
    return bool(Shelf(folder / "checkpoints").updates()) or (folder / "model").exists()


def corpus_hashes(store: Store) -> dict[str, str]:
    """Hash what decides a run's batches: the tokenizer and the files of the splits."""
    files = {name: entry["files"] for name, entry in store.manifest["splits"].items()}
    text = json.dumps(files, sort_keys=True)
    return {
        "tokenizer": store.manifest["tokenizer"]["sha256"],
        "splits": hashlib.sha256(text.encode()).hexdigest(),
    }


def versions() -> dict[str, Any]:
    """Give the versions of what computes, and the commit of the source where it is a checkout."""
    found: dict[str, str | None] = {"diffwindow": diffwindow.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return {"versions": found, "platform": platform.platform(), "commit": _commit()}


def _commit() -> str | None:
    source = Path(diffwindow.__file__).parent
    command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
