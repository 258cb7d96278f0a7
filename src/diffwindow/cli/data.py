"""The verbs `prepare` and `data`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from diffwindow.data.prepare import Estimate
    from diffwindow.data.recipe import Recipe

app = typer.Typer(help="The corpora: what there is, and how to get it.", no_args_is_help=True)
Raw = Annotated[
    Path | None,
    typer.Option("--data", envvar="DIFFWINDOW_DATA", help="Folder with the raw files of a known corpus."),
]
File = Path | None


def prepare(
    out: Annotated[Path, typer.Option("--out", help="Folder of the store; it must not exist yet.")],
    corpus: Annotated[str | None, typer.Argument(help="A known corpus; see `diffwindow data list`.")] = None,
    data: Raw = None,
    source: Annotated[File, typer.Option(help="Parallel text: source sentences, one per line.")] = None,
    target: Annotated[File, typer.Option(help="Parallel text: their translations.")] = None,
    valid_source: Annotated[File, typer.Option(help="The same for validation.")] = None,
    valid_target: Annotated[File, typer.Option()] = None,
    test_source: Annotated[File, typer.Option(help="The same for testing.")] = None,
    test_target: Annotated[File, typer.Option()] = None,
    tsv: Annotated[File, typer.Option(help="Parallel text as source<TAB>target lines.")] = None,
    text: Annotated[File, typer.Option(help="Running text for a language model.")] = None,
    valid: Annotated[File, typer.Option(help="The same for validation, with --tsv or --text.")] = None,
    test: Annotated[File, typer.Option(help="The same for testing, with --tsv or --text.")] = None,
    vocab_size: Annotated[int | None, typer.Option(min=1, help="Size of the vocabulary.")] = None,
    tokenizer: Annotated[File, typer.Option(help="Use this tokenizer.json instead of learning one.")] = None,
    moses: Annotated[
        str | None,
        typer.Option(metavar="LANG[,LANG]", help="Moses-tokenise first: en, or en,de for both sides."),
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Training rows of a generated corpus.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of a generated corpus.")] = 0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default the cores, at most 4.")
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out and count them.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate size and time; write nothing.")
    ] = False,
) -> None:
    """Turn a corpus into a store: a known one by name, two parallel files, a TSV, or plain text.

    Files may be plain, .gz or .xz. The same command resumes an interrupted run.
    """
    from diffwindow.cli.errors import naming_data_option
    from diffwindow.data.corpora import GENERATED, plain_text, recipe_of, tsv_pairs, two_files
    from diffwindow.data.recipe import Recipe

    chosen = [
        name
        for name, given in [("a corpus", corpus), ("--source", source), ("--tsv", tsv), ("--text", text)]
        if given
    ]
    if len(chosen) != 1:
        raise ValueError(
            "give one of a corpus, --source with --target, --tsv or --text, "
            f"not {' and '.join(chosen) or 'none'}"
        )
    sides = {
        "train": (source, target),
        "valid": (valid_source, valid_target),
        "test": (test_source, test_target),
    }
    if not source and any(left or right for left, right in sides.values()):
        raise ValueError(f"--target, --valid-… and --test-… go with --source, not with {chosen[0]}")
    if not (tsv or text) and (valid or test):
        raise ValueError(f"--valid and --test go with --tsv or --text, not with {chosen[0]}")
    if (rows or seed) and corpus not in GENERATED:
        raise ValueError(f"--rows and --seed are for a generated corpus, one of {', '.join(GENERATED)}")
    if corpus:
        with naming_data_option():
            recipe = recipe_of(corpus, data, rows=rows, seed=seed)
    elif alone := text or tsv:
        read, task = (plain_text, "lm") if text else (tsv_pairs, "translation")
        files = {"train": alone, "valid": valid, "test": test}
        splits = {split: read(_existing(file)) for split, file in files.items() if file}
        recipe = Recipe(alone.name, task, splits)
    else:
        splits = {
            split: two_files(_existing(left, f"--{split}-source"), _existing(right, f"--{split}-target"))
            for split, (left, right) in sides.items()
            if left or right
        }
        recipe = Recipe(str(source), "translation", splits)
    _run(
        recipe.adjusted(vocab_size=vocab_size, moses=moses),
        out,
        tokenizer,
        workers,
        skip_bad=skip_bad,
        dry_run=dry_run,
    )


def _existing(path: Path | None, option: str = "") -> Path:
    if path is None:
        raise ValueError(f"{option.replace('train-', '')} is missing: parallel text needs both sides")
    if not path.exists():
        raise ValueError(f"there is no file {path}")
    return path


def _run(
    recipe: Recipe, out: Path, tokenizer: Path | None, workers: int | None, *, skip_bad: bool, dry_run: bool
) -> None:
    from diffwindow.data.lines import BadRowError
    from diffwindow.data.prepare import estimate, usual_workers
    from diffwindow.data.prepare import prepare as run
    from diffwindow.progress import show_progress

    count = workers or usual_workers(recipe)
    try:
        if dry_run:
            _show_estimate(estimate(recipe, workers=count, skip_bad=skip_bad), count)
            return
        with show_progress() as progress:
            store = run(recipe, out, tokenizer=tokenizer, workers=count, skip_bad=skip_bad, progress=progress)
    except BadRowError as error:
        raise ValueError(f"{error}, or pass --skip-bad to leave such rows out and count them") from None
    except KeyboardInterrupt:
        print(f"interrupted; the same command resumes from {out}.partial", file=sys.stderr)
        raise typer.Exit(130) from None
    print(f"{out}: {store.task}, vocabulary {store.tokenizer.vocab_size:,} ({store.tokenizer.kind})")
    for split, entry in store.manifest["splits"].items():
        print(f"  {split}: {_described(entry)}")


def _show_estimate(expected: Estimate, workers: int) -> None:
    rows = ", ".join(f"{split} {number:,}" for split, number in expected.rows.items())
    size = f"{expected.bytes / 1e6:,.1f} MB"
    print(f"about {rows} rows, {size}, {_duration(expected.seconds)} with {workers} workers")


def _described(entry: dict[str, Any]) -> str:
    tokens = ", ".join(f"{field} {count:,} tokens" for field, count in entry["tokens"].items())
    found = entry["found"]
    labels = "".join(f", label {label}: {count:,}" for label, count in found["labels"].items())
    skipped = "".join(
        f"; skipped {count:,}: {problem} (first: {found['first_skipped'][problem]})"
        for problem, count in found["skipped"].items()
    )
    return f"{entry['rows']:,} rows, {tokens}{labels}{skipped}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@app.command("list")
def list_corpora() -> None:
    """List the corpora: use, size, licence, origin."""
    from diffwindow.data.corpora import CORPORA

    for corpus in CORPORA.values():
        how = "generated" if corpus.generate else "download" if corpus.hub else "by hand"
        print(f"{corpus.name:16} {corpus.use}; {corpus.size}; {corpus.licence}; {corpus.origin} [{how}]")


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="A corpus of `diffwindow data list`.")],
    data: Raw = None,
) -> None:
    """Download a corpus from the Hugging Face hub, or say which files to put where."""
    from diffwindow.data.corpora import corpus_of
    from diffwindow.data.download import download, instructions

    corpus = corpus_of(name)
    root = data or Path("data")
    if corpus.hub is None:
        print(instructions(corpus, root))
        return
    for file, rows in download(corpus, root).items():
        print(f"{root / file}: {rows:,} rows")
    print(f"now: diffwindow prepare {name} --data {root} --out DIR")


@app.command("check")
def check(store: Annotated[Path, typer.Argument(help="A folder that `diffwindow prepare` wrote.")]) -> None:
    """Compare every file of a store with the hashes in its manifest."""
    from diffwindow.data.store import Store

    opened = Store.open(store)
    opened.verify()
    print(f"{store}: {len(opened):,} rows, every file as it was written")
