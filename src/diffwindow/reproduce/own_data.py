"""A table of your own data: the models that are worth comparing on a prepared corpus."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from diffwindow.data.store import Manifest
from diffwindow.notation import parse_attention
from diffwindow.reproduce.jobs import Job, jobs_of
from diffwindow.reproduce.scales import Experiment, Scale
from diffwindow.reproduce.table import Column, Row, Table
from diffwindow.tasks.entries import entry_of
from diffwindow.training.overrides import resolve

NAME = "own"


def own_table(
    store: Path, manifest: Manifest, keys: Sequence[str], overrides: Sequence[str]
) -> tuple[Table, Scale]:
    """Return the table of a prepared corpus, and the scale that trains it with sizes that suit it.

    Without `keys`, the rows are those of the task; the first is what the others are compared with.
    Models are scored on the test set, or on the validation set if there is no other.
    """
    entry = entry_of(manifest, store)
    splits = manifest.splits
    if "valid" not in splits:
        raise ValueError(f"{store} has no validation set; prepare it with one, and with a test set")
    column = Column(NAME, store.name, entry.metric, "test" if "test" in splits else "valid")
    rows = tuple({row.key: row for row in map(row_of, keys or entry.attentions)}.values())
    about = f"Your own data, {store.name}: sizes that suit the corpus, the same for every row, and not tuned."
    # quoted, as a path may mean something else in YAML
    path = f"data.path={json.dumps(str(store), ensure_ascii=False)}"
    experiment = Experiment(entry.name, (path, *overrides), corpus=store.name)
    for row in rows:
        # a mistake is told before anything is trained
        resolve(entry.name, experiment.overrides_of(row), {"attention": row.attention})
    return Table(NAME, f"Windows on {store.name}", (column,), rows), Scale(NAME, about, {NAME: experiment})


def row_of(key: str) -> Row:
    """Read a row: an attention, and settings of its model if there are any.

    >>> row_of("Enc( AW )+positions=rotary").overrides
    ('model.positions=rotary',)
    """
    notation, *settings = key.split("+")
    overrides = []
    for setting in settings:
        name, _, value = (part.strip() for part in setting.partition("="))
        if not name.isidentifier() or not value:
            raise ValueError(f"--rows: {setting!r} of {key!r} is no setting of a model, as positions=rotary")
        overrides.append(f"model.{name}={value}")
    row = Row("", str(parse_attention(notation)), tuple(overrides))
    return replace(row, label=row.key)


def own_jobs(table: Table, scale: Scale, seeds: Sequence[int], store: Path, out: Path) -> list[Job]:
    """Return the jobs of a table of your own data."""
    return [replace(job, store=store) for job in jobs_of(table, scale, seeds, out)]
