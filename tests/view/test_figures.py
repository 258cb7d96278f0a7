import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import ft2font
from matplotlib.font_manager import fontManager

from diffwindow.view.figures import Panel, Span, attention_figure, choose_fonts, save_figure, span_figure
from samples.processes import small_files

KEYS = ["the", "keys", "to", "the", "cabinet"]


def figure():
    window = Panel("window", np.tri(5), outline=(4, 1, 4))
    return attention_figure(
        [[window, Panel("attention", np.full((5, 5), 0.2))]],
        queries=KEYS,
        keys=KEYS,
        names=("query", "word"),
        title="one head",
    )


def test_panels_show_their_values_with_tokens_on_both_axes():
    first, second, *_ = figure().axes
    assert [label.get_text() for label in first.get_xticklabels()] == KEYS
    assert [label.get_text() for label in first.get_yticklabels()] == KEYS
    assert [label.get_text() for label in second.get_xticklabels()] == KEYS
    assert (first.get_ylabel(), first.get_xlabel(), second.get_xlabel()) == ("query", "word", "word")
    assert (first.get_title(), second.get_title()) == ("window", "attention")
    np.testing.assert_array_equal(first.images[0].get_array(), np.tri(5))
    assert first.images[0].get_clim() == (0.0, 1.0)
    assert second.images[0].get_clim() == (0.0, 0.2)


@pytest.mark.parametrize("kind", ["pdf", "png"])
def test_a_full_disk_is_named(tmp_path, kind):
    with pytest.raises(OSError, match="too large") as error, small_files():
        save_figure(figure(), tmp_path / f"a.{kind}")
    assert error.value.filename == str(tmp_path / f"a.{kind}")
    assert not list(tmp_path.iterdir())


def test_control_characters_are_drawn_as_escapes(tmp_path):
    drawn = attention_figure([[Panel("window", np.eye(2))]], queries=["a\x05", "b"], keys=["a\x05", "\n"])
    save_figure(drawn, tmp_path / "a.png")
    assert [label.get_text() for label in drawn.axes[0].get_xticklabels()] == ["a\\x05", "\\n"]


def test_the_frame_holds_its_keys():
    (frame,) = figure().axes[0].patches
    assert (frame.get_x(), frame.get_y(), frame.get_width(), frame.get_height()) == (0.5, 3.5, 4, 1)


def test_a_matrix_that_does_not_fit_its_tokens_is_refused():
    with pytest.raises(ValueError, match=r"'window' has shape \(2, 3\), but there are 5 queries and 5 keys"):
        attention_figure([[Panel("window", np.zeros((2, 3)))]], queries=KEYS, keys=KEYS)


def test_an_empty_window_draws_without_a_warning(tmp_path):
    empty = Panel("nothing", np.zeros((5, 5)))
    save_figure(attention_figure([[empty]], queries=KEYS, keys=KEYS), tmp_path / "empty.png")


@pytest.mark.parametrize("name", ["window.png", "window.svg", "window.pdf"])
def test_figures_are_written_whole_in_the_format_of_their_name(tmp_path, name):
    save_figure(figure(), tmp_path / name)
    begin = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[name[-3:]]
    assert (tmp_path / name).read_bytes().startswith(begin)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match="does not end in a format"):
        save_figure(figure(), tmp_path / "window.doc")


def test_letters_that_the_usual_font_lacks_come_from_another_or_are_escaped(tmp_path, monkeypatch):
    panel = Panel("窗", np.eye(2))
    with pytest.warns(UserWarning, match=r"no font on this machine has 字窗, so the figure shows escapes"):
        figure = attention_figure([[panel]], queries=["字", "b\n"], keys=["a", "b"])
    assert figure.axes[0].get_title() == r"\u7a97"
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [r"\u5b57", r"b\n"]
    # without a warning now, which would be an error
    monkeypatch.setattr(fontManager, "ttflist", [*fontManager.ttflist])
    fontManager.addfont(font_with(tmp_path / "tiny.ttf", "窗字"))
    figure = attention_figure([[panel]], queries=["字", "b"], keys=["a", "b"])
    assert figure.axes[0].get_title() == "窗"
    save_figure(figure, tmp_path / "figure.png")


def font_with(path, letters):
    """Make a font of empty squares for some letters."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 500), (500, 500), (500, 0)):
        pen.lineTo(corner)
    pen.closePath()
    names = [".notdef", *(f"letter{number}" for number in range(len(letters)))]
    font = FontBuilder(1000, isTTF=True)
    font.setupGlyphOrder(names)
    font.setupCharacterMap(dict(zip(map(ord, letters), names[1:], strict=True)))
    font.setupGlyf(dict.fromkeys(names, pen.glyph()))
    font.setupHorizontalMetrics(dict.fromkeys(names, (600, 0)))
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": "Tiny", "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(path)
    return path


def test_a_bar_runs_from_start_to_end_and_roles_are_apart():
    spans = [Span("Enc", 1, 1, -2.0, 1.0), Span("Enc", 2, 1, 0.5, 0.5), Span("Cr", 1, 1, -1.0, 0.0)]
    encoder, cross = span_figure(spans, title="$x$").axes
    assert [label.get_text() for label in encoder.get_yticklabels()] == ["1.1", "2.1"]
    assert [(bar.get_x(), bar.get_width()) for bar in encoder.patches] == [(-2.0, 3.0), (0.5, 0.0)]
    assert cross.get_xlabel() == "keys from the diagonal"


def test_a_matplotlib_that_reverses_arabic_is_told(monkeypatch):
    monkeypatch.delattr(ft2font, "__libraqm_version__", raising=False)
    with pytest.warns(UserWarning, match="draws words that run from right to left in reverse; install 3.11"):
        choose_fonts(["a", "\N{HEBREW LETTER ALEF}"])
    choose_fonts(["a"])
