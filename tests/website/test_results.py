"""The figures of README and the results page are those of the committed reports."""

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


def test_the_readme_shows_rows_of_the_reports(rows):
    shown = GAIN.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(shown) >= 5
    assert [row for row in shown if row not in rows] == []


def test_the_results_page_shows_every_row_of_the_reports(rows):
    page = (ROOT / "docs/results/when-windows-help.md").read_text(encoding="utf-8")
    assert [row for row in rows if row not in page] == []
