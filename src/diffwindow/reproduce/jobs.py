"""Job: one model to train and evaluate, a row of a table on a column with a seed; run several at once."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffwindow.data.corpora import GENERATED, corpus_of, recipe_of
from diffwindow.data.prepare import open_or_prepare
from diffwindow.data.recipe import Recipe
from diffwindow.data.store import corpus_hashes, is_store, read_manifest, text_fields
from diffwindow.files import make_folder, read_json, write_json
from diffwindow.processes import end_with_parent, interrupt_workers, leave_terminal_signals_to_parent
from diffwindow.progress import SILENT, Progress
from diffwindow.reproduce.scales import Experiment, Scale
from diffwindow.reproduce.table import Column, Row, Table
from diffwindow.tasks.metrics import METRICS, Terms, load_outcomes, save_outcomes

if TYPE_CHECKING:
    from diffwindow.checks import WindowRule

RESULT, OUTCOMES = "result.json", "outcomes.npz"
LOG = "output.txt"
Result = dict[str, Any]
# how the windows of a trained model are evaluated too, beside as they were trained
RULES: tuple[WindowRule, ...] = ("argmax", "none")


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
    asked = arguments_of(job)
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


def terms_of(job: Job, rule: WindowRule = "soft") -> Terms | None:
    """Read the outcome of each example of the split; None if the run is older than such outcomes."""
    path = job.folder / OUTCOMES
    outcomes = load_outcomes(path) if path.is_file() else {}
    if rule != "soft":
        return outcomes.get(_rule_name(job, rule))
    # runs from before there were further test sets have one set, without its name
    return outcomes.get(job.column.split, outcomes.get("terms"))


def _rule_name(job: Job, rule: WindowRule) -> str:
    """Name the outcomes of the split where windows were by a rule."""
    return f"{job.column.split}, {rule}"


def arguments_of(job: Job) -> list[str]:
    """Return everything that determines a job's result: arguments of `diffwindow train`, then the split."""
    settings = (job.experiment.preset, *job.experiment.overrides_of(job.row))
    named = {"attention": job.row.attention, "data": job.experiment.store_name, "seed": job.seed}
    return [*settings, *(f"--{name}={value}" for name, value in named.items()), job.column.split]


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
    from diffwindow.attention.window_module import use_window_rule, window_modules
    from diffwindow.decoding import Decoding
    from diffwindow.evaluation.evaluate import evaluate_model
    from diffwindow.models.weights import verify
    from diffwindow.tasks.model_folder import ModelFolder
    from diffwindow.training.config import MODEL
    from diffwindow.training.overrides import resolve
    from diffwindow.training.run import Run, train

    flags = {"attention": job.row.attention, "train.seed": job.seed, "data.path": str(job.store.resolve())}
    config = resolve(job.experiment.preset, job.experiment.overrides_of(job.row), flags)
    started = time.monotonic()
    train(config, job.folder)
    trained = ModelFolder.read(job.folder)
    decoding = Decoding(beam=config.search.beam, length_penalty=config.search.length_penalty)
    store = Run(job.folder, config).open_store()
    task = trained.task(store)
    also = [split for split in job.column.also if split in store.splits]
    evaluations = {
        split: evaluate_model(trained, task, split, decoding)
        for split in dict.fromkeys(("valid", job.column.split, *also))
    }
    by_rule = {}
    for rule in RULES if window_modules(trained.model) else ():
        with use_window_rule(trained.model, rule):
            by_rule[rule] = evaluate_model(trained, task, job.column.split, decoding)
    metrics = {split: evaluation.metrics for split, evaluation in evaluations.items()}
    named = evaluations | {_rule_name(job, rule): evaluation for rule, evaluation in by_rule.items()}
    terms = {name: evaluation.terms_of(job.column.metric) for name, evaluation in named.items()}
    save_outcomes(job.folder / OUTCOMES, terms)
    score = METRICS[job.column.metric].score
    return {
        "label": job.row.label,
        "attention": job.row.attention,
        "column": job.column.name,
        "seed": job.seed,
        "settings": arguments_of(job),
        "corpus": corpus_hashes(store.manifest),
        "value": score(metrics[job.column.split]),
        "valid": score(metrics["valid"]),
        "split": job.column.split,
        "metrics": metrics[job.column.split],
        "also": {
            split: {"value": score(metrics[split]), "metrics": metrics[split], "rules": {}} for split in also
        },
        "rules": {rule: score(evaluation.metrics) for rule, evaluation in by_rule.items()},
        "parameters": trained.model.config.count_parameters(),
        "updates": verify(job.folder / MODEL)["update"],
        "updates_per_s": _speed(job.folder),
        "seconds_of_last_start": round(time.monotonic() - started, 1),
        "nice": os.nice(0),
    }


