"""Run the jobs of a table: several at once, each in its process; what is done is not done again."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from diffwindow.data.prepare import Progress, quiet
from diffwindow.reproduce.corpus import prepared
from diffwindow.reproduce.job import Job, Result, result_of, run
from diffwindow.reproduce.scale import Scale
from diffwindow.reproduce.table import Table

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """A job with its result, or with what went wrong."""

    job: Job
    result: Result | None
    problem: str | None = None


def jobs_of(
    table: Table,
    scale: Scale,
    seeds: Sequence[int],
    out: Path,
    data: Path | None,
    *,
    progress: Progress = quiet,
) -> list[Job]:
    """Give the jobs, all rows with the first seed before any with the second, so that early ends compare.

    A run's folder is named by what it trains: tables with the same --out share the models they share.
    """
    stores = {
        column: prepared(scale.setting(column), out / "data", data, progress=progress)
        for column in table.columns
    }
    return [
        Job(
            row,
            column,
            scale.setting(column),
            seed,
            stores[column],
            out / "runs" / scale.name / column.name / row.key / f"seed{seed}",
        )
        for seed in seeds
        for column in table.columns
        for row in table.rows
    ]


def run_all(jobs: Sequence[Job], *, processes: int, tell: Tell) -> Iterator[Outcome]:
    """Yield each job's outcome as it ends, first those that were done before."""
    waiting = []
    for job in jobs:
        result = result_of(job)
        if result is None:
            waiting.append(job)
        else:
            yield Outcome(job, result)
    if len(waiting) < len(jobs):
        tell(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are done already")
    if not waiting:
        return
    # spawned, for a forked process inherits torch's threads in whatever state they are
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        processes, mp_context=context, max_tasks_per_child=1, initializer=_alone
    ) as pool:
        started = {pool.submit(run, job): job for job in waiting}
        for future in as_completed(started):
            job = started[future]
            problem = future.result()
            outcome = Outcome(job, result_of(job) if problem is None else None, problem)
            tell(f"{job.label}: {problem or _shown(outcome)}")
            yield outcome


def _alone() -> None:
    """Keep a process to one thread: there is one a core."""
    import torch

    torch.set_num_threads(1)


def _shown(outcome: Outcome) -> str:
    assert outcome.result is not None
    return f"{outcome.result['value']:.2f} on test, {outcome.result['valid']:.2f} on validation"
