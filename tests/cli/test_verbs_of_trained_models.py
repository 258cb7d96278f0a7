"""`evaluate`, `translate`, `generate` and `demo`, as people call them, on runs of the real training loop."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from diffwindow.data.own_files import plain_text
from diffwindow.data.prepare import prepare
from diffwindow.data.recipe import Recipe, Vocabulary
from diffwindow.data.synthetic import reorder
from diffwindow.decoding import generate as generating
from diffwindow.special_tokens import BOS, EOS
from diffwindow.tasks.trained_model import Trained
from diffwindow.training.overrides import resolve
from diffwindow.training.train import train

SMALL = ["model.embed_dim=32", "model.ffn_dim=64", "model.num_heads=2", "train.warmup=0", "train.lr=5e-3"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train a translator, two classifiers and a language model for a moment each."""
    root = tmp_path_factory.mktemp("runs")
    text = root / "text.txt"
    text.write_text("the keys to the cabinet are here .\nthe key is old .\n" * 20)
    split = plain_text(text)
    splits = {"train": split, "valid": split, "test": split}
    prepare(Recipe("text", "lm", splits, Vocabulary("words", None)), root / "text")
    asked = {
        "translator": ("reorder", ["data.rows=200", "model.encoder_layers=1", "model.decoder_layers=1"], 4),
        "plain": ("agreement", ["data.rows=200"], 3),
        "windows": ("agreement", ["data.rows=200", "attention=Enc(AW)"], 3),
        "language": ("wikitext2", [f"data.path={root / 'text'}", "model.num_layers=1"], 30),
    }
    for name, (preset, own, updates) in asked.items():
        settings = [*SMALL, *own, f"train.max_updates={updates}", "train.max_tokens=512"]
        train(resolve(preset, settings), root / name)
    return root


def test_evaluate_prints_figures_with_their_signatures(run, runs):
    code, out, _ = run("evaluate", runs / "translator")
    assert code == 0
    for way in ("bleu ", "bleu_tokenized", "bleu_compound_split", "chrf"):
        (line,) = [line for line in out.splitlines() if line.strip().startswith(way)]
        assert "version:" in line


def test_evaluate_as_json_on_a_split(run, runs):
    code, out, _ = run("evaluate", runs / "windows", "--split", "valid", "--json")
    report = json.loads(out)
    assert (code, report["split"], report["attention"]) == (0, "valid", "Enc(AW)")
    assert report["metrics"]["accuracy"]["total"] == 20
    assert {fit["layer"] for fit in report["metrics"]["windows"]} == {1, 2}


def test_evaluate_compares_two_runs_on_the_same_examples(run, runs):
    code, out, _ = run(
        "evaluate", runs / "windows", "--against", runs / "plain", "--data", runs / "windows/data"
    )
    assert code == 0
    assert "difference, first minus second" in out
    assert ", p " in out
    code, out, _ = run("evaluate", runs / "translator", "--against", runs / "translator", "--json")
    comparison = json.loads(out)["against"]["comparison"]
    assert comparison["bleu"]["p"] == 1.0
    assert "bs:1000" in comparison["bleu"]["signature"]


def test_a_model_folder_alone_works_with_a_corpus(run, runs):
    code, out, _ = run("evaluate", runs / "language/model", "--data", runs / "text")
    assert code == 0
    assert "perplexity" in out
    code, _, err = run("evaluate", runs / "language/model")
    assert code == 2
    assert "is not a run folder, so its corpus is unknown; give one with --data DIR" in err


def test_an_average_is_evaluated_as_its_run_is(run, runs, tmp_path):
    code, _, err = run("average", runs / "windows", "--last", "1", "--out", tmp_path / "averaged")
    assert code == 0, err
    reports = [
        json.loads(run("evaluate", folder, "--data", runs / "windows/data", "--json")[1])["metrics"]
        for folder in (tmp_path / "averaged", runs / "windows")
    ]
    assert reports[0] == reports[1]


