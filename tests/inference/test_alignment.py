"""Word alignments from attention and windows made by hand, and their error rate."""

import numpy as np
import pytest

import diffwindow
from diffwindow.data.synthetic import reorder
from diffwindow.inference import alignment
from diffwindow.inference.alignment import alignment_error_rate
from diffwindow.tasks.model_folder import ModelFolder
from diffwindow.view.trace import AttentionTrace, LayerMaps
from samples.model_folders import save_model

SOURCE, WRITTEN = ["un@@", "lock", "doors", "</s>"], ["Tü@@", "ren", "öffnen", "</s>"]


def layer(number, weights, window=None):
    arrays = [None if x is None else np.array(x, np.float32)[None] for x in (weights, window)]
    return LayerMaps("Cr", number, "AW", "translation", "source", *arrays)


@pytest.fixture
def translator(tmp_path, monkeypatch):
    """A translator whose cross-attention is written by hand: "doors" is "Türen", "unlock" is "öffnen"."""
    # the token with the highest weight is "lock", but the end of the source is no word
    last = [[0.1, 0.3, 0.5, 0.1], [0.2, 0.3, 0.5, 0.0], [0.3, 0.3, 0.4, 0.0], [0.0, 0.0, 0.0, 1.0]]
    first = [[0.0, 0.0, 0.1, 0.9]] * 4
    window = [[1.0, 0.0, 0.4, 1.0], [0.0, 0.0, 0.4, 1.0], [1.0, 1.0, 0.9, 1.0], [0.0, 0.0, 0.0, 1.0]]
    trace = AttentionTrace(
        [layer(1, first, window), layer(2, last)], {"source": SOURCE, "translation": WRITTEN}
    )
    monkeypatch.setattr(alignment, "trace_example", lambda *_: trace)
    return ModelFolder.read(save_model(tmp_path / "translator", "translator"))


def test_a_target_word_is_linked_to_the_source_word_that_gets_most_attention(translator):
    # subwords of a source word add up: "unlock" gets 0.3 + 0.3 for "öffnen", "doors" 0.4
    assert alignment.align_pair(translator, "unlock doors", "Türen öffnen") == [(1, 0), (0, 1)]
    assert alignment.align_pair(translator, "unlock doors", "Türen öffnen", layer=1) == [(1, 0), (1, 1)]
    assert alignment.align_pair(translator, "", "Türen") == []


def test_a_window_is_averaged_over_the_subwords_of_a_word(translator):
    # for "Türen", M is 0.25 on average at "unlock" and 0.4 at "doors"
    links = alignment.align_pair(translator, "unlock doors", "Türen öffnen", by="window")
    assert links == [(1, 0), (0, 1)]
    with pytest.raises(ValueError, match=r"by window need .*: layer 2 has none; it is in layers: 1"):
        alignment.align_pair(translator, "unlock doors", "Türen öffnen", by="window", layer=2)
    with pytest.raises(ValueError, match="did you mean 'window'"):
        alignment.align_pair(translator, "a", "b", by="windows")


def test_the_error_rate_counts_possible_links_once():
    found = [[(0, 0), (1, 1), (2, 2)], []]
    sure, possible = [[(0, 0)], [(0, 0)]], [[(0, 0), (1, 1)], [(0, 0)]]
    # |A| = 3, |S| = 2, one sure hit and two possible ones
    assert alignment_error_rate(found, sure, possible) == pytest.approx(1 - (1 + 2) / (3 + 2))
    truth = [example.links for example in reorder(20)]
    assert alignment_error_rate(truth, truth) == 0.0
    with pytest.raises(ValueError, match="there are no links"):
        alignment_error_rate([[]], [[]])


def test_a_model_aligns_real_texts_word_by_word(tmp_path):
    model = diffwindow.load(save_model(tmp_path / "translator", "translator"), device="cpu")
    for by in ("attention", "window"):
        (links,) = model.align([("my lamp fell .", "the old keys")], by=by)
        assert [target for _, target in links] == [0, 1, 2]
        assert {source for source, _ in links} <= set(range(4))
