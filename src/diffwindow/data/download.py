"""Fetch a corpus from the Hugging Face hub, as the text files that its recipe reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from diffwindow.data.catalogue import CATALOGUE, Entry, HubDataset, HubFile, HubRow
from diffwindow.extras import require

Load = Callable[[str, str | None, str], Iterable[HubRow]]


def hub_rows(path: str, config: str | None, split: str) -> Iterable[HubRow]:
    """Stream the rows of a split from the hub."""
    require("datasets")
    import datasets

    rows: Iterable[HubRow] = datasets.load_dataset(path, config, split=split, streaming=True)
    return rows


def entry_of(name: str) -> Entry:
    """Give the catalogue's entry of a corpus."""
    for entry in CATALOGUE:
        if entry.name == name:
            return entry
    raise ValueError(f"no corpus is called {name!r}; `diffwindow data list` shows them all")


def instructions(entry: Entry, root: Path) -> str:
    """Say what to put where when the hub does not have the corpus."""
    if entry.generated:
        return f"{entry.name} is generated: diffwindow prepare {entry.name} --out DIR"
    files = "\n".join(f"  {root / pattern}" for pattern in entry.layout)
    return (
        f"Get {entry.name} ({entry.size}; {entry.licence}) from {entry.origin}\n"
        f"and put there, plain, .gz or .xz:\n"
        f"{files}\nthen: diffwindow prepare {entry.name} --data {root} --out DIR"
    )


def download(hub: HubDataset, root: Path, *, load: Load = hub_rows) -> dict[str, int]:
    """Write the files of a hub dataset under `root`; give the rows of each. Files already there stay."""
    return {
        file.name: _write(hub, file, root / file.name, load)
        for file in hub.files
        if not (root / file.name).exists()
    }


def _write(hub: HubDataset, file: HubFile, path: Path, load: Load) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    rows = 0
    with temporary.open("w", encoding="utf-8", newline="\n") as out:
        if file.header:
            out.write(file.header + "\n")
        for row in load(hub.path, hub.config, file.split):
            out.write(file.line(row) + "\n")
            rows += 1
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)
    return rows
