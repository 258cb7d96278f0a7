"""Prepare and read a corpus, against `datasets.map` and its loader, in one run.

    DIFFWINDOW_DATA=... python benchmarks/data.py [--corpus tatoeba-en-de] [--rows 60000]

Both sides start from the same two text files and the same tokenizer, write to disk, and then read the same
batches as padded tensors. Needs the extra `data`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from diffwindow.data.batching import TokenBatches, collate
from diffwindow.data.corpora import recipe_of
from diffwindow.data.encoding import train_vocabulary
from diffwindow.data.lines import Audit
from diffwindow.data.own_files import two_files
from diffwindow.data.prepare import prepare
from diffwindow.data.recipe import Recipe, Vocabulary
from diffwindow.data.store import Store
from diffwindow.special_tokens import EOS


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def write_text(corpus: str, rows: int, folder: Path) -> tuple[Path, Path]:
    root = os.environ.get("DIFFWINDOW_DATA")
    source = recipe_of(corpus, Path(root) if root else None).splits["train"]
    paths = folder / "train.src", folder / "train.tgt"
    with paths[0].open("w") as left, paths[1].open("w") as right:
        for row in islice(source.read(Audit()), rows):
            left.write(f"{row['source']}\n")
            right.write(f"{row['target']}\n")
    return paths


def map_dataset(paths: tuple[Path, Path], tokenizer_file: Path, cache: Path, *, processes: int) -> Any:
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(tokenizer_file))

    def ids(texts: list[str]) -> list[list[int]]:
        return [
            [*encoding.ids, EOS] for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)
        ]

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {name: ids(batch[name]) for name in ("source", "target")}

    def side(path: Path, name: str) -> Any:
        lines = datasets.load_dataset("text", data_files=str(path), split="train", cache_dir=str(cache))
        return lines.rename_column("text", name)

    rows = datasets.concatenate_datasets([side(paths[0], "source"), side(paths[1], "target")], axis=1)
    return rows.map(encode, batched=True, num_proc=processes, remove_columns=["source", "target"])


def loaded(dataset: Any, batches: list[Any], layout: str | None) -> int:
    def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return {
            name: pad_sequence([torch.as_tensor(row[name]) for row in rows], batch_first=True)
            for name in ("source", "target")
        }

    indices = [batch.tolist() for batch in batches]
    loader = DataLoader(dataset.with_format(layout), batch_sampler=indices, collate_fn=padded)
    return sum(batch["source"].shape[0] for batch in loader)


def versus(name: str, count: int, ours: float, theirs: float) -> None:
    print(name)
    print(f"  diffwindow {count / ours:>10,.0f}   datasets {count / theirs:>10,.0f}   {theirs / ours:.1f} x")


def compare(corpus: str, rows: int, folder: Path) -> None:
    paths = write_text(corpus, rows, folder)
    recipe = Recipe(corpus, "translation", {"train": two_files(*paths)}, Vocabulary("bpe", 8_192))
    tokenizer_file = folder / "tokenizer.json"
    train_vocabulary(recipe, skip_bad=False).save(tokenizer_file)
    datasets.disable_progress_bars()

    ours, theirs = [], []
    # in turn, so that what else the machine does meets both alike
    for turn, number in enumerate((1, 2) * 3):
        run = partial(prepare, recipe, folder / f"store{turn}", tokenizer=tokenizer_file, workers=number)
        spent, store = seconds(run)
        ours.append(spent)
        cache = folder / f"cache{turn}"
        spent, dataset = seconds(partial(map_dataset, paths, tokenizer_file, cache, processes=number))
        theirs.append(spent)
    train = store.split("train")
    for row in (0, len(train) // 2, len(train) - 1):
        assert train[row]["source"].tolist() == dataset[row]["source"]
    versus(
        f"{corpus}: prepare, sentences a second (best of 6 runs, with 1 and 2 processes)",
        2 * len(train),
        min(ours),
        min(theirs),
    )
    read(store, dataset)


def read(store: Store, dataset: Any) -> None:
    train = store.split("train")
    lengths = [train.lengths("source"), train.lengths("target")]
    batches = list(TokenBatches(lengths, max_tokens=4096, seed=1))

    def ours() -> int:
        return sum(collate(train, batch)["source"].shape[0] for batch in batches)

    spent, count = min(seconds(ours) for _ in range(3))
    others = [seconds(partial(loaded, dataset, batches, layout)) for layout in (None, "torch", "numpy")]
    assert {count} == {rows for _, rows in others}
    best = min(time_ for time_, _ in others)
    versus("reading, batches of 4,096 tokens a second (best of its three formats)", len(batches), spent, best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", default="tatoeba-en-de")
    parser.add_argument("--rows", type=int, default=60_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(arguments.corpus, arguments.rows, Path(folder))


if __name__ == "__main__":
    main()
