import html
import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from diffwindow.view.trace import AttentionTrace, LayerMaps
from samples.traces import WORDS, random_layer, small_trace


def test_a_layer_is_found_by_role_and_number():
    trace = small_trace()
    assert trace["Enc", 2] is trace.layers[1]
    assert trace.roles == ["Enc"]
    with pytest.raises(KeyError, match="there is no layer Cr 1; this trace has Enc 1, Enc 2"):
        trace["Cr", 1]


def test_tokens_must_fit():
    with pytest.raises(ValueError, match="2 tokens for the 6 positions of 'text'"):
        small_trace().with_tokens(["a", "b"])
    with pytest.raises(ValueError, match="there is no side 'source'; this trace has 'text'"):
        small_trace().with_tokens({"source": WORDS})


def test_a_figure_has_window_attention_and_the_other_model():
    trace, other = small_trace(), small_trace(label="Global", seed=3)
    figure = trace.figure("Enc", 2, 1, against=other)
    window, ours, theirs = [axes for axes in figure.axes if axes.images and axes.get_title()]
    np.testing.assert_allclose(window.images[0].get_array(), trace["Enc", 2].window[1])
    np.testing.assert_allclose(ours.images[0].get_array(), trace["Enc", 2].weights[1])
    np.testing.assert_allclose(theirs.images[0].get_array(), other["Enc", 2].weights.mean(0))
    assert window.get_title() == "window, head 2"
    assert len(window.patches) == 1


def test_a_figure_of_all_heads_has_a_row_for_each():
    figure = small_trace().figure(head="all")
    titled = [axes.get_title().replace("\n", " ") for axes in figure.axes if axes.get_title()]
    assert titled == [
        "window, head 1", "attention of Enc(AW), head 1", "window, head 2", "attention of Enc(AW), head 2",
    ]  # fmt: skip


@pytest.mark.parametrize("heads", ["all", "mean"])
def test_titles_do_not_touch(heads):
    other = small_trace(label="Enc(AW)-Cr(AW,Seg)-Dec(MW)@1-3 of another run", seed=3)
    trace = small_trace(label="Enc(AW)-Cr(AW,Seg)-Dec(MW)@1-3 of this run", title="a long sentence " * 12)
    figure = trace.figure(head=heads, against=other)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    texts = [axes.title for axes in figure.axes if axes.get_title()] + [figure._suptitle]
    boxes = [text.get_window_extent(renderer) for text in texts]
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[number + 1 :])


def test_an_unknown_layer_or_head_is_told():
    with pytest.raises(ValueError, match="there is no layer 7 of Enc; this trace has Enc 1, Enc 2"):
        small_trace().figure("Enc", 7)
    with pytest.raises(ValueError, match="head=5 is not one of the 2 heads"):
        small_trace().figure(head=5)
    with pytest.raises(ValueError, match=r"the other model lacks .* there is no layer Enc 2"):
        small_trace().figure("Enc", 2, against=small_trace(layers=1))


def test_models_that_tokenise_differently_have_no_common_figure():
    other = AttentionTrace([random_layer(queries=4, keys=4)], label="other")
    with pytest.raises(ValueError, match="6 by 6 and 4 by 4 tokens; they need the same tokenizer"):
        small_trace().figure(against=other)


def test_dollar_signs_are_text(tmp_path):
    small_trace(title="$x$ and $").with_tokens(["$", "$y", "{", "\\", "%", "^_"]).draw(tmp_path / "w.png")


def test_a_pdf_embeds_its_fonts(tmp_path):
    small_trace().draw(tmp_path / "windows.pdf")
    content = (tmp_path / "windows.pdf").read_bytes()
    assert b"/FontFile2" in content
    assert b"/Subtype /Type3" not in content


def test_an_svg_needs_no_font(tmp_path):
    small_trace().draw(tmp_path / "windows.svg")
    assert "<text" not in (tmp_path / "windows.svg").read_text()


def test_a_page_is_written_by_its_name(tmp_path):
    small_trace().draw(tmp_path / "windows.html")
    assert (tmp_path / "windows.html").read_text().startswith("<!doctype html>")


def test_a_notebook_shows_the_page_in_a_sandbox():
    shown = small_trace(title='"quoted" <b>')._repr_html_()
    frame = re.fullmatch(
        r'<iframe sandbox="allow-scripts allow-downloads" srcdoc="([^"]*)" .*</iframe>', shown
    )
    assert html.unescape(frame[1]) == small_trace(title='"quoted" <b>').to_html()


def test_plain_attention_has_a_figure_and_a_page():
    weights = np.full((2, 3, 3), 1 / 3, np.float32)
    trace = AttentionTrace([LayerMaps("Enc", 1, "Global", "text", "text", weights)])
    assert len([axes for axes in trace.figure().axes if axes.get_title()]) == 1
    assert '"left"' not in trace.to_html().split('id="data">')[1].split("</script>")[0]
