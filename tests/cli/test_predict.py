"""`predict`, as people call it."""

import gzip
import json
import lzma

import pytest

from samples.model_folders import save_model


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "classifier", "classifier")


def test_a_line_has_the_best_label_and_every_probability(run, classifier):
    code, out, err = run("predict", classifier, typed=b"the old keys\n\nmy lamp fell .")
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 3
    for line in lines:
        best, *cells = line.split("\t")
        probabilities = {label: float(p) for label, p in (cell.split("=") for cell in cells)}
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert probabilities[best] == max(probabilities.values())
    assert err.startswith("3 lines")


def test_json_lines_say_the_same(run, classifier, tmp_path):
    (tmp_path / "in.txt").write_text("the old keys\nmy lamp fell .\n")
    _, table, _ = run("predict", classifier, "--input", tmp_path / "in.txt")
    code, out, _ = run(
        "predict", classifier, "--input", tmp_path / "in.txt", "--json", "--output", tmp_path / "o"
    )
    assert (code, out) == (0, "")
    records = [json.loads(line) for line in (tmp_path / "o").read_text().splitlines()]
    assert [record["label"] for record in records] == [line.split("\t")[0] for line in table.splitlines()]
    assert set(records[0]) == {"label", "probabilities"}


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed_input_is_read_and_damage_named(run, classifier, tmp_path, suffix, compress):
    path, content = tmp_path / f"in.txt{suffix}", b"the old keys\nmy lamp fell .\n"
    path.write_bytes(compress(content))
    assert run("predict", classifier, "--input", path)[:2] == run("predict", classifier, typed=content)[:2]
    path.write_bytes(compress(content)[:-3])
    code, _, err = run("predict", classifier, "--input", path)
    assert code == 2
    assert "the archive is truncated or damaged" in err


def test_mistakes_are_one_sentence(run, classifier, tmp_path):
    language = save_model(tmp_path / "language", "language")
    assert run("predict", language, typed=b"a")[0::2] == (
        2,
        f"diffwindow: {language} holds a language model, which does not predict labels\n",
    )
    code, out, err = run("predict", classifier, typed=b"good\n\xff\n")
    assert (code, out, err) == (2, "", "diffwindow: stdin, line 2: not UTF-8 at byte 0\n")
