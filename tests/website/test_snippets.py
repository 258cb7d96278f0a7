"""Every Python and shell block of README and docs runs, in order per page, and prints what the page shows.

A block that cannot run is marked, with its reason, by a comment before it: <!-- illustration: REASON -->.
Reports of finished runs are records, not pages, and are left out.
"""

import json
import os
import random
import shutil
import warnings
from pathlib import Path

import matplotlib
import pytest
import torch
from filelock import FileLock

from samples.page_blocks import TINY, Block, blocks, commands, matches, run_block, run_command
from samples.trained_runs import train_runs

ROOT = Path(__file__).parents[2]
GENERATED = {"settings.md", "command-line.md", "notation.md"}
DOCS = sorted(
    page
    for page in (ROOT / "docs").rglob("*.md")
    # tutorials are scripts, with a test of their own
    if page.name not in {"report.md", *GENERATED} and page.parent.name != "tutorials"
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
# Pages that take minutes; `pytest -m slow tests/website` runs them.
SLOW = {"explanation/scale.md", "guides/export.md", "guides/reproduce.md"}
ENGLISH = ["A dog runs .", "The keys are here .", "Nothing at all .", "A film that is not so bad ."]
GERMAN = [
    "Ein Hund läuft .",
    "Die Schlüssel sind hier .",
    "Gar nichts .",
    "Ein Film , der nicht so übel ist .",
]
LABELS = ["très bon", "not so good"]


def _name(page):
    return page.relative_to(ROOT / "docs" if "docs" in page.parts else ROOT).as_posix()


def _tests():
    for page in PAGES:
        found = [block for block in blocks(page.read_text(encoding="utf-8")) if not block.reason]
        marks = [pytest.mark.slow] if _name(page) in SLOW else []
        if found:
            yield pytest.param(page, id=_name(page), marks=marks)


def write_files(folder):
    """Write the files that the pages name, a few lines each."""
    for split in ("train", "valid", "test"):
        for language, text in (("en", ENGLISH), ("de", GERMAN), ("txt", ENGLISH)):
            (folder / f"{split}.{language}").write_text("\n".join(text) + "\n", encoding="utf-8")
    rows = [(text, LABELS[number % 2]) for number, text in enumerate(ENGLISH)]
    csv = "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows)
    for name in ("reviews.csv", "reviews-valid.csv"):
        (folder / name).write_text(csv, encoding="utf-8")
    lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
    (folder / "reviews-test.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "text.txt").write_text("the young doctor found the lamp .\n", encoding="utf-8")
    (folder / "pairs.tsv").write_text("the lamp fell .\tthe lamp fell .\n", encoding="utf-8")
    (folder / "minimal.tsv").write_text("the key is old .\tthe key are old .\n", encoding="utf-8")
    (folder / "mine.yaml").write_text("preset: agreement\nattention: Enc(MW)\ndata: {rows: 200}\n")


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A folder with the files and trained runs that the pages name; made once for all workers."""
    # the workers of pytest-xdist have folders of their own inside that of the session
    session = tmp_path_factory.getbasetemp()
    shared = (session.parent if "PYTEST_XDIST_WORKER" in os.environ else session) / "pages"
    with FileLock(f"{shared}.lock"):
        if not shared.exists():
            making = tmp_path_factory.mktemp("making")
            (making / "runs").mkdir()
            train_runs(making / "runs")
            write_files(making)
            shutil.copytree(ROOT / "docs/results/table5-paper", making / "docs/results/table5-paper")
            shutil.copytree(making, shared)
    return shared


@pytest.mark.parametrize("page", list(_tests()))
def test_the_page_runs(page, world, tmp_path, monkeypatch, unchecked):
    folder = shutil.copytree(world, tmp_path / "page")
    monkeypatch.chdir(folder)
    matplotlib.use("Agg")
    torch.manual_seed(0)
    random.seed(0)
    names = {"__name__": "page"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.reason:
            continue
        place = f"{_name(page)}, line {block.line}"
        with warnings.catch_warnings():
            # what a reader would not see as an error is none here
            warnings.simplefilter("default")
            try:
                printed = run_block(block, names, TINY)
            except Exception as error:
                raise AssertionError(f"{place}: {type(error).__name__}: {error}") from error
        if block.expected is not None:
            assert matches(block.expected, printed), (
                f"{place}: the page shows\n{block.expected}\nnot\n{printed}"
            )
    CHECKS.get(_name(page), lambda folder: None)(folder)


def _own_data(folder):
    for name in ("translation", "reviews", "text"):
        assert (folder / f"windows-{name}.png").read_bytes().startswith(b"\x89PNG")


CHECKS = {"start/your-own-data.md": _own_data}


def test_blocks_know_their_output_and_their_reason():
    text = (
        "```python\nprint(1)\n```\n\n```text\n1\n```\n\nwords\n\n```text\nnot an output\n```\n\n"
        "<!-- illustration: no network -->\n```sh\ncurl x\n```\n"
        "<!-- test -->\n```sh\npytest\n```\n```yaml\na: 1\n```\n"
    )
    assert blocks(text) == [
        Block(1, "python", "print(1)\n", "", "1\n"),
        Block(16, "sh", "curl x\n", "no network"),
        Block(20, "sh", "pytest\n", "the gate runs it"),
    ]


def test_outputs_must_match():
    assert matches("a\n…\nz\n", "a\nb\nc\nz\n")
    assert matches("a\n…\nz\n", "a\nz")
    assert matches("took … s\n", "took 1.5 s\n")
    assert not matches("a\nz\n", "a\nb\nz\n")
    assert not matches("a (1)\n", "a 1\n")


def test_a_page_that_shows_another_output_or_another_program_fails():
    with pytest.raises(AssertionError, match="the page shows"):
        run_block(Block(1, "console", "$ diffwindow --version\ndiffwindow 0.0.0\n"), {}, ())
    with pytest.raises(ValueError, match="mark it as an illustration"):
        run_command(["curl", "x"], ())
    with pytest.raises(AssertionError, match="exit 2"):
        run_command(["diffwindow", "describe", "nothing"], ())


def test_commands_are_joined_and_comments_left_out():
    assert commands("# one\ndiffwindow a \\\n  b  # two\n") == [["diffwindow", "a", "b"]]
