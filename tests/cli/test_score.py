"""`score`, as people call it."""

import json

import pytest

import diffwindow
from samples.model_folders import save_model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    made = {kind: save_model(root / kind, kind) for kind in ("translator", "language", "classifier")}
    return made | {"second": save_model(root / "second", "translator", seed=1)}


def test_sentences_have_log_p_and_a_number_of_tokens(run, folders):
    texts = ["the old keys", "", "my lamp fell ."]
    code, out, _ = run("score", folders["language"], typed="\n".join(texts).encode())
    expected = diffwindow.load(folders["language"]).score(texts)
    assert code == 0
    assert out.splitlines() == [f"{one.log_prob:.4f}\t{len(one.tokens)}" for one in expected]
    _, out, _ = run("score", folders["language"], "--tokens", typed=b"my lamp")
    words = [cell.rpartition(":")[0] for cell in out.rstrip().split("\t")[2].split(" ")]
    assert words == ["my", "lamp", "</s>"]


def test_translations_are_scored_alone_and_by_an_ensemble(run, folders):
    typed = b"my lamp fell .\tthe boats\n"
    paths = [folders["translator"], folders["second"]]
    for runs in (paths[:1], paths):
        code, out, _ = run("score", *runs, "--json", typed=typed)
        (expected,) = diffwindow.load(runs).score([("my lamp fell .", "the boats")])
        assert (code, json.loads(out)["log_prob"]) == (0, expected.log_prob)


def test_pairs_give_the_accuracy(run, folders, tmp_path):
    model = diffwindow.load(folders["language"])
    ranked = sorted(
        ["the keys", "my lamp fell .", "the sailors found the boats ."],
        key=lambda text: -model.score([text])[0].log_prob,
    )
    file = tmp_path / "pairs.tsv"
    # right, wrong, and a tie, which is not right
    file.write_text(f"{ranked[0]}\t{ranked[1]}\n{ranked[2]}\t{ranked[0]}\n{ranked[0]}\t{ranked[0]}\n")
    code, out, _ = run("score", folders["language"], "--pairs", file)
    assert (code, out) == (0, "33.33 % (1 of 3 pairs)\n")
    _, out, _ = run("score", folders["language"], "--pairs", file, "--json")
    assert json.loads(out) == {"accuracy": 1 / 3, "correct": 1, "total": 3}


def test_mistakes_are_one_sentence(run, folders, tmp_path):
    empty = tmp_path / "empty.tsv"
    empty.write_text("")
    cases = [
        ([folders["classifier"]], "holds a classifier, which does not score texts"),
        (
            [folders["translator"]],
            "line 1: 'no tab' has 1 columns, not 2: source and target, with tabs between",
        ),
        ([folders["language"], "--pairs", empty], "is empty; it needs a good and a bad sentence per line"),
        ([folders["language"], "--pairs", empty, "--tokens"], "leave --input, --output and --tokens out"),
    ]
    for arguments, message in cases:
        code, out, err = run("score", *arguments, typed=b"no tab\n")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err
