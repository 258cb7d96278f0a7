"""Job: one model to train and evaluate: a row of a table, on a column, with a seed."""

from __future__ import annotations

import os
import statistics
import time
import traceback
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffwindow.data.integrity import corpus_hashes, read_manifest
from diffwindow.data.store import is_store
from diffwindow.files import make_folder, read_json, write_json
from diffwindow.metrics.outcomes import Terms, load_outcomes, save_outcomes
from diffwindow.reproduce.scales import Experiment
from diffwindow.reproduce.table import Column, Row

RESULT, OUTCOMES = "result.json", "outcomes.npz"
LOG = "output.txt"
Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What to train, on which prepared corpus, where."""

    row: Row
    column: Column
    experiment: Experiment
    seed: int
    store: Path
    folder: Path

    @property
    def label(self) -> str:
        """Name the job in a line of progress."""
        return f"{self.column.title}: {self.row.label}, seed {self.seed}"


def result_of(job: Job) -> Result | None:
    """Read the result of a finished job; raise if it was run with other arguments or on another corpus."""
    path = job.folder / RESULT
    if not path.is_file():
        return None
    result: Result = read_json(path)
    asked = list(arguments_of(job))
    if not isinstance(result.get("settings"), list):
        raise ValueError(f"{path} is damaged; delete it, and the same command evaluates again")
    if result["settings"] != asked:
        earlier = " ".join(result["settings"])
        raise ValueError(f"{path} is of {earlier!r}, not of {' '.join(asked)!r}; choose another folder")
    # older results do not know their corpus
    known = is_store(job.store) and "corpus" in result
    if known and result["corpus"] != corpus_hashes(read_manifest(job.store)):
        raise ValueError(f"{job.store} has changed since {path} was written; choose another folder")
    return result


def outcomes_of(job: Job) -> Terms | None:
    """Read the outcome of each example of the split; None if the run is older than such files."""
    path = job.folder / OUTCOMES
    outcomes = load_outcomes(path) if path.is_file() else {}
    # runs from before there were further test sets have one set, without its name
    return outcomes.get(job.column.split, outcomes.get("terms"))


def arguments_of(job: Job) -> tuple[str, ...]:
    """Return everything that determines a job's result: arguments of `diffwindow train`, then the split.

    What the row says comes last: an ablation may change what the scale has set.
    """
    settings = (job.experiment.preset, *job.experiment.overrides, *job.row.overrides)
    named = {"attention": job.row.attention, "data": job.experiment.store_name, "seed": job.seed}
    return (*settings, *(f"--{name}={value}" for name, value in named.items()), job.column.split)


def run(job: Job) -> str | None:
    """Train from where the job stands, evaluate, write the result; return the reason if it failed.

    Runs in a process of its own; what it prints goes to a file of the run.
    """
    make_folder(job.folder)
    with (job.folder / LOG).open("a", encoding="utf-8") as log, redirect_stderr(log):
        try:
            write_json(job.folder / RESULT, _run(job))
        except KeyboardInterrupt:
            return "interrupted; the same command resumes"
        # the other rows go on; the report and the log file name the error
        except Exception as error:
            traceback.print_exc(file=log)
            return str(error) or type(error).__name__
    return None


def _run(job: Job) -> Result:
    from diffwindow.decoding.translate import Search
    from diffwindow.evaluation.evaluate import evaluate
    from diffwindow.models.build import count_parameters
    from diffwindow.models.weights import verify
    from diffwindow.tasks.trained_model import Trained
    from diffwindow.training.overrides import resolve
    from diffwindow.training.run_folder import MODEL, Run
    from diffwindow.training.train import train

    flags = {"attention": job.row.attention, "train.seed": job.seed, "data.path": str(job.store.resolve())}
    config = resolve(job.experiment.preset, (*job.experiment.overrides, *job.row.overrides), flags)
    started = time.monotonic()
    train(config, job.folder)
    trained = Trained.load(job.folder)
    search = Search(beam=config.search.beam, length_penalty=config.search.length_penalty)
    store = Run(job.folder, config).open_store()
    task = trained.task(store)
    also = [split for split in job.column.also if split in store.splits]
    evaluations = {
        split: evaluate(trained, task, split, search)
        for split in dict.fromkeys(("valid", job.column.split, *also))
    }
    metrics = {split: evaluation.metrics for split, evaluation in evaluations.items()}
    save_outcomes(
        job.folder / OUTCOMES, {split: evaluation.terms for split, evaluation in evaluations.items()}
    )
    return {
        "label": job.row.label,
        "attention": job.row.attention,
        "column": job.column.name,
        "seed": job.seed,
        "settings": list(arguments_of(job)),
        "corpus": corpus_hashes(store.manifest),
        "value": figure(job.column, metrics[job.column.split]),
        "valid": figure(job.column, metrics["valid"]),
        "split": job.column.split,
        "metrics": metrics[job.column.split],
        "also": {
            split: {"value": figure(job.column, metrics[split]), "metrics": metrics[split]} for split in also
        },
        "parameters": count_parameters(trained.model.config),
        "updates": verify(job.folder / MODEL)["update"],
        "updates_per_s": _speed(job.folder),
        "seconds_of_last_start": round(time.monotonic() - started, 1),
        "nice": os.nice(0),
    }


def figure(column: Column, metrics: Result) -> float:
    """Return the number that a table shows: BLEU, the accuracy in per cent, the perplexity.

    >>> figure(Column("sst", "SST-2", "accuracy"), {"accuracy": {"value": 0.8125}})
    81.25
    """
    if column.metric == "accuracy":
        return 100.0 * float(metrics["accuracy"]["value"])
    value = metrics[column.metric]
    return float(value["value"] if isinstance(value, dict) else value)


def _speed(folder: Path) -> float | None:
    """Return the median of the updates per second that the run logged."""
    from diffwindow.training.logs import read_records
    from diffwindow.training.run_folder import TIMING

    records = read_records(folder / TIMING)
    speeds = [record["updates_per_s"] for record in records if "updates_per_s" in record]
    return statistics.median(speeds) if speeds else None
