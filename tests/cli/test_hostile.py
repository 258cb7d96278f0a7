"""Input that would hang or take all memory ends in one sentence instead."""

import gzip
import json
import os
import sys

import pytest

from diffwindow.cli import main
from diffwindow.cli.errors import report_errors, shorten
from diffwindow.data.lines import MAX_LINE, MAX_WORD, Audit, text_lines
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.decoding import Decoding
from diffwindow.models.translator import TranslatorConfig
from diffwindow.training.overrides import resolve


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """Call the command line in a folder of its own; give the one sentence it refuses with."""
    monkeypatch.delenv("DIFFWINDOW_DATA", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["diffwindow", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        err = capsys.readouterr().err
        assert (stop.value.code, err.count("\n")) == (2, 1), err
        assert len(err) < 600
        return err

    return call


@pytest.mark.parametrize(("text", "sentence"), [
    ("train: &t\n  lr: *t\n", "not nested so deep"),
    ("train: " + "[" * 1000 + "]" * 1000, "not nested so deep"),
    ("train: 2001-99-99", "train='2001-99-99': Input should be"),
    ("preset: agreement\ntrain: {lr: " + "x" * 100_000 + "}", "train.lr='xxx"),
])  # fmt: skip
def test_odd_yaml_is_refused_in_a_sentence(refused, tmp_path, text, sentence):
    (tmp_path / "a.yaml").write_text(text)
    err = refused("train", "a.yaml")
    assert "a.yaml" in err
    assert sentence in err


def test_a_full_stdout_is_named(capsys):
    with open("/dev/full", "w") as full, pytest.raises(SystemExit), report_errors():
        os.write(full.fileno(), b"results")
    assert capsys.readouterr().err == "diffwindow: stdout: No space left on device\n"


def test_a_long_override_is_shortened():
    with pytest.raises(ValueError, match=r"^train.lr=x{31}…: Input"):
        resolve("agreement", ["train.lr=" + "x" * 1_000_000])


@pytest.mark.parametrize(
    "setting", ["encoder_layers=20000", "embed_dim=1000000000000", "ffn_dim=1" + "0" * 30]
)
def test_absurd_sizes_are_refused(refused, setting):
    assert "less than or equal to" in refused("train", "reorder", f"model.{setting}")
    name, _, value = setting.partition("=")
    with pytest.raises(ValueError, match=name):
        TranslatorConfig(**{"vocab_size": 10, name: int(value)})


def test_a_pipe_is_no_corpus(refused, tmp_path):
    for name in ("pipe", "pipe.gz", "pipe.yaml"):
        os.mkfifo(tmp_path / name)
    for name in ("pipe", "pipe.gz"):
        assert f"{name} is not a regular file" in refused("prepare", "--text", name, "--out", "store")
    (tmp_path / "text").write_text("a b\n")
    assert "not a regular file" in refused("prepare", "--text", "text", "--tokenizer", "pipe", "--out", "s")
    assert "not a regular file" in refused("train", "pipe.yaml")


@pytest.mark.parametrize(("line", "problem"), [
    (b"x" * (MAX_WORD + 1), "a word of more than 10,000 characters"),
    (b"x " * (MAX_LINE // 2) + b"x", "a line of more than 1,000,000 bytes"),
    (b"x " * (2 * MAX_LINE), "a line of more than 1,000,000 bytes"),
])  # fmt: skip
def test_long_lines_and_words_are_bad_rows(refused, tmp_path, line, problem):
    with gzip.open(tmp_path / "text.gz", "wb", 1) as file:
        file.write(b"one\n" + line + b"\ntwo\n")
    err = refused("prepare", "--text", "text.gz", "--out", "store")
    assert f"text.gz, line 2: {problem}; fix the file" in err
    audit = Audit(skip_bad=True)
    assert list(text_lines(tmp_path / "text.gz", audit)) == [(1, "one"), (3, "two")]
    assert audit.skipped == {problem: 1}


def test_lines_at_the_bounds_are_read(tmp_path):
    words = ["w" * MAX_WORD, "x " * (MAX_LINE // 2 - 1) + "xy", "ä" * MAX_WORD]
    for end in ("\n", "\r\n"):
        (tmp_path / "text").write_bytes(end.join(words).encode())
        assert [text for _, text in text_lines(tmp_path / "text", Audit())] == words


def test_a_line_without_end_takes_little_memory(tmp_path):
    import tracemalloc

    with gzip.open(tmp_path / "text.gz", "wb", 1) as file:
        for _ in range(30):
            file.write(b"x" * MAX_LINE)
    tracemalloc.start()
    try:
        assert list(text_lines(tmp_path / "text.gz", Audit(skip_bad=True))) == []
        assert tracemalloc.get_traced_memory()[1] < 10 * MAX_LINE
    finally:
        tracemalloc.stop()


def test_searches_are_bounded():
    with pytest.raises(ValueError, match="beam=1,000,000 is not between 1 and 1,000"):
        Decoding(beam=1_000_000)
    with pytest.raises(ValueError, match="n_best=1,000,000 is not between 1 and 10,000"):
        Decoding(n_best=1_000_000, temperature=1.0)
    with pytest.raises(ValueError, match="max_new_tokens=1,000,000,000 is not between"):
        Decoding(max_new_tokens=10**9)


def test_a_tokenizer_with_ids_beyond_its_vocabulary_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    Tokenizer.train_words(["a b c"]).save(path)
    content = json.loads(path.read_text())
    content["model"]["vocab"]["c"] = 10**9
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="it has the id 1,000,000,000 in a vocabulary of 7"):
        Tokenizer.load(path)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_no_memory_is_said(capsys, error):
    with pytest.raises(SystemExit), report_errors():
        raise error
    assert capsys.readouterr().err.startswith("diffwindow: out of memory;")


def test_other_errors_of_ours_are_not_hidden():
    with pytest.raises(RuntimeError, match="ours"), report_errors():
        raise RuntimeError("ours")


def test_messages_are_one_short_line():
    assert shorten("a\nb\n  c") == "a b c"
    assert len(shorten("x" * 10**6)) <= 501
