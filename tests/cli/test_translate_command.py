"""`translate` as people call it."""

import pytest

from diffwindow.data.synthetic import reorder
from diffwindow.decoding.translate import Output
from diffwindow.inference.model import LoadedModel


def test_translate_keeps_lines_and_order_from_stdin_and_files(run, runs, tmp_path):
    lines = [example.source for example in reorder(6, part="test")]
    lines.insert(3, "")
    text = "\n".join(lines)
    code, out, err = run("translate", runs / "translator", "--beam", "2", typed=text)
    assert code == 0
    translated = out.split("\n")
    assert len(translated) == 7 + 1
    assert translated[3] == ""
    assert "7 lines" in err
    (tmp_path / "in.txt").write_text(text)
    arguments = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt", "--beam", "2"]
    code, printed, _ = run("translate", runs / "translator", *arguments)
    assert (code, printed) == (0, "")
    assert (tmp_path / "out.txt").read_text() == out
    # order is that of the input: the reverse gives the reverse
    _, reverse, _ = run("translate", runs / "translator", "--beam", "2", typed="\n".join(lines[::-1]))
    assert reverse.splitlines() == out.splitlines()[::-1]


def test_translate_gives_n_best_with_scores_and_cuts_long_lines(run, runs):
    source = next(reorder(1, part="test")).source
    arguments = ["--beam", "4", "--n-best", "3", "--length-penalty", "1"]
    _, out, _ = run("translate", runs / "translator", *arguments, typed=source)
    ranked = [line.split(" ||| ") for line in out.splitlines()]
    assert [number for number, *_ in ranked] == ["1", "1", "1"]
    scores = [float(score) for *_, score in ranked]
    assert scores == sorted(scores, reverse=True)
    _, _, err = run("translate", runs / "translator", "--max-source-tokens", "4", "--beam", "1", typed=source)
    assert "line 1 is long: translated in" in err


def test_translate_in_eight_bits(run, runs):
    source = next(reorder(1, part="test")).source
    arguments = ["translate", runs / "translator", "--n-best", "2"]
    (code, full, _), (_, rounded, _) = run(*arguments, typed=source), run(*arguments, "--int8", typed=source)
    assert code == 0
    scores = [[float(line.split(" ||| ")[2]) for line in out.splitlines()] for out in (full, rounded)]
    assert scores[1] == pytest.approx(scores[0], abs=0.2)
    assert scores[1] != scores[0]
    code, _, err = run(*arguments, "--int8", "--device", "cuda", typed=source)
    assert (code, "'int8' is for CPUs, and the device is 'cuda'" in err) == (2, True)


def test_options_of_samples_need_a_temperature(run, runs):
    for option in (("--top-k", "5"), ("--top-p", "0.5"), ("--seed", "3")):
        code, _, err = run("translate", runs / "translator", *option, typed="the boat .\n")
        assert (code, "are for samples; add a --temperature above 0" in err) == (2, True)


def test_translate_takes_ensembles_samples_and_constraints(run, runs):
    text = "the young doctor found the lamp .\n"
    arguments = [
        "--temperature",
        "1",
        "--top-k",
        "5",
        "--n-best",
        "4",
        "--seed",
        "3",
        "--min-new-tokens",
        "2",
    ]
    code, out, _ = run("translate", runs / "translator", runs / "translator", *arguments, typed=text)
    assert code == 0
    assert len(out.splitlines()) == 4
    assert run("translate", runs / "translator", runs / "translator", *arguments, typed=text)[1] == out
    assert all(len(line.split(" ||| ")[1].split()) >= 2 for line in out.splitlines())
    _, out, _ = run("translate", runs / "translator", "--no-repeat-ngram", "1", typed=text)
    assert len(set(out.split())) == len(out.split())


@pytest.mark.parametrize("options", [[], ["--n-best", "2"]])
def test_a_line_end_in_a_translation_does_not_shift_the_lines(run, runs, monkeypatch, options):
    outputs = [[Output("a\nb", -1.0, 1)], [Output("c", -1.0, 1)]]
    monkeypatch.setattr(LoadedModel, "translations", lambda _, texts, *rest: outputs[: len(texts)])
    lines = run("translate", runs / "translator", *options, typed="x\ny\n")[1].splitlines()
    assert lines == (["1 ||| a b ||| -1.0000", "2 ||| c ||| -1.0000"] if options else ["a b", "c"])


def test_interactive_answers_each_line(run, runs):
    code, out, err = run(
        "translate", runs / "translator", "--interactive", "--beam", "1", typed="the boat .\n\n"
    )
    assert (code, out.count("\n"), err) == (0, 2, "")


def test_a_failed_translation_leaves_the_old_file(run, runs, tmp_path):
    (tmp_path / "out.txt").write_text("old")
    code, _, err = run(
        "translate", runs / "translator", "--output", tmp_path / "out.txt", typed="ok\n\udcff\n"
    )
    assert (code, err) == (2, "diffwindow: stdin, line 2: not UTF-8 at byte 0\n")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.txt", "old")]


def test_interrupted_translation_exits_with_130(run, runs, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("diffwindow.decoding.translate.translate", interrupt)
    code, _, err = run(
        "translate", runs / "translator", "--output", tmp_path / "out.txt", typed="the boat .\n"
    )
    assert (code, err) == (130, f"diffwindow: interrupted; {tmp_path / 'out.txt'} was not written\n")
    assert list(tmp_path.iterdir()) == []


def test_alignments_have_a_line_per_line_and_a_link_per_word(run, runs, tmp_path):
    lines = "the young doctor found the lamp .\n\nmy boat fell .\n"
    links = tmp_path / "links.txt"
    code, out, _ = run("translate", runs / "translator", "--alignments", links, typed=lines)
    assert code == 0
    counts = [len(line.split()) for line in out.splitlines()]
    assert [len(line.split()) for line in links.read_text().splitlines()] == counts
    for words, sentence in (
        (("--n-best", "2"), "--alignments is for one translation per line; leave --n-best out"),
        (
            ("--align-by", "window"),
            "alignments by window need cross-attention with it: it is in layers: none",
        ),
    ):
        code, out, err = run("translate", runs / "translator", "--alignments", links, *words, typed=lines)
        assert (code, out) == (2, "")
        assert sentence in err
    code, _, err = run("translate", runs / "translator", "--align-by", "window", typed=lines)
    assert (code, err.endswith("add --alignments FILE\n")) == (2, True)
