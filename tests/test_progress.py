import sys

import pytest

from diffwindow import progress as module
from diffwindow.progress import show_progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    times = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: times[0])
    return times


def test_lines_are_printed_every_ten_seconds_with_the_time_left(capsys, clock):
    with show_progress() as progress:
        for second in range(41):
            clock[0] = float(second)
            progress("reading", second / 80)
    assert capsys.readouterr().err.splitlines() == [
        "reading: 12%, 70 s left",
        "reading: 25%, 60 s left",
        "reading: 38%, 50 s left",
        "reading: 50%, 40 s left",
    ]


def test_a_stage_that_goes_on_in_the_middle_counts_only_what_was_done_since(capsys, clock):
    with show_progress() as progress:
        for second in range(0, 21, 10):
            clock[0] = float(second)
            progress("training", 0.5 + second / 1000)
        clock[0] = 30.0
        progress("reading", 0.0)
    assert capsys.readouterr().err.splitlines() == [
        "training: 51%, 490 s left",
        "training: 52%, 480 s left",
        "reading: 0%",
    ]


def test_a_detail_and_a_note_are_lines_at_once(capsys, clock):
    with show_progress() as progress:
        progress("training", 0.1, "1/10  loss 3.0")
        progress.note("saved")
    assert capsys.readouterr().err == "training: 1/10  loss 3.0\nsaved\n"


def test_nothing_is_shown_unless_wanted(capsys):
    with show_progress(wanted=False) as progress:
        progress("training", 1.0, "10/10")
        progress.note("saved")
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_bar_per_stage(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    with show_progress() as progress:
        progress("training", 0.5, "5/10  loss 3.0")
        progress("validation", 1.0)
        progress("validation", 0.25)
        progress.note("update 5: [bold] loss 1")
        progress("validation", 1.0)
    shown = capsys.readouterr().err
    assert "update 5: [bold] loss 1" in shown
    assert "50 %" in shown
    assert "5/10  loss 3.0" in shown
    assert "validation" in shown
