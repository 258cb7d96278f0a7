"""The figures of README and the results pages are those of the committed reports."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GAIN = re.compile(r"^\| [^|]+ \| `[^`]+` \| [+-]\d.*\|$", re.MULTILINE)


def load_summary():
    """The script of the summary, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("summary", ROOT / "docs/results/summary.py")
    summary = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(summary)
    return summary


def test_pages_show_rows_of_the_reports():
    # one test, since the rows take seconds to compute
    summary = load_summary()
    rows = [summary.row(gain) for gain in summary.gains()]
    for page in ("README.md", "docs/results/when-windows-help.md"):
        shown = GAIN.findall((ROOT / page).read_text(encoding="utf-8"))
        assert len(shown) >= 5
        assert [row for row in shown if row not in rows] == []
    page = (ROOT / "docs/results/all-gains.md").read_text(encoding="utf-8")
    assert [row for row in rows if row not in page] == []


def test_the_page_says_what_windows_save_in_perplexity():
    page = (ROOT / "docs/results/when-windows-help.md").read_text(encoding="utf-8")
    savings = load_summary().savings()
    assert len(savings) == 3
    assert [one for one in savings if one not in page] == []
