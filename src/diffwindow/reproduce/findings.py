"""Findings: the finished jobs of a table as plain data, which the report, its pictures and its JSON show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from diffwindow.evaluation.intervals import (
    Interval,
    Summary,
    Verdict,
    agreeing_pairs,
    difference,
    gain_interval,
    summary,
    verdict,
)
from diffwindow.reproduce.jobs import RULES, FinishedJob, Result, terms_of, with_further_tests
from diffwindow.reproduce.scales import Scale
from diffwindow.reproduce.table import Column, Row, Table
from diffwindow.tasks.metrics import METRICS, Terms
from diffwindow.training.config import TrainConfig
from diffwindow.training.overrides import resolve

Finding = dict[str, Any]
# what a run's validations gave: by name, then by update
Validations = dict[str, dict[int, float]]
GROUPS = {
    "by_attractors": "accuracy by attractors",
    "by_distance": "accuracy by distance of subject and verb",
    "by_length": "accuracy by length in tokens",
}
FITS = ("overlap", "best_head", "attention_inside", "chance")


def findings(
    table: Table,
    scale: Scale,
    finished: Sequence[FinishedJob],
    command: str,
    speeds: Mapping[str, float] | None = None,
) -> Finding:
    """Gather the results of a table so far; `speeds` are relative to the first row.

    Columns that nobody has run are left out, rows of the others are not.
    """
    everything = with_further_tests(finished)
    columns = [one for column in table.columns for one in (column, *column.further)]
    run = [column for column in columns if any(outcome.job.column == column for outcome in everything)]
    return {
        "table": table.name,
        "title": table.title,
        "scale": scale.name,
        "about": scale.about,
        "command": command,
        "columns": [_column(table, column, everything) for column in run],
        "speeds": {row.label: speeds[row.key] for row in table.rows} if speeds else None,
        "problems": [f"{o.job.label}: {o.problem}" for o in finished if o.problem],
    }


def _column(table: Table, column: Column, finished: Sequence[FinishedJob]) -> Finding:
    ended = [one for one in finished if one.job.column == column]
    done = [outcome for outcome in ended if outcome.result]
    results = {
        row.key: {o.job.seed: o.result for o in done if o.result and o.job.row == row} for row in table.rows
    }
    # a further test set has the runs of another column, which shows how they learned
    trained = done if column in table.columns else []
    logs = {row.key: _validations(o.job.folder for o in trained if o.job.row == row) for row in table.rows}
    terms = {
        row.key: {o.job.seed: one for o in done if o.job.row == row if (one := terms_of(o.job)) is not None}
        for row in table.rows
    }
    base = table.rows[0]
    rows = [
        _row(row, base, column, results, terms)
        | {"learning": _learning(column, logs[row.key]), "outside": _outside(logs[row.key])}
        | _rules(column, [outcome for outcome in done if outcome.job.row == row])
        for row in table.rows
    ]
    ours = {row["key"]: row["by_seed"] for row in rows}
    paper = {row.key: row.paper[column.name] for row in table.rows if column.name in row.paper}
    experiment = ended[0].job.experiment
    return {
        "column": column.name,
        "title": column.title,
        "metric": column.metric,
        "beside": list(column.beside),
        "split": column.split,
        "further": column not in table.columns,
        "model": _evaluated_model(resolve(experiment.preset, experiment.overrides).train),
        "corpus": experiment.store_name,
        "settings": [experiment.preset, *experiment.overrides],
        "base": base.label,
        "rows": rows,
        "pairs": agreeing_pairs(ours, paper) if paper else None,
    }


def _evaluated_model(config: TrainConfig) -> str:
    """Describe which model of a run is evaluated.

    >>> _evaluated_model(TrainConfig(max_updates=1500, save_every=100, final="average"))
    'the average of the last 5 checkpoints'
    """
    if config.final == "average":
        if config.save_every == "epoch":
            return f"the average of the checkpoints after the last {config.average_last} epochs"
        saved = math.ceil(config.max_updates / config.save_every)
        return f"the average of the last {min(config.average_last, saved)} checkpoints"
    return "the model chosen on validation" if config.final == "best" else "the model after the last update"


def _row(
    row: Row,
    base: Row,
    column: Column,
    results: Mapping[str, dict[int, Result]],
    terms: Mapping[str, dict[int, Terms]],
) -> Finding:
    by_seed = results[row.key]
    metrics = [result["metrics"] for result in by_seed.values()]
    own, other = ({seed: one["value"] for seed, one in results[key].items()} for key in (row.key, base.key))
    sign = METRICS[column.metric].sign
    signed = ({seed: sign * value for seed, value in side.items()} for side in (own, other))
    gain = difference(*signed) if row is not base else None
    interval = _interval(column, gain, terms[row.key], terms[base.key]) if gain else None
    paper, paper_base = row.paper.get(column.name), base.paper.get(column.name)
    paper_gain = None
    if row is not base and paper is not None and paper_base is not None:
        paper_gain = sign * (paper - paper_base)
    return {
        "key": row.key,
        "label": row.label,
        "parameters": next((result["parameters"] for result in by_seed.values()), None),
        "paper_size": row.paper_size,
        "paper": paper,
        "paper_gain": paper_gain,
        "by_seed": {str(seed): own[seed] for seed in sorted(own)},
        "ours": asdict(summary(list(own.values()))) if own else None,
        "valid": asdict(summary([result["valid"] for result in by_seed.values()])) if own else None,
        "beside": {
            name: fmean(METRICS[name].score(one) for one in metrics) if own else None
            for name in column.beside
        },
        "gain": asdict(gain) if gain else None,
        "interval": asdict(interval) if interval else None,
        "verdict": _verdict(gain, interval, paper_gain) if paper_gain is not None and own else None,
        "groups": {by: _groups(metrics, by) for by in GROUPS},
        "windows": _windows(metrics),
    }


def _interval(
    column: Column, gain: Summary, terms: Mapping[int, Terms], base: Mapping[int, Terms]
) -> Interval | None:
    """Return the interval over seeds and examples, if every seed of the gain has its outcomes."""
    seeds = sorted(terms.keys() & base.keys())
    if len(seeds) < gain.count:
        return None
    ours, theirs = (np.stack([side[seed] for seed in seeds]) for side in (terms, base))
    return gain_interval(ours, theirs, METRICS[column.metric].gain)


def _rules(column: Column, done: Sequence[FinishedJob]) -> Finding:
    """Return what rules for windows at test time give, and change, if runs of a row were evaluated so."""
    runs = {one.job.seed: (one.job, one.result) for one in done if one.result and one.result.get("rules")}
    if not runs:
        return {}
    sign = METRICS[column.metric].sign
    soft = {seed: result["value"] for seed, (_, result) in runs.items()}
    found: dict[str, Finding] = {"soft": {"ours": asdict(summary(list(soft.values())))}}
    for rule in RULES:
        values = {seed: result["rules"][rule] for seed, (_, result) in runs.items()}
        change = difference(*({seed: sign * x for seed, x in side.items()} for side in (values, soft)))
        assert change is not None
        hard, trained = (
            {seed: terms for seed, (job, _) in runs.items() if (terms := terms_of(job, one)) is not None}
            for one in (rule, "soft")
        )
        interval = _interval(column, change, hard, trained)
        found[rule] = {
            "ours": asdict(summary(list(values.values()))),
            "gain": asdict(change),
            "interval": asdict(interval) if interval else None,
        }
    return {"rules": found}


def _verdict(gain: Summary | None, interval: Interval | None, paper_gain: float) -> Verdict:
    if gain is None:
        return "not told apart"
    return verdict(gain.mean, interval.reach if interval else gain.reach, gain.count, paper_gain)


def _groups(metrics: Sequence[Result], by: str) -> dict[str, tuple[float, int]]:
    """Return the accuracy in per cent for each group of examples, over all seeds, and the group's size."""
    groups = [one[by] for one in metrics if by in one]
    return {
        name: (
            100.0 * sum(one[name]["correct"] for one in groups) / sum(one[name]["total"] for one in groups),
            groups[0][name]["total"],
        )
        for name in (groups[0] if groups else ())
    }