def _speed(folder: Path) -> float | None:
    from diffwindow.training.config import TIMING
    from diffwindow.training.records import read_records

    records = read_records(folder / TIMING)
    speeds = [record["updates_per_s"] for record in records if "updates_per_s" in record]
    return statistics.median(speeds) if speeds else None


def make_store(
    experiment: Experiment, store: Path, data: Path | None, *, progress: Progress = SILENT
) -> None:
    """Make the store of an experiment from the raw files in `data`, or link to the store that `data` is.

    A store that exists stays as it is.
    """
    if data and is_store(data) and not store.exists() and experiment.corpus_name not in GENERATED:
        _check_store(experiment, data)
        store.parent.mkdir(parents=True, exist_ok=True)
        store.symlink_to(data.resolve(), target_is_directory=True)
    open_or_prepare(store, lambda: recipe(experiment, data), progress=progress)


def _check_store(experiment: Experiment, data: Path) -> None:
    """Raise unless a store holds the corpus, vocabulary and share of rows of an experiment."""
    settings = read_manifest(data).settings
    corpus = corpus_of(experiment.corpus_name)
    size = experiment.vocab_size or corpus.vocabulary.size
    wanted = (experiment.corpus_name, size, experiment.kept, experiment.moses or corpus.moses)
    actual_size = settings.vocabulary and settings.vocabulary.size
    actual = (settings.corpus, actual_size, settings.variant.get("kept", 1000), bool(settings.moses))
    if actual != wanted:
        raise ValueError(
            f"{data} holds {actual[0]} with a vocabulary of {actual[1] or 'all words'} and {actual[2]} ‰ of "
            f"its rows, {'' if actual[3] else 'not '}tokenised by Moses, but {experiment.store_name} is "
            "wanted; give a folder with the raw files"
        )


def recipe(experiment: Experiment, data: Path | None) -> Recipe:
    """Return the recipe of an experiment: its corpus, vocabulary and share of the training rows."""
    base = recipe_of(experiment.corpus_name, data, rows=experiment.rows)
    base = replace(base, task=experiment.task or base.task)
    base = base.adjust(vocab_size=experiment.vocab_size, moses="auto" if experiment.moses else None)
    if experiment.kept == 1000:
        return base
    kept = base.splits["train"].share(text_fields(base.task)[0], range(experiment.kept))
    return replace(
        base, splits=base.splits | {"train": kept}, variant=base.variant | {"kept": experiment.kept}
    )


@dataclass(frozen=True)
class FinishedJob:
    """A job with its result, or with the reason why it failed."""

    job: Job
    result: Result | None
    problem: str | None = None


def jobs_of(table: Table, scale: Scale, seeds: Sequence[int], out: Path) -> list[Job]:
    """Return the jobs, all rows with one seed before the next seed, so that rows can be compared early.

    A run's folder is named by what it trains, so tables that share a folder `out` share their runs.
    """
    columns = [(column, scale.experiment(column)) for column in table.columns]
    jobs = []
    for seed, (column, experiment), row in product(seeds, columns, table.rows):
        folder = out / "runs" / scale.name / column.name / row.key / f"seed{seed}"
        jobs.append(Job(row, column, experiment, seed, out / "data" / experiment.store_name, folder))
    return jobs


def every_seed(asked: Sequence[int], scale: Scale, out: Path) -> list[int]:
    """Return the seeds that are asked for, and those of the runs of a scale in the folder `out`."""
    names = (path.name.removeprefix("seed") for path in (out / "runs" / scale.name).glob("*/*/seed*"))
    return sorted({*asked, *(int(name) for name in names if name.isdecimal())})


def has_model(job: Job) -> bool:
    """Return whether a run has its model; those that are copied with their results alone have none."""
    from diffwindow.training.config import MODEL

    return (job.folder / MODEL).is_dir()


