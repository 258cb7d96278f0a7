"""The corpus of a setting: prepared once, then shared by all rows and seeds."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

from diffwindow.data.corpora import recipe_of
from diffwindow.data.prepare import prepare
from diffwindow.data.recipe import Recipe
from diffwindow.data.store import TASKS
from diffwindow.metrics.outcomes import Terms
from diffwindow.processes import end_with_parent
from diffwindow.progress import SILENT, Progress
from diffwindow.reproduce.job import Job, Result, outcomes_of, result_of, run
from diffwindow.reproduce.scales import Scale, Setting
from diffwindow.reproduce.table import Table


def make_store(setting: Setting, store: Path, data: Path | None, *, progress: Progress = SILENT) -> None:
    """Make a setting's store from the raw files in `data`, unless it is there."""
    if not store.exists():
        store.parent.mkdir(parents=True, exist_ok=True)
        prepare(recipe(setting, data), store, progress=progress)


def recipe(setting: Setting, data: Path | None) -> Recipe:
    """Give the recipe of a setting: the corpus with its vocabulary, and its share of the training rows."""
    name = setting.corpus_name
    found = recipe_of(name, data, rows=setting.rows)
    found = replace(found, task=setting.task or found.task)
    found = found.adjusted(vocab_size=setting.vocab_size, moses=None)
    if setting.kept == 1000:
        return found
    kept = found.splits["train"].share(TASKS[found.task][0], range(setting.kept))
    return replace(
        found, splits=found.splits | {"train": kept}, variant=found.variant | {"kept": setting.kept}
    )


Tell = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """A job with its result, or with what went wrong."""

    job: Job
    result: Result | None
    problem: str | None = None


def jobs_of(table: Table, scale: Scale, seeds: Sequence[int], out: Path) -> list[Job]:
    """Give the jobs, all rows with the first seed before any with the second, so that early ends compare.

    A run's folder is named by what it trains: tables with the same --out share the models they share.
    """
    columns = [(column, scale.setting(column)) for column in table.columns]
    return [
        Job(
            row,
            column,
            setting,
            seed,
            out / "data" / setting.store_name,
            out / "runs" / scale.name / column.name / row.key / f"seed{seed}",
        )
        for seed in seeds
        for column, setting in columns
        for row in table.rows
    ]


def done_before(jobs: Sequence[Job]) -> list[Outcome]:
    """Give the outcomes of the jobs that need not run."""
    return [Outcome(job, result) for job in jobs if (result := result_of(job)) is not None]


def make_stores(jobs: Sequence[Job], data: Path | None, *, progress: Progress = SILENT) -> None:
    """Make the corpora that jobs need, each once."""
    for setting, store in dict.fromkeys((job.setting, job.store) for job in jobs):
        make_store(setting, store, data, progress=progress)


def outcomes_by_column(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Terms]]:
    """Return what each test example added to the figures, by column, then by "row/seed"."""
    columns: dict[str, dict[str, Terms]] = {}
    for job in sorted((o.job for o in outcomes if o.result), key=lambda job: (job.row.key, job.seed)):
        if (terms := outcomes_of(job)) is not None:
            columns.setdefault(job.column.name, {})[f"{job.row.key}/{job.seed}"] = terms
    return columns


def run_all(jobs: Sequence[Job], *, processes: int, tell: Tell) -> Iterator[Outcome]:
    """Yield each job's outcome as it ends; no jobs start no process."""
    if not jobs:
        return
    # spawned, for a forked process inherits torch's threads in whatever state they are
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        processes, mp_context=context, max_tasks_per_child=1, initializer=_start_worker
    ) as pool:
        started = {pool.submit(run, job): job for job in jobs}
        try:
            for future in as_completed(started):
                outcome = _outcome(started[future], future)
                tell(f"{outcome.job.label}: {outcome.problem or _shown(outcome)}")
                yield outcome
        except BaseException:
            # the runs under way have the signal too, and save; those that wait must not begin
            pool.shutdown(cancel_futures=True)
            raise


def _outcome(job: Job, future: Future[str | None]) -> Outcome:
    try:
        problem = future.result()
    except BrokenProcessPool:
        problem = "a process ended by itself, perhaps for want of memory; try fewer --jobs"
    return Outcome(job, result_of(job) if problem is None else None, problem)


def _start_worker() -> None:
    """Keep a process to one thread, one process per core, and end it with its parent."""
    import torch

    end_with_parent()
    torch.set_num_threads(1)


def _shown(outcome: Outcome) -> str:
    assert outcome.result is not None
    result = outcome.result
    valid = f", {result['valid']:.2f} on valid" if result["split"] != "valid" else ""
    return f"{result['value']:.2f} on {result['split']}{valid}"