def _windows(metrics: Sequence[Result]) -> dict[str, float]:
    """Return how well the first layer matches the gold window, where it is known: means over seeds."""
    layers = [by["windows"][0] for by in metrics if "windows" in by]
    names = [name for name in FITS if layers and layers[0][name] is not None]
    return {name: fmean(layer[name] for layer in layers) for name in names}


def _validations(folders: Iterable[Path]) -> list[Validations]:
    """Return what the validations gave of each run that has a log."""
    # imported here because it takes a moment
    from diffwindow.training.config import LOG
    from diffwindow.training.records import read_records
    from diffwindow.view.figures import series

    logs = [read_records(folder / LOG) for folder in folders if (folder / LOG).exists()]
    return [
        {name: dict(zip(*points, strict=True)) for name, points in series(log, "valid").items()}
        for log in logs
    ]


def _by_update(logs: Sequence[Validations], name: str) -> list[tuple[int, float]]:
    """Return the means over runs of what validations gave, for the updates that all have."""
    curves = [log.get(name, {}) for log in logs]
    updates = sorted(set.intersection(*map(set, curves))) if curves else []
    return [(update, fmean(curve[update] for curve in curves)) for update in updates]


def _learning(column: Column, logs: Sequence[Validations]) -> list[tuple[int, float]]:
    """Return the validations by update, as they are printed."""
    name, _ = METRICS[column.metric].learning
    return [(update, METRICS[name].scale * value) for update, value in _by_update(logs, name)]


def _outside(logs: Sequence[Validations]) -> list[tuple[int, float, float]]:
    """Return the shares of keys and of tiles outside of windows by update, if validations counted them."""
    keys, tiles = (_by_update(logs, f"{what}_outside") for what in ("keys", "tiles"))
    return [(update, share, of_tiles) for (update, share), (_, of_tiles) in zip(keys, tiles, strict=True)]