def done_before(jobs: Sequence[Job]) -> list[FinishedJob]:
    """Return the jobs that are finished already."""
    return [FinishedJob(job, result) for job in jobs if (result := result_of(job)) is not None]


def make_stores(jobs: Sequence[Job], data: Path | None, *, progress: Progress = SILENT) -> None:
    """Make the store of each corpus that the jobs need."""
    for experiment, store in dict.fromkeys((job.experiment, job.store) for job in jobs):
        make_store(experiment, store, data, progress=progress)


def with_further_tests(finished: Sequence[FinishedJob]) -> list[FinishedJob]:
    """Add each job once more for each further test set that its model was evaluated on."""
    further = [
        FinishedJob(replace(one.job, column=column), one.result | one.result["also"][column.split])
        for one in finished
        if one.result
        for column in one.job.column.further
        if column.split in one.result.get("also", {})
    ]
    return [*finished, *further]


def terms_by_column(finished: Sequence[FinishedJob]) -> dict[str, dict[str, Terms]]:
    """Return what each test example added to the metric, by column, then by "row/seed"."""
    columns: dict[str, dict[str, Terms]] = {}
    jobs = [one.job for one in with_further_tests(finished) if one.result]
    for job in sorted(jobs, key=lambda job: (job.row.key, job.seed)):
        if (terms := terms_of(job)) is not None:
            columns.setdefault(job.column.name, {})[f"{job.row.key}/{job.seed}"] = terms
    return columns


def usual_processes() -> int:
    """Return how many jobs to run at once: one per core, or a single one on a GPU, which they would share."""
    import torch

    return 1 if torch.cuda.is_available() else os.cpu_count() or 1


def run_all(jobs: Sequence[Job], *, processes: int, tell: Callable[[str], None]) -> Iterator[FinishedJob]:
    """Run the jobs in processes of their own, and yield each as it finishes.

    An interruption lets running jobs save and stop; a second one stops them at once.
    """
    if not jobs:
        return
    tell(f"{len(jobs)} runs to train, {min(processes, len(jobs))} at once")
    # spawned: a forked process would inherit torch's threads in an unknown state
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        processes, mp_context=context, max_tasks_per_child=1, initializer=_start_worker
    ) as pool:
        try:
            for number, (job, future) in enumerate(_as_finished(pool, jobs, processes), 1):
                outcome = _outcome(job, future)
                tell(f"run {number} of {len(jobs)}, {job.label}: {outcome.problem or _show(outcome.result)}")
                yield outcome
        except BaseException:
            interrupt_workers()
            try:
                pool.shutdown()
            except KeyboardInterrupt:
                interrupt_workers()
            raise


def _as_finished(
    pool: ProcessPoolExecutor, jobs: Sequence[Job], processes: int
) -> Iterator[tuple[Job, Future[str | None]]]:
    """Submit a job as one finishes: a pool starts jobs that wait in it even after an interruption."""
    waiting = iter(jobs)
    running = {_submit(pool, job): job for job in islice(waiting, processes)}
    while running:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            job = running.pop(future)
            running |= {_submit(pool, following): following for following in islice(waiting, 1)}
            yield job, future


def _submit(pool: ProcessPoolExecutor, job: Job) -> Future[str | None]:
    """Submit a job; in a broken pool, it has failed already."""
    try:
        return pool.submit(run, job)
    except BrokenProcessPool as error:
        failed: Future[str | None] = Future()
        failed.set_exception(error)
        return failed


def _outcome(job: Job, future: Future[str | None]) -> FinishedJob:
    try:
        problem = future.result()
    except BrokenProcessPool:
        problem = "a process died, probably out of memory; run fewer at once"
    except (OSError, ValueError) as error:
        # it could not write to its folder
        problem = str(error)
    return FinishedJob(job, result_of(job) if problem is None else None, problem)


def _start_worker() -> None:
    """Keep a process to one thread, one process per core, and end it with its parent."""
    import torch

    leave_terminal_signals_to_parent()
    end_with_parent()
    torch.set_num_threads(1)


def _show(result: Result | None) -> str:
    assert result is not None
    valid = f", {result['valid']:.2f} on valid" if result["split"] != "valid" else ""
    return f"{result['value']:.2f} on {result['split']}{valid}"
