import base64
import re
import zlib

import numpy as np
import pytest

from diffwindow.view import payload
from diffwindow.view.page import as_script_text, page_html
from diffwindow.view.payload import encode, page_data, quantise, spread
from diffwindow.view.trace import AttentionTrace, LayerMaps
from samples.traces import WORDS, random_layer, ruled_traces, small_trace


@pytest.mark.parametrize("bits", [8, 16])
def test_quantised_values_are_within_half_a_step(bits):
    x = np.random.default_rng(0).random((3, 5, 7)) * 2
    found = quantise(x, bits)
    assert found.error <= x.max() / (2**bits - 1) / 2 * (1 + 1e-9)
    assert found.error == np.abs(found.values - x).max()
    stored = np.frombuffer(zlib.decompress(base64.b64decode(found.data["data"])), f"<u{bits // 8}")
    np.testing.assert_array_equal(stored * (found.data["scale"] / (2**bits - 1)), found.values.ravel())


def test_nothing_but_zeros_is_stored_as_zeros():
    assert quantise(np.zeros((2, 2)), 8).values.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert quantise(np.zeros((2, 0)), 16).error == 0.0


@pytest.mark.parametrize(("bits", "bound"), [(8, 4 / 255), (16, 4 / 65535)])
def test_windows_from_quantised_sums_do_not_drift_along_the_keys(bits, bound):
    long = AttentionTrace([random_layer(queries=4, keys=200, sides=("target", "source"))])
    # four sums of at most one, each wrong by half a step, and the products of those errors
    assert 0 < encode(long, bits).window_error <= bound


def test_a_window_with_a_tolerance_is_that_of_the_page():
    cut = AttentionTrace([random_layer(queries=4, keys=20, window_tolerance=0.1)])
    assert (cut.layers[0].window == 0).any()
    # a value near the tolerance may fall on the other side, and is then wrong by the tolerance
    assert encode(cut, 16).window_error <= 0.1 + 4 / 65535
    assert encode(cut, 16).layers[0]["window_tolerance"] == 0.1


def test_sinks_are_those_of_the_page():
    # a decoder's query sees no sinks after itself
    layer = random_layer("Dec", queries=6, keys=6, sinks=3)
    assert layer.window[0, :, :3].tolist()[1:] == [[1.0, 1.0, layer.window[0, 1, 2]]] + [[1.0] * 3] * 4
    trace = AttentionTrace([layer])
    assert encode(trace, 16).window_error <= 4 / 65535
    assert encode(trace, 16).layers[0]["sinks"] == 3


def test_rules_bring_their_windows_and_go_first_from_a_page_that_is_too_large(monkeypatch):
    trace = small_trace()
    rules = ruled_traces(trace)
    data = page_data(trace, rules=rules)
    assert [one["label"] for one in data["runs"][0]["rules"]] == ["argmax", "half", "joint", "none"]
    for one in data["runs"][0]["rules"]:
        assert [layer["window_rule"] for layer in one["layers"]] == [one["label"]] * 2
        assert all("window" in layer for layer in one["layers"])
    assert "window" not in data["runs"][0]["snapshots"][0]["layers"][0]
    monkeypatch.setattr(payload, "PAGE_BUDGET", 2 * encode(trace, 16).size)
    small = page_data(trace, rules=rules)
    assert small["runs"][0]["rules"] == []
    assert any("Windows at test time are left out" in notice for notice in small["notices"])


def test_a_page_of_six_layers_of_eight_heads_has_less_than_two_megabytes():
    layers = [random_layer(layer=n, heads=8, queries=60, keys=60) for n in range(1, 7)]
    data = page_data(AttentionTrace(layers))
    assert {layer["weights"]["bits"] for layer in data["runs"][0]["snapshots"][0]["layers"]} == {16}
    assert len(page_html(data).encode()) < 2_000_000


def test_a_translator_of_three_roles_is_stored_in_8_bits_below_two_megabytes():
    layers = []
    for role, sides in (("Enc", ("source",) * 2), ("Cr", ("target", "source")), ("Dec", ("target",) * 2)):
        for number in range(1, 7):
            maps = random_layer(role, number, heads=8, queries=60, keys=60, sides=sides)
            # the paper's windows are in the first half of the layers
            plain = LayerMaps(role, number, "Global", *sides, maps.weights)
            layers.append(maps if number <= 3 else plain)
    data = page_data(AttentionTrace(layers))
    assert data["notices"][0].startswith("Values are stored in 8 bits; the largest error of an attention")
    assert len(page_html(data).encode()) < 2_000_000


def test_checkpoints_beyond_the_page_are_left_out_with_a_notice(monkeypatch):
    trace = small_trace()
    size = encode(trace, 16).size
    monkeypatch.setattr(payload, "PAGE_BUDGET", int(4.5 * size))
    data = page_data(trace, checkpoints={f"update {n}": small_trace(seed=n) for n in range(1, 8)})
    labels = [snapshot["label"] for snapshot in data["runs"][0]["snapshots"]]
    assert labels == ["update 1", "update 4", "update 7", "final model"]
    assert data["notices"][1].startswith("3 of 7 checkpoints are here, evenly spaced")
    monkeypatch.setattr(payload, "PAGE_BUDGET", size // 2)
    with pytest.raises(ValueError, match="take a shorter text"):
        page_data(trace)


def test_spread_keeps_the_ends():
    names = [str(number) for number in range(30)]
    assert (spread(names, 5)[0], spread(names, 5)[-1], len(set(spread(names, 5)))) == ("0", "29", 5)
    assert (spread(names, 0), spread(names, 99)) == ([], names)


def test_a_checkpoint_of_another_sentence_is_refused():
    other = AttentionTrace([random_layer(queries=3, keys=3)])
    with pytest.raises(ValueError, match="update 5 has read another sentence"):
        page_data(small_trace(), checkpoints={"update 5": other})


def test_an_empty_trace_has_no_page():
    with pytest.raises(ValueError, match="this trace is empty"):
        page_data(AttentionTrace())


def test_no_token_can_leave_the_data_or_become_markup():
    hostile = ["</script><script>alert(1)</script>", "<!--", "%style%", "\u2028", "' \"&", "]]>"]
    trace = small_trace(title="<img src=x onerror=alert(1)>").with_tokens(hostile)
    page = trace.to_html()
    assert page.count("</script>") == 2
    assert "<img src=x" not in page
    assert "<!--" not in page
    assert "\u2028" not in page
    inside = page.split('id="data">')[1].split("</script>")[0]
    assert "%style%" in inside


def test_the_policy_allows_the_page_alone():
    page = small_trace().to_html()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy
    # nothing is loaded: the only addresses are names of XML languages
    assert set(re.findall(r"https?://[^\s\"'`]*", page)) == {"http://www.w3.org/2000/svg"}
    live = page_html({"title": "", "runs": [], "notices": [], "live": {"label": "A sentence"}})
    assert "connect-src 'self'" in live


def test_script_text_is_json_without_an_end_tag():
    assert as_script_text({"a": "</script>\u2029"}) == '{"a":"\\u003c/script>\\u2029"}'


def test_words_are_numbered_in_the_page():
    data = page_data(small_trace())
    assert data["runs"][0]["tokens"]["text"] == {"labels": WORDS, "words": [0, 1, 2, 3, 4, 4]}
