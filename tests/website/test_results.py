"""The figures of README and the results pages are those of the committed reports."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GAIN = re.compile(r"^\| [^|]+ \| `[^`]+` \| [+-]\d.*\|$", re.MULTILINE)


@pytest.fixture(scope="module")
def rows():
    """The summary table, from the reports."""
    spec = importlib.util.spec_from_file_location("summary", ROOT / "docs/results/summary.py")
    summary = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(summary)
    return [summary.row(gain) for gain in summary.gains()]


@pytest.mark.parametrize("page", ["README.md", "docs/results/when-windows-help.md"])
def test_a_page_shows_rows_of_the_reports(page, rows):
    shown = GAIN.findall((ROOT / page).read_text(encoding="utf-8"))
    assert len(shown) >= 5
    assert [row for row in shown if row not in rows] == []


def test_the_page_of_all_gains_shows_every_row_of_the_reports(rows):
    page = (ROOT / "docs/results/all-gains.md").read_text(encoding="utf-8")
    assert [row for row in rows if row not in page] == []
