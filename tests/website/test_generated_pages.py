"""The generated pages hold everything that the code has."""

from pathlib import Path
from typing import Annotated, Literal

import pytest

from diffwindow.notation import KINDS, OPTIONS
from diffwindow.training.config import TrainConfig
from website import generate, laboratory

REFERENCE = Path(generate.__file__).parents[1] / "docs/reference"


def test_the_committed_pages_are_those_of_the_code():
    for name, text in generate.reference_pages().items():
        committed = (REFERENCE / name).read_text(encoding="utf-8")
        assert committed == text, f"{name} is older than the code: python -m website.generate"


def test_the_laboratory_shows_what_was_measured():
    assert laboratory.PAGE.read_text(encoding="utf-8") == laboratory.page()


def test_every_setting_has_a_row_with_its_default():
    page = generate.settings_page()
    for name in TrainConfig.model_fields:
        assert f"| `train.{name}` |" in page
    assert "| `train.betas` | 2 numbers | `[0.9, 0.98]` | Of Adam. |" in page
    # a field that a class inherits keeps its meaning, with the default of the class
    classifier = page.partition("## model of a classifier")[2].partition("\n## ")[0]
    assert "| `model.embed_dim` | whole number | `128` | Width of the model. |" in classifier


def test_the_settings_page_lists_what_an_override_may_set():
    page = generate.settings_page()
    keys = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `model.")}
    assert {"model.embed_dim", "model.encoder_layers", "model.num_layers"} <= keys
    assert keys.isdisjoint({"model.model", "model.attention", "model.vocab_size", "model.num_classes"})


def test_a_setting_without_a_docstring_is_an_error():
    class Undocumented(TrainConfig):
        surprise: int = 1

    with pytest.raises(ValueError, match=r"Undocumented.surprise has no docstring; write one below it"):
        generate._meaning(Undocumented, "surprise")


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Annotated[int, "at least 1"], "whole number"),
        (Literal["a", "b"] | None, "`a`, `b`, null"),
        (dict[str, int], "a section"),
        (bool, "true or false"),
    ],
)
def test_types_are_described_in_words(annotation, words):
    assert generate._spoken(annotation) == words


def test_every_command_and_option_is_there():
    page = generate.command_line_page()
    for command in ("train", "evaluate", "data get", "reproduce", "view"):
        assert f"\n## diffwindow {command}\n" in page
    assert "`--virtual-gpus" in page
    assert "`--help`" not in page


def test_the_notation_page_lists_kinds_and_options():
    page = generate.notation_page()
    for name, kind in KINDS.items():
        assert f"| {kind.meaning} |" in page
        assert name in page
    assert all(f"| `{name}` | {option.meaning} |" in page for name, option in OPTIONS.items())


def test_a_bar_in_a_cell_is_escaped():
    assert generate.table(("a",), [("x|y",)]).splitlines()[-1] == "| x\\|y |"
