"""Run the jobs of a table, several at once, each in its own process; finished jobs are not run again."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from diffwindow.data.corpora import GENERATED, corpus_of, recipe_of
from diffwindow.data.integrity import read_manifest
from diffwindow.data.prepare import open_or_prepare
from diffwindow.data.recipe import Recipe
from diffwindow.data.store import TASKS, is_store
from diffwindow.metrics.outcomes import Terms
from diffwindow.processes import end_with_parent, interrupt_workers, leave_terminal_signals_to_parent
from diffwindow.progress import SILENT, Progress
from diffwindow.reproduce.job import Job, Result, outcomes_of, result_of, run
from diffwindow.reproduce.scales import Experiment, Scale
from diffwindow.reproduce.table import Table


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
    settings = read_manifest(data)["settings"]
    size = experiment.vocab_size or corpus_of(experiment.corpus_name).vocabulary.size
    wanted = (experiment.corpus_name, size, experiment.kept)
    actual = (settings["corpus"], settings["vocabulary"]["size"], settings["variant"].get("kept", 1000))
    if actual != wanted:
        raise ValueError(
            f"{data} holds {actual[0]} with a vocabulary of {actual[1] or 'all words'} and {actual[2]} ‰ of "
            f"its rows, but {experiment.store_name} is wanted; give a folder with the raw files"
        )


def recipe(experiment: Experiment, data: Path | None) -> Recipe:
    """Return the recipe of an experiment: its corpus, vocabulary and share of the training rows."""
    name = experiment.corpus_name
    base = recipe_of(name, data, rows=experiment.rows)
    base = replace(base, task=experiment.task or base.task)
    base = base.adjusted(vocab_size=experiment.vocab_size)
    if experiment.kept == 1000:
        return base
    kept = base.splits["train"].share(TASKS[base.task][0], range(experiment.kept))
    return replace(
        base, splits=base.splits | {"train": kept}, variant=base.variant | {"kept": experiment.kept}
    )


Tell = Callable[[str], None]


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
    return [
        Job(
            row,
            column,
            experiment,
            seed,
            out / "data" / experiment.store_name,
            out / "runs" / scale.name / column.name / row.key / f"seed{seed}",
        )
        for seed in seeds
        for column, experiment in columns
        for row in table.rows
    ]


def every_seed(asked: Sequence[int], scale: Scale, out: Path) -> list[int]:
    """Return the seeds that are asked for, and those of the runs of a scale in the folder `out`."""
    names = (path.name.removeprefix("seed") for path in (out / "runs" / scale.name).glob("*/*/seed*"))
    return sorted({*asked, *(int(name) for name in names if name.isdecimal())})


def done_before(jobs: Sequence[Job]) -> list[FinishedJob]:
    """Return the jobs that are finished already."""
    return [FinishedJob(job, result) for job in jobs if (result := result_of(job)) is not None]


def make_stores(jobs: Sequence[Job], data: Path | None, *, progress: Progress = SILENT) -> None:
    """Make the store of each corpus that the jobs need."""
    for experiment, store in dict.fromkeys((job.experiment, job.store) for job in jobs):
        make_store(experiment, store, data, progress=progress)


def with_further_tests(outcomes: Sequence[FinishedJob]) -> list[FinishedJob]:
    """Add each job once more for each further test set that its model was evaluated on."""
    further = [
        FinishedJob(replace(one.job, column=column), one.result | one.result["also"][column.split])
        for one in outcomes
        if one.result
        for column in one.job.column.further
        if column.split in one.result.get("also", {})
    ]
    return [*outcomes, *further]


def outcomes_by_column(outcomes: Sequence[FinishedJob]) -> dict[str, dict[str, Terms]]:
    """Return what each test example added to the figures, by column, then by "row/seed"."""
    columns: dict[str, dict[str, Terms]] = {}
    jobs = [outcome.job for outcome in with_further_tests(outcomes) if outcome.result]
    for job in sorted(jobs, key=lambda job: (job.row.key, job.seed)):
        if (terms := outcomes_of(job)) is not None:
            columns.setdefault(job.column.name, {})[f"{job.row.key}/{job.seed}"] = terms
    return columns


def usual_processes() -> int:
    """Return how many jobs to run at once: one per core, or a single one on a GPU, which they would share."""
    import torch

    return 1 if torch.cuda.is_available() else os.cpu_count() or 1


def run_all(jobs: Sequence[Job], *, processes: int, tell: Tell) -> Iterator[FinishedJob]:
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
                tell(
                    f"run {number} of {len(jobs)}, {outcome.job.label}: {outcome.problem or _shown(outcome)}"
                )
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


def _shown(outcome: FinishedJob) -> str:
    assert outcome.result is not None
    result = outcome.result
    valid = f", {result['valid']:.2f} on valid" if result["split"] != "valid" else ""
    return f"{result['value']:.2f} on {result['split']}{valid}"