def test_mistakes_are_one_sentence_and_code_2(run, runs):
    for arguments in (
        ("evaluate", runs / "nowhere"),
        ("evaluate", runs / "plain", "--data", runs / "translator/data"),
        ("evaluate", runs / "plain", "--split", "tset"),
        ("evaluate", runs / "plain", "--device", "tpu7"),
        ("translate", runs / "plain"),
        ("translate", runs / "translator", "--nbest", "9"),
        ("translate", runs / "translator", "--input", runs / "nothing.txt"),
        ("generate", runs / "plain"),
        ("generate", runs / "language", "--temperature", "0", "--samples", "2"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), arguments
        assert err.startswith("diffwindow: "), arguments
        assert err.count("\n") == 1, err


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
    arguments = ["--beam", "4", "--nbest", "3", "--length-penalty", "1"]
    _, out, _ = run("translate", runs / "translator", *arguments, typed=source)
    ranked = [line.split(" ||| ") for line in out.splitlines()]
    assert [number for number, *_ in ranked] == ["1", "1", "1"]
    scores = [float(score) for *_, score in ranked]
    assert scores == sorted(scores, reverse=True)
    _, _, err = run("translate", runs / "translator", "--max-length", "4", "--beam", "1", typed=source)
    assert "line 1 is long: translated in" in err


def test_translate_takes_ensembles_samples_and_constraints(run, runs):
    text = "the young doctor found the lamp .\n"
    arguments = ["--temperature", "1", "--top-k", "5", "--nbest", "4", "--seed", "3", "--min-length", "2"]
    code, out, _ = run("translate", runs / "translator", runs / "translator", *arguments, typed=text)
    assert code == 0
    assert len(out.splitlines()) == 4
    assert run("translate", runs / "translator", runs / "translator", *arguments, typed=text)[1] == out
    assert all(len(line.split(" ||| ")[1].split()) >= 2 for line in out.splitlines())
    _, out, _ = run("translate", runs / "translator", "--no-repeat-ngram", "1", typed=text)
    assert len(set(out.split())) == len(out.split())


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


def test_generate_continues_the_prompt_the_same_for_a_seed(run, runs):
    arguments = ["generate", runs / "language", "--prompt", "the keys", "--samples", "3", "--max-tokens", "8"]
    code, out, _ = run(*arguments, "--top-k", "5", "--top-p", "0.9", "--seed", "7")
    assert code == 0
    assert len(out.splitlines()) == 3
    assert all(line.startswith("the keys") for line in out.splitlines())
    assert run(*arguments, "--top-k", "5", "--top-p", "0.9", "--seed", "7")[1] == out
    _, greedy, _ = run("generate", runs / "language", "--temperature", "0", "--max-tokens", "3")
    assert len(greedy.splitlines()) == 1


def test_generation_reads_and_writes_as_the_corpus_was_prepared(runs, monkeypatch):
    trained = Trained.load(runs / "language")
    start, opened = generating.continuation_start, []

    def recording(model, prompt, *, limit):
        opened.append(prompt[0].tolist())
        return start(model, prompt, limit=limit)

    monkeypatch.setattr(generating, "continuation_start", recording)
    greedy = generating.Sampling(temperature=0, max_tokens=1)
    arguments = (trained.model, trained.tokenizer, "the keys.", greedy)
    generating.continuations(*arguments)
    (text,) = generating.continuations(*arguments, moses="en", running_text=True)
    assert text.startswith("the keys.")
    assert opened == [
        [BOS, *trained.tokenizer.encode("the keys.")],
        [EOS, *trained.tokenizer.encode("the keys .")],
    ]


DOCUMENTED = [
    line
    for line in (Path(__file__).parents[2] / "docs/guides/evaluation.md").read_text().splitlines()
    if line.startswith("diffwindow ") and line != "diffwindow demo"
]


@pytest.mark.parametrize("line", DOCUMENTED)
def test_documented_commands_run(run, runs, tmp_path, monkeypatch, line):
    text = "the young doctor found the lamp ."
    (tmp_path / "runs").symlink_to(runs)
    (tmp_path / "text.txt").write_text(f"{text}\n")
    monkeypatch.chdir(tmp_path)
    _, *arguments = shlex.split(line.partition(" < ")[0])
    code, out, err = run(*arguments, typed=text)
    assert code == 0, err
    assert out or (tmp_path / "translated.txt").read_text()


def test_demo_compares_three_attentions_and_draws(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("demo", "--updates", "2", "--rows", "100")
    assert code == 0
    table = json.loads((tmp_path / "demo/demo.json").read_text())["table"]
    assert [row["attention"] for row in table] == ["Global", "Enc(MW)", "Enc(AW)"]
    assert all(row["attention"] in out for row in table)
    # after two updates nobody has learned anything, and the demo says so
    assert out.startswith("This seed shows no difference: the window model is right in ")
    assert max(map(len, out.split("figure:")[0].splitlines())) <= 80
    assert "figure: demo/windows.png" in out
    assert (tmp_path / "demo/windows.png").read_bytes().startswith(b"\x89PNG")
    assert "Enc(AW): 2 updates" in err
    # done runs are not trained again, and say the same
    again = run("demo", "--updates", "2", "--rows", "100")[1]
    assert again.splitlines()[:8] == out.splitlines()[:8]
    code, _, err = run("demo", "--updates", "2", "--rows", "200")
    assert (code, err) == (2, "diffwindow: demo/data has 100 sentences, not 200; choose another --out\n")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "task.json"])
def test_a_flipped_bit_in_a_model_is_told(runs, run, tmp_path, name):
    folder = shutil.copytree(runs / "plain/model", tmp_path / "model")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    code, out, err = run("evaluate", folder, "--data", runs / "plain/data")
    assert (code, out) == (2, "")
    assert err == f"diffwindow: {folder / name} is damaged\n"
