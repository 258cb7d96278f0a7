"""Fetch a corpus from the Hugging Face hub, as the text files that its recipe reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from diffwindow.data.recipe import Corpus, HubRow
from diffwindow.extras import require
from diffwindow.files import replacing

Load = Callable[[str, str | None, str], Iterable[HubRow]]


def hub_rows(path: str, config: str | None, split: str) -> Iterable[HubRow]:
    """Stream the rows of a split from the hub."""
    require("datasets")
    import datasets

    rows: Iterable[HubRow] = datasets.load_dataset(path, config, split=split, streaming=True)
    return rows


def instructions(corpus: Corpus, root: Path) -> str:
    """Return what to put where when the hub does not have the corpus."""
    if corpus.generate:
        return f"{corpus.name} is generated: diffwindow prepare {corpus.name} --out DIR"
    names = dict.fromkeys(name for split in corpus.splits for name in corpus.file_names(split))
    files = "\n".join(f"  {root / name}" for name in names)
    return (
        f"Get {corpus.name} ({corpus.size}; {corpus.licence}) from {corpus.origin}\n"
        f"and put there, plain, .gz or .xz:\n"
        f"{files}\nthen: diffwindow prepare {corpus.name} --data {root} --out DIR"
    )


def download(corpus: Corpus, root: Path, *, load: Load = hub_rows) -> dict[str, int]:
    """Write the files of a corpus from the hub below `root`; return the rows of each. Existing files stay."""
    hub, written = corpus.hub, {}
    assert hub is not None, f"{corpus.name} is not on the hub"
    for split, hub_split in hub.splits.items():
        for side, name in zip(corpus.sides, corpus.file_names(split), strict=True):
            if not (root / name).exists():
                lines = (hub.line(row, side) for row in load(hub.path, hub.config, hub_split))
                written[name] = _write(lines, root / name, hub.header)
    return written


def _write(lines: Iterable[str], path: Path, header: str | None) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = 0
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as out:
        if header:
            out.write(header + "\n")
        for line in lines:
            out.write(line + "\n")
            rows += 1
    return rows
