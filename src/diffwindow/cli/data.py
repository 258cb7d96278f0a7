"""The verbs `prepare` and `data`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from diffwindow.cli.completion import complete_corpora
from diffwindow.cli.errors import name_data_option
from diffwindow.cli.library import (
    data_corpora,
    data_download,
    data_lines,
    data_own_files,
    data_prepare,
    data_readers,
    data_recipe,
    data_store,
    data_tokenizer,
)
from diffwindow.cli.options import LabelColumn, TextColumn, check_partners
from diffwindow.progress import show_progress

if TYPE_CHECKING:
    from diffwindow.data.prepare import Estimate
    from diffwindow.data.readers import Columns
    from diffwindow.data.recipe import Recipe
    from diffwindow.data.store import SplitEntry
    from diffwindow.data.tokenizer import Normalization

app = typer.Typer(help="The corpora: what there is, and how to get it.", no_args_is_help=True)
Raw = Annotated[
    Path | None,
    typer.Option("--data", envvar="DIFFWINDOW_DATA", help="Folder with the raw files of a known corpus."),
]
File = Path | None


def prepare(
    out: Annotated[Path, typer.Option("--out", help="Folder of the store.")],
    corpus: Annotated[
        str | None,
        typer.Argument(help="A known corpus; see `diffwindow data list`.", autocompletion=complete_corpora),
    ] = None,
    data: Raw = None,
    source: Annotated[File, typer.Option(help="Parallel text: source sentences, one per line.")] = None,
    target: Annotated[File, typer.Option(help="Parallel text: their translations.")] = None,
    valid_source: Annotated[File, typer.Option(help="The same for validation.")] = None,
    valid_target: Annotated[File, typer.Option()] = None,
    test_source: Annotated[File, typer.Option(help="The same for testing.")] = None,
    test_target: Annotated[File, typer.Option()] = None,
    tsv: Annotated[File, typer.Option(help="Parallel text as source<TAB>target lines.")] = None,
    labels: Annotated[
        File, typer.Option(help="Labelled text: .tsv or .csv with text and label, or JSON lines.")
    ] = None,
    text: Annotated[File, typer.Option(help="Running text for a language model.")] = None,
    valid: Annotated[File, typer.Option(help="Validation, with --tsv, --labels or --text.")] = None,
    test: Annotated[File, typer.Option(help="Testing, with --tsv, --labels or --text.")] = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    trees: Annotated[
        bool,
        typer.Option(
            "--trees",
            help="Texts of --labels and --text are bracketed trees, or CoNLL's chunks; keep their phrases.",
        ),
    ] = False,
    source_lang: Annotated[str | None, typer.Option(help="Language of the source, such as en.")] = None,
    target_lang: Annotated[str | None, typer.Option(help="Language of the target, such as de.")] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=1, help="Size of the vocabulary; by default it suits the corpus.")
    ] = None,
    tokenizer: Annotated[File, typer.Option(help="Use this tokenizer.json instead of learning one.")] = None,
    normalization: Annotated[
        Literal["nfc", "none"] | None,
        typer.Option(help="Unicode form of texts: nfc (default), or none, which keeps their bytes."),
    ] = None,
    moses: Annotated[
        str | None,
        typer.Option(
            metavar="LANG[,LANG]",
            help="Moses-tokenise first: en, or en,de for both sides; auto takes the corpus's languages.",
        ),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Leave out training pairs with more words on a side.")
    ] = None,
    max_ratio: Annotated[
        float | None,
        typer.Option(min=1.0, help="Leave out training pairs of which one side is so many times longer."),
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Training rows of a generated corpus.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of a generated corpus.")] = 0,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes; by default the cores, at most 4; one for a small corpus."),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out and count them.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate size and time; write nothing.")
    ] = False,
) -> None:
    """Turn a corpus into a store: a known one by name, parallel files, labelled text, or plain text.

    Files may be plain, .gz or .xz. The same command resumes an interrupted run, and leaves a finished one.
    """
    inputs = {"a corpus": corpus, "--source": source, "--tsv": tsv, "--labels": labels, "--text": text}
    given = [name for name, value in inputs.items() if value]
    if len(given) != 1:
        raise ValueError(
            "give one of a corpus, --source with --target, --tsv, --labels or --text, "
            f"not {' and '.join(given) or 'none'}"
        )
    chosen = given[0]
    sides = {
        "train": (source, target),
        "valid": (valid_source, valid_target),
        "test": (test_source, test_target),
    }
    two_sided = any(left or right for left, right in sides.values())
    check_partners(
        chosen,
        (
            ("--target, --valid-… and --test-…", two_sided, ("--source",)),
            ("--valid and --test", bool(valid or test), ("--tsv", "--labels", "--text")),
            ("--trees", trees, ("--labels", "--text")),
            ("--text-column and --label-column", bool(text_column or label_column), ("--labels",)),
            ("--source-lang and --target-lang", bool(source_lang or target_lang), ("--source", "--tsv")),
        ),
    )
    for option, value in (("--vocab-size", vocab_size), ("--normalization", normalization)):
        if tokenizer and value:
            raise ValueError(
                f"{option} {value} is for a new vocabulary, but {tokenizer} has its own; leave one out"
            )
    if (rows or seed) and corpus not in data_corpora.GENERATED:
        raise ValueError(
            f"--rows and --seed are for a generated corpus, one of {', '.join(data_corpora.GENERATED)}"
        )
    form: Normalization = (
        data_tokenizer.Tokenizer.load(tokenizer).normalization if tokenizer else normalization or "nfc"
    )
    with _name_options(), name_data_option():
        if corpus:
            recipe = data_corpora.recipe_of(corpus, data, rows=rows, seed=seed)
        elif source:
            recipe = _parallel_recipe(str(source), sides)
        else:
            files = {"train": tsv or labels or text, "valid": valid, "test": test}
            columns = data_readers.Columns(text_column, label_column)
            recipe = _file_recipe(chosen, files, columns, skip_bad=skip_bad, trees=trees)
        languages = {"source": source_lang, "target": target_lang}
        known = {field: language for field, language in languages.items() if language}
        recipe = recipe.adjust(
            vocab_size=vocab_size,
            moses=moses,
            languages=known,
            normalization=form,
            cleaning=data_recipe.Cleaning(max_length, max_ratio),
        )
        _prepare(recipe, out, tokenizer, workers, skip_bad=skip_bad, dry_run=dry_run)


def _parallel_recipe(name: str, sides: dict[str, tuple[File, File]]) -> Recipe:
    splits = {
        split: data_own_files.two_files(
            _check_exists(left, f"--{split}-source"), _check_exists(right, f"--{split}-target")
        )
        for split, (left, right) in sides.items()
        if left or right
    }
    return data_recipe.Recipe(name, "translation", splits)


def _file_recipe(
    option: str, files: dict[str, File], columns: Columns, *, skip_bad: bool, trees: bool
) -> Recipe:
    existing = {split: _check_exists(file) for split, file in files.items() if file}
    if option == "--labels":
        recipe = data_own_files.labelled_recipe(existing, columns, skip_bad=skip_bad)
        return recipe.read_phrases() if trees else recipe
    is_text = option == "--text"
    read = data_own_files.plain_text if is_text else data_own_files.tsv_pairs
    read = data_own_files.trees if trees else read
    splits = {split: read(file) for split, file in existing.items()}
    task = "language-model" if is_text else "translation"
    recipe = data_recipe.Recipe(existing["train"].name, task, splits)
    return recipe.read_phrases() if trees else recipe


@contextmanager
def _name_options() -> Iterator[None]:
    """Name the option that helps where the library says what is wrong."""
    try:
        yield
    except data_lines.BadRowError as error:
        raise ValueError(f"{error}, or pass --skip-bad to leave such rows out and count them") from None
    except data_lines.NoColumnError as error:
        options = "--text-column and --label-column"
        raise ValueError(f"{error}: {options} take a name, or a number if there is no header") from None


def _check_exists(path: Path | None, option: str = "") -> Path:
    if path is None:
        raise ValueError(f"{option.replace('train-', '')} is missing: parallel text needs both sides")
    if not path.exists():
        raise ValueError(f"there is no file {path}")
    return path


def _prepare(
    recipe: Recipe, out: Path, tokenizer: Path | None, workers: int | None, *, skip_bad: bool, dry_run: bool
) -> None:
    count = workers or data_prepare.usual_workers(recipe)
    try:
        if dry_run:
            _show_estimate(data_prepare.estimate(recipe, workers=count, skip_bad=skip_bad), count)
            return
        with show_progress() as progress:
            store = data_prepare.prepare(
                recipe, out, tokenizer=tokenizer, workers=count, skip_bad=skip_bad, progress=progress
            )
    except KeyboardInterrupt:
        print(f"interrupted; the same command resumes from {out}.partial", file=sys.stderr)
        raise typer.Exit(130) from None
    chosen = not tokenizer and recipe.vocabulary.kind == "bpe" and recipe.vocabulary.size is None
    reason = ", chosen to suit the corpus; --vocab-size takes another" if chosen else ""
    print(f"{out}: {store.task}, vocabulary {store.tokenizer.vocab_size:,} ({store.tokenizer.kind}{reason})")
    if store.task == "translation":
        known = ", ".join(f"{field} {language}" for field, language in store.languages.items())
        print(f"  languages: {known or 'unknown; name them with --source-lang and --target-lang'}")
    for split, entry in store.manifest.splits.items():
        print(f"  {split}: {_describe(entry, store.labels)}")


def _show_estimate(expected: Estimate, workers: int) -> None:
    rows = ", ".join(f"{split} {number:,}" for split, number in expected.rows.items())
    seconds = expected.seconds
    duration = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    print(f"about {rows} rows, {expected.bytes / 1e6:,.1f} MB, {duration} with {workers} workers")


def _describe(entry: SplitEntry, names: Sequence[str]) -> str:
    tokens = ", ".join(f"{field} {count:,} tokens" for field, count in entry.tokens.items())
    found = entry.found
    counts = [f"{names[int(label)]}: {count:,}" for label, count in found.labels.items()]
    labels = f", labels {', '.join(shorten_list(counts))}" if counts else ""
    skipped = "".join(
        f"; skipped {count:,}: {problem} (first: {found.first_skipped[problem]})"
        for problem, count in found.skipped.items()
    )
    return f"{entry.rows:,} rows, {tokens}{labels}{skipped}"


def shorten_list(items: Sequence[str], limit: int = 20) -> list[str]:
    """Return the first items of a long list, and how many more there are.

    >>> shorten_list(["a", "b", "c"], limit=2)
    ['a', 'b', '1 more']
    """
    return [*items[:limit], *([f"{len(items) - limit:,} more"] if len(items) > limit else [])]


@app.command("list")
def list_corpora() -> None:
    """List the corpora: use, size, licence, origin."""
    for corpus in data_corpora.CORPORA.values():
        how = "generated" if corpus.generate else "download" if corpus.hub else "by hand"
        print(f"{corpus.name:16} {corpus.use}; {corpus.size}; {corpus.licence}; {corpus.origin} [{how}]")


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="A corpus of `diffwindow data list`.")],
    data: Raw = None,
) -> None:
    """Download a corpus from the Hugging Face hub, or say which files to put where."""
    corpus = data_corpora.corpus_of(name)
    root = data or Path("data")
    if corpus.hub is None:
        print(data_download.instructions(corpus, root))
        return
    for file, rows in data_download.download(corpus, root).items():
        print(f"{root / file}: {rows:,} rows")
    print(f"now: diffwindow prepare {name} --data {root} --out DIR")


@app.command("check")
def check(store: Annotated[Path, typer.Argument(help="A folder that `diffwindow prepare` wrote.")]) -> None:
    """Compare every file of a store with the hashes in its manifest."""
    opened = data_store.Store.open(store)
    opened.verify()
    print(f"{store}: {len(opened):,} rows, every file as it was written")
