import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from diffwindow.metrics.bleu import bleu_terms
from diffwindow.metrics.outcomes import (
    accuracy_of,
    accuracy_terms,
    bleu_of,
    load_outcomes,
    save_outcomes,
)

REFERENCES = ["the old man reads a book .", "two dogs run in the green park", "she is here", "a b c d e f"]
OUTPUTS = [
    REFERENCES,
    ["the old man reads books .", "two dogs run in a green park today", "she was here", "a b c d"],
    # no 4-gram matches, then neither 3-grams do: both are smoothed
    ["the old man", "a green two dogs", "is she here", "f e d a b"],
    ["the", "dogs", "x", "c a"],
    ["nothing", "matches", "at", "all of this is wrong"],
    ["", "", "", ""],
]


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_bleu_from_totals_is_sacrebleu_s(outputs):
    found = bleu_of(bleu_terms(outputs, REFERENCES, language="de").sum(0).astype(float))
    assert float(found) == pytest.approx(BLEU().corpus_score(outputs, [REFERENCES]).score, abs=1e-9)


def test_bleu_is_computed_for_many_totals_at_once():
    totals = np.stack([bleu_terms(outputs, REFERENCES, language="de").sum(0) for outputs in OUTPUTS]).astype(
        float
    )
    np.testing.assert_array_equal(bleu_of(totals), [bleu_of(row) for row in totals])


def test_accuracy_is_the_share_of_right_answers():
    assert (
        float(accuracy_of(accuracy_terms(np.array([True, False, True, True])).sum(0).astype(float))) == 75.0
    )


def test_outcomes_come_back_as_they_were(tmp_path):
    written = {"Enc(AW)/1": np.eye(3, 2, dtype=np.int8), "Global+ffn_dim=704/2": np.ones((4, 2), np.float32)}
    save_outcomes(tmp_path / "outcomes.npz", written)
    found = load_outcomes(tmp_path / "outcomes.npz")
    assert found.keys() == written.keys()
    for name, terms in written.items():
        np.testing.assert_array_equal(found[name], terms)
        assert found[name].dtype == terms.dtype


@pytest.mark.parametrize("content", [b"", b"PK", b"garbage", "objects", "overwritten"])
def test_damaged_outcomes_are_an_error_that_names_the_file(tmp_path, content):
    path = tmp_path / "outcomes.npz"
    if content == "objects":
        np.savez(path, terms=np.array([{"code": "would run"}], dtype=object))
    elif content == "overwritten":
        save_outcomes(path, {"terms": np.random.default_rng(0).integers(0, 9, (500, 2))})
        whole = path.read_bytes()
        path.write_bytes(whole[:200] + b"\xff" * 15 + whole[215:])
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"outcomes\.npz is damaged"):
        load_outcomes(path)
