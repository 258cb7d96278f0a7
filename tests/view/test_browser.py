"""The page in Chromium, opened from a file."""

import struct

import numpy as np
import pytest
import torch

from diffwindow import WindowAttention
from diffwindow.functional import soft_window
from diffwindow.view.capture import capture
from diffwindow.view.trace import AttentionTrace
from samples.browser import axe_script, expect, launched, opened
from samples.traces import WORDS, random_layer, ruled_traces, small_trace

HOSTILE = ["<b>bold</b>", "</script>", "&amp;", "מפתח", "ال@@", "מפתחות"]


@pytest.fixture(scope="module")
def browser():
    yield from launched()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write the pages of a run against another with checkpoints, of hostile tokens, and of a translator."""
    folder = tmp_path_factory.mktemp("pages")
    trace = small_trace()
    checkpoints = {f"update {n}": small_trace(seed=n) for n in (10, 20)}
    page = trace.to_html(against=small_trace(label="Global", seed=5), checkpoints=checkpoints)
    (folder / "run.html").write_text(page, encoding="utf-8")
    hostile = small_trace(title="<i>x</i> & مفتاح", label='"<u>"').with_tokens(HOSTILE)
    hostile.draw(folder / "hostile.html")
    cross = [
        random_layer("Enc", 1, sides=("source", "source")),
        random_layer("Cr", 1, queries=4, sides=("target", "source"), segment_size=2),
        random_layer("Dec", 1, queries=4, keys=4, sides=("target", "target")),
    ]
    AttentionTrace(cross, title="a translation").draw(folder / "cross.html")
    return folder


@pytest.fixture
def page(browser, files):
    page = opened(browser, (files / "run.html").as_uri(), color_scheme="light")
    yield page
    assert page.problems == []
    page.context.close()


def text(page, selector):
    return page.inner_text(selector)


def selected_query(page):
    return text(page, "#queries [aria-selected=true]")


def shown_head(page):
    """Read the layer and the head that the page shows, counted from 1."""
    layer, head = text(page, "#head-name").split("layer ")[1].split(" · ")[0].split(", head ")
    return int(layer), int(head)


def table(page):
    """Read the table of the query: rows of key, window, attention, left, right and the second run."""
    page.evaluate("document.getElementById('values').open = true")
    return [row.split("\t") for row in page.inner_text("#table tbody").split("\n")]


def column(page, index):
    return np.array([float(row[index].replace("<", "")) for row in table(page)])


def test_the_page_starts_at_the_gold_query_and_shows_all_maps(page):
    assert selected_query(page) == "inet"
    assert page.locator("#maps svg").count() == 3
    assert text(page, "#runs").split("\n") == ["Enc(AW)", "against Global"]
    assert page.locator("#bracket [data-part=gold]").count() == 1
    assert "16 bits; the largest error" in text(page, "#notices")
    layer, head = shown_head(page)
    maps = small_trace()["Enc", layer]
    np.testing.assert_allclose(column(page, 1), maps.window[head - 1, 5], atol=1e-3)
    np.testing.assert_allclose(column(page, 2), maps.weights[head - 1, 5], atol=1e-3)
    np.testing.assert_allclose(column(page, 3), maps.phi_left[head - 1, 5], atol=1e-3)
    np.testing.assert_allclose(
        column(page, 5), small_trace(seed=5)["Enc", layer].weights.mean(0)[5], atol=1e-3
    )


def test_hovering_a_query_moves_its_bracket_and_all_crosshairs(page):
    before = page.get_attribute("#bracket [data-part=window]", "d")
    page.hover("#query-1")
    assert selected_query(page) == "keys"
    assert page.get_attribute("#bracket [data-part=window]", "d") != before
    rows = page.eval_on_selector_all(
        "#maps [data-cross=row]", "all => all.map((one) => one.getAttribute('y'))"
    )
    assert len(rows) == 3
    assert len(set(rows)) == 1


def test_hovering_a_cell_selects_its_query_and_key_in_all_maps(page):
    box = page.locator("#maps svg").nth(1).bounding_box()
    geometry = page.eval_on_selector_all(
        "#maps [data-row='2'], #maps [data-column='3']",
        "all => all.slice(0, 2).map((one) => one.getBoundingClientRect().toJSON())",
    )
    row, across = geometry
    first = page.locator("#maps svg").nth(0).bounding_box()
    x = box["x"] + across["x"] + across["width"] / 2 - first["x"]
    page.mouse.move(x, row["y"] + row["height"] / 2)
    assert selected_query(page) == "to"
    assert text(page, "#cell").startswith("to → the: window ")
    shown = page.eval_on_selector_all(
        "#maps [data-cross=column]", "all => all.map((one) => one.getAttribute('visibility'))"
    )
    assert shown == ["visible"] * 3


def test_every_key_of_a_long_text_is_in_its_map(browser, tmp_path):
    layer = random_layer("Cr", heads=1, queries=3, keys=700, sides=("target", "source"))
    AttentionTrace([layer]).draw(tmp_path / "long.html")
    page = opened(browser, (tmp_path / "long.html").as_uri())
    shown = page.eval_on_selector_all(
        "#maps svg",
        """all => all.map((one) => {
            const { x, width } = one.querySelector("g > rect").getBBox();
            return [width, x + width, one.viewBox.baseVal.width];
        })""",
    )
    assert len(shown) == 2
    assert all(cells >= 700 and end <= width for cells, end, width in shown)
    # the page does not scroll: each map does
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.context.close()


def test_a_second_run_of_other_tokens_has_no_crosshair(browser, tmp_path):
    other = small_trace(label="Global", seed=5).with_tokens(["a", "b", "c", "d", "e", "f"])
    page_text = small_trace().to_html(against=other)
    (tmp_path / "page.html").write_text(page_text, encoding="utf-8")
    page = opened(browser, (tmp_path / "page.html").as_uri())
    shown = page.eval_on_selector_all(
        "#maps [data-cross=row]", "all => all.map((one) => one.getAttribute('visibility'))"
    )
    assert shown == ["visible", "visible", "hidden"]
    page.context.close()


def test_arrow_keys_belong_to_what_has_the_focus(page):
    before = selected_query(page)
    page.keyboard.press("Home")
    assert selected_query(page) == before
    page.focus("#show-window")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "show-attention"
    page.focus("#maps select")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Head of the second run"
    page.fill("#segment", "2")
    page.click("#reset")
    assert page.evaluate("document.activeElement.id") == "segment"
    assert selected_query(page) == before


def test_the_keyboard_moves_query_head_and_layer(page):
    page.focus("#queries")
    page.keyboard.press("Home")
    assert selected_query(page) == "the"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert (selected_query(page), page.get_attribute("#queries", "aria-activedescendant")) == (
        "keys",
        "query-1",
    )
    names = set()
    for _ in range(4):
        page.keyboard.press("ArrowDown")
        names.add(text(page, "#head-name"))
    assert len(names) == 4
    page.keyboard.press("PageUp")
    assert "layer 1" in text(page, "#head-name")
    page.keyboard.press("PageDown")
    assert "layer 2" in text(page, "#head-name")
    assert selected_query(page) == "keys"


def test_segments_and_expectation_recompute_the_window(page):
    layer, head = shown_head(page)
    maps = small_trace()["Enc", layer]
    phi = [torch.from_numpy(x[head - 1, 5]) for x in (maps.phi_left, maps.phi_right)]
    page.fill("#segment", "3")
    page.check("#expectation-exact", force=True)
    expected = soft_window(*phi, segment_size=3, expectation="exact")
    np.testing.assert_allclose(column(page, 1), expected, atol=1e-3)
    assert "the model was trained with segment size 1 and the paper window" in text(page, "#recomputed")
    page.click("#reset")
    np.testing.assert_allclose(column(page, 1), maps.window[head - 1, 5], atol=1e-3)
    assert page.is_hidden("#recomputed")


def test_a_switch_shows_windows_as_they_are_at_test_time(browser, tmp_path):
    trace = small_trace()
    path = tmp_path / "rules.html"
    path.write_text(trace.to_html(rules=ruled_traces(trace)))
    page = opened(browser, path.as_uri(), color_scheme="light")
    for rule in ("argmax", "half", "joint", "none", "soft"):
        page.check(f"#rule-{rule}", force=True)
        window = set(column(page, 1))
        assert (window <= {0.0, 1.0}) == (rule != "soft")
        assert page.is_hidden("#soft-settings") == (rule != "soft")
    assert text(page, "#rule-text") == "As it was trained."
    assert page.problems == []


def test_windows_of_phrases_are_those_of_the_model(browser, tmp_path):
    torch.manual_seed(0)
    attention, x = WindowAttention(16, num_heads=2, phrases="given"), torch.randn(1, 6, 16)
    gates = torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.0]])
    with capture(attention, tokens=WORDS) as trace:
        attention(x, x, x, gates=gates)
    trace.draw(tmp_path / "phrases.html")
    page = opened(browser, (tmp_path / "phrases.html").as_uri(), color_scheme="light")
    _, head = shown_head(page)
    window = trace["Enc", 1].window[head - 1, -1]
    # two phrases of three keys, each as a whole
    assert len(np.unique(window.round(5))) == 2
    np.testing.assert_allclose(column(page, 1), window, atol=1e-3)
    assert page.is_hidden("#soft-settings")
    assert page.problems == []


def test_heads_sort_by_their_measures(page):
    for name, descending in (("width", False), ("entropy", False), ("distance", False), ("overlap", True)):
        page.select_option("#sort", name)
        values = [float(one.split()[0]) for one in page.locator(".thumbnail small").all_inner_texts()]
        assert len(values) == 4
        assert values == sorted(values, reverse=descending)
    page.click(".thumbnail >> nth=3")
    assert page.get_attribute(".thumbnail >> nth=3", "aria-pressed") == "true"
    label = page.get_attribute(".thumbnail >> nth=3", "aria-label").split(", ")
    assert text(page, "#head-name").startswith(f"Encoder, {label[1]}, {label[2]}")


def test_subwords_merge_into_words(page):
    before = column(page, 2)
    page.check("#merge")
    assert page.locator("#queries li").all_inner_texts() == ["the", "keys", "to", "the", "cabinet"]
    assert selected_query(page) == "cabinet"
    assert [row[0] for row in table(page)] == ["the", "keys", "to", "the", "cabinet"]
    page.uncheck("#merge")
    assert selected_query(page) == "cab@@"
    page.hover("#query-5")
    np.testing.assert_array_equal(column(page, 2), before)


def test_checkpoints_show_a_window_being_learned(page):
    final = column(page, 1)
    page.fill("#checkpoint", "0")
    assert text(page, "#checkpoint-label") == "update 10"
    assert np.abs(column(page, 1) - final).max() > 0.01
    page.click("#play")
    expect(page.locator("#checkpoint-label")).to_have_text("final model")
    np.testing.assert_array_equal(column(page, 1), final)


def test_a_click_on_a_key_makes_it_the_query(page):
    page.click("#bracket g[data-key='2']")
    assert selected_query(page) == "to"


def test_the_theme_changes_and_follows_the_system(browser, files, page):
    def background():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = background()
    page.click("#theme")
    assert background() != light
    dark = opened(browser, (files / "run.html").as_uri(), color_scheme="dark")
    assert dark.evaluate("document.documentElement.dataset.theme") == "dark"
    # ink on paper
    dark.emulate_media(media="print")
    assert dark.is_hidden("#settings")
    assert dark.pdf()[:4] == b"%PDF"
    assert dark.evaluate("document.documentElement.dataset.theme") == "dark"
    dark.context.close()


def test_pictures_are_saved_and_copied(browser, files):
    page = opened(
        browser, (files / "hostile.html").as_uri(), permissions=["clipboard-read", "clipboard-write"]
    )
    with page.expect_download() as saved:
        page.click("#save-png")
    content = saved.value.path().read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert content[:4] == b"\x89PNG"
    assert min(width, height) > 500
    with page.expect_download() as saved:
        page.click("#save-svg")
    drawn = saved.value.path().read_text(encoding="utf-8")
    assert drawn.startswith("<svg")
    assert "&lt;b&gt;bold" in drawn
    page.click("#copy-svg")
    expect(page.locator("#status")).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == drawn
    page.evaluate("document.getElementById('status').textContent = ''")
    page.click("#copy-png")
    expect(page.locator("#status")).to_have_text("Copied.")
    assert page.problems == []
    page.context.close()


def test_markup_and_right_to_left_text_stay_text(browser, files):
    page = opened(browser, (files / "hostile.html").as_uri())
    assert page.locator("#queries li").all_inner_texts() == HOSTILE
    assert text(page, "h1") == "<i>x</i> & مفتاح"
    assert page.locator("b, i, u").count() == 0
    page.hover("#query-3")
    # the word comes first although it is read from right to left, and the text goes on after it
    first, rest = page.evaluate(
        """[...document.getElementById("sentence").childNodes].slice(1, 3).map((node) => {
            const range = document.createRange();
            range.selectNode(node);
            const { left, right } = range.getClientRects()[0];
            return [node.textContent, left, right];
        })"""
    )
    assert (first[0], rest[0][:2]) == ("מפתח", "” ")
    assert first[2] <= rest[1] + 1
    assert page.locator("#cell bdi, #table caption bdi").count() > 0
    page.check("#merge")
    assert page.locator("#queries li").last.inner_text() == "ال" + "מפתחות"
    assert page.problems == []
    page.context.close()


def test_roles_of_a_translator(browser, files):
    page = opened(browser, (files / "cross.html").as_uri())
    page.check("#role-Cr", force=True)
    assert text(page, "#head-name").startswith("Cross-attention, layer 1")
    assert (text(page, "#query-name"), text(page, "#key-name")) == ("Query (target)", "looks at the source")
    assert page.locator("#queries li").count() == 4
    assert page.input_value("#segment") == "2"
    assert len(table(page)) == 6
    page.check("#role-Dec", force=True)
    assert len(table(page)) == 4
    assert page.problems == []
    page.context.close()


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_no_width_scrolls_sideways(browser, files, width):
    page = opened(browser, (files / "run.html").as_uri())
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_timeout(100)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.problems == []
    page.context.close()


def test_a_long_sentence_of_many_heads(browser, tmp_path):
    layers = [random_layer(layer=n, heads=8, queries=60, keys=60) for n in range(1, 7)]
    AttentionTrace(layers).draw(tmp_path / "long.html")
    page = opened(browser, (tmp_path / "long.html").as_uri())
    assert page.locator(".thumbnail").count() == 6 * 9
    page.fill("#segment", "5")
    page.select_option("#sort", "width")
    assert page.locator(".thumbnail").count() == 48
    assert page.problems == []
    page.context.close()


def test_a_notebook_frame_runs_in_its_sandbox(browser, tmp_path):
    (tmp_path / "cell.html").write_text(f"<!doctype html>{small_trace()._repr_html_()}", encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    page.goto((tmp_path / "cell.html").as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for()
    assert frame.locator("#maps svg").count() == 2
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["run.html", "cross.html"])
def test_axe_finds_nothing_serious(browser, files, name, scheme):
    script = axe_script()
    # the policy keeps out every script but the page's own, axe too
    page = opened(browser, (files / name).as_uri(), color_scheme=scheme, bypass_csp=True)
    page.evaluate("document.getElementById('values').open = true")
    page.evaluate(script)
    found = page.evaluate("axe.run().then(({ violations }) => violations)")
    serious = [
        (one["id"], [node["html"] for node in one["nodes"]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
    page.context.close()
