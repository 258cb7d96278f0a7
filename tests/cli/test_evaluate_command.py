"""`evaluate` on trained models, on new files, on raw files, and on the output of other systems."""

import json
import shutil

import pytest

TINY = [
    "model.embed_dim=16",
    "model.ffn_dim=16",
    "model.num_heads=2",
    "train.max_updates=1",
    "train.final=last",
]
ENGLISH = "A dog runs .\nThe keys are here .\n"
SYSTEM = ("--hypothesis", "train.fr", "--reference", "val.fr")
FRENCH = "Un chien court .\nLes clés sont ici .\n"


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """A folder as that of Multi30k, with two sentences in each file."""
    folder = tmp_path_factory.mktemp("raw")
    for name in ("train", "val", "test_2016_flickr"):
        (folder / f"{name}.en").write_text(ENGLISH)
        (folder / f"{name}.fr").write_text(FRENCH)
    return folder


def test_french_by_name_from_raw_files(run, raw, tmp_path):
    assert run("train", "multi30k-en-fr", *TINY, "--data", raw, "--out", tmp_path / "run")[0] == 0
    _, own, _ = run("evaluate", tmp_path / "run", "--json")
    metrics = json.loads(own)["metrics"]
    assert metrics["bleu_tokenized"]["signature"].startswith("moses:fr,")
    for files in (("--data", raw), ("--source", raw / "val.en", "--reference", raw / "val.fr")):
        code, again, _ = run("evaluate", tmp_path / "run", *files, "--json")
        assert (code, json.loads(again)["metrics"]) == (0, metrics)
    code, _, err = run("evaluate", tmp_path / "run", "--data", raw, "--split", "mscoco")
    assert (code, "has no split 'mscoco'; it has train, valid, test" in err) == (2, True)


def test_the_output_of_any_system(run, raw):
    files = ("--hypothesis", raw / "train.fr", "--reference", raw / "val.fr")
    code, out, _ = run("evaluate", *files, "--target-lang", "fr", "--json")
    metrics = json.loads(out)["metrics"]
    assert (code, metrics["bleu"]["value"]) == (0, pytest.approx(100.0))
    assert metrics["bleu_tokenized"]["signature"].startswith("moses:fr,")
    _, out, _ = run("evaluate", *files)
    assert "target language unknown: no BLEU on Moses tokens; name it with --target-lang" in out
    piped = ("--hypothesis", "-", "--reference", raw / "val.fr")
    code, out, _ = run("evaluate", *piped, "--target-lang", "fr", "--json", typed=FRENCH)
    assert (code, json.loads(out)["metrics"]) == (0, metrics)
    assert json.loads(out)["hypothesis"] == "stdin"


@pytest.mark.parametrize(("words", "sentence"), [
    ((), "give the folder of a run, or --hypothesis with --reference"),
    (("--hypothesis", "train.fr"), "--hypothesis goes with --reference"),
    (("--hypothesis", "train.fr", "--reference", "short.fr"), "has 2 lines and short.fr has 1"),
    (("--hypothesis", "train.fr", "--reference", "val.fr", "--target-lang", "French"), "'French' of the"),
    ((*SYSTEM, "--against", "."), "--hypothesis goes with --reference and --target-lang alone"),
    ((*SYSTEM, "--beam", "8"), "--hypothesis goes with --reference and --target-lang alone"),
    ((*SYSTEM, "--length-penalty", "0"), "--hypothesis goes with --reference and --target-lang alone"),
    ((*SYSTEM, "--window-rule", "none"), "--hypothesis goes with --reference and --target-lang alone"),
    ((*SYSTEM, "--split", "valid"), "--hypothesis goes with --reference and --target-lang alone"),
    ((".", "--text-column", "body"), "go with --labels, not with the corpus of the run"),
    ((".", "--label-column", "2", "--text", "train.en"), "go with --labels, not with --text"),
    ((".", "--split", "valid", "--text", "train.en"), "--split goes with --data or the corpus of the run"),
    (("--hypothesis", "-", "--reference", "-"), "are both -, which is stdin; give a file for one"),
    ((".", "--text", "-"), "--text - is stdin, but a test set is read more than once; save it to a file"),
    ((".", "--source", "train.en"), "--source and --reference go together"),
    ((".", "--text", "train.en", "--labels", "train.en"), "--labels and --text are two test sets; give one"),
])  # fmt: skip
def test_mistakes_are_one_sentence(run, raw, monkeypatch, words, sentence):
    monkeypatch.chdir(raw)
    (raw / "short.fr").write_text("Un chien .\n")
    code, _, err = run("evaluate", *words)
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err


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


@pytest.mark.parametrize("option", [("--beam", "4"), ("--length-penalty", "1"), ("--target-lang", "de")])
def test_options_of_a_search_are_for_translators(run, runs, option):
    code, out, err = run("evaluate", runs / "windows", *option)
    assert (code, out) == (2, "")
    assert f"are for translators, which {runs / 'windows'} is not" in err


def test_evaluate_compares_two_runs_on_the_same_examples(run, runs):
    code, out, _ = run(
        "evaluate", runs / "windows", "--against", runs / "plain", "--data", runs / "windows/data"
    )
    assert code == 0
    assert "difference, first minus second; ratio, first over second\n" in out
    assert ", p " in out
    code, out, _ = run("evaluate", runs / "translator", "--against", runs / "translator", "--json")
    comparison = json.loads(out)["against"]["comparison"]
    assert comparison["bleu"]["p"] == 1.0
    assert "bs:1000" in comparison["bleu"]["signature"]
    code, out, _ = run("evaluate", runs / "language", "--against", runs / "language")
    assert (code, out.splitlines()[-1]) == (
        0,
        "  perplexity           ratio 1.0000 (95 % interval 1.0000-1.0000)",
    )


@pytest.mark.usefixtures("unchecked")
def test_windows_at_test_time_follow_a_rule(run, runs):
    code, out, _ = run("evaluate", runs / "windows", "--window-rule", "none", "--against", runs / "windows")
    assert code == 0
    assert out.startswith(f"{runs / 'windows'}: Enc(AW), ")
    assert "split test, window rule none\n" in out
    code, out, _ = run("evaluate", runs / "windows", "--window-rule", "argmax", "--json")
    report = json.loads(out)
    assert (code, report["window_rule"]) == (0, "argmax")
    assert report["metrics"]["windows"][0]["overlap"] is not None
    for folder, rule, sentence in (
        ("windows", "haf", "did you mean 'half'?"),
        ("plain", "argmax", "is for models with windows, and this one has none"),
    ):
        code, out, err = run("evaluate", runs / folder, "--window-rule", rule)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert sentence in err


def test_a_model_folder_alone_works_with_a_corpus(run, runs):
    code, out, _ = run("evaluate", runs / "language/model", "--data", runs / "text")
    assert code == 0
    assert "perplexity" in out
    code, _, err = run("evaluate", runs / "language/model")
    assert code == 2
    assert "is not a run folder, so its corpus is unknown; give one: data=DIR, or --data DIR" in err
    code, _, err = run("evaluate", runs / "text")
    assert (code, "is neither a run folder nor a model folder" in err) == (2, True)


def test_an_average_is_evaluated_as_its_run_is(run, runs, tmp_path):
    code, _, err = run("average", runs / "windows", "--last", "1", "--out", tmp_path / "averaged")
    assert code == 0, err
    reports = [
        json.loads(run("evaluate", folder, "--data", runs / "windows/data", "--json")[1])["metrics"]
        for folder in (tmp_path / "averaged", runs / "windows")
    ]
    assert reports[0] == reports[1]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "task.json"])
def test_a_flipped_bit_in_a_model_is_told(runs, run, tmp_path, name):
    folder = shutil.copytree(runs / "plain/model", tmp_path / "model")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    code, out, err = run("evaluate", folder, "--data", runs / "plain/data")
    assert (code, out) == (2, "")
    assert err == f"diffwindow: {folder / name} is damaged\n"


@pytest.mark.parametrize("what", ["text", "list of labels"])
def test_a_replaced_corpus_is_told(runs, run, tmp_path, what):
    copy = shutil.copytree(runs / "plain", tmp_path / "run")
    manifest = copy / "data/manifest.json"
    written = json.loads(manifest.read_text())
    if what == "text":
        # a corpus that the model can read, but was not trained on
        shutil.rmtree(copy / "data")
        own = copy / "model/tokenizer.json"
        words = (
            "prepare",
            "agreement",
            "--rows",
            200,
            "--seed",
            5,
            "--tokenizer",
            own,
            "--out",
            copy / "data",
        )
        assert run(*words)[0] == 0
    else:
        written["settings"]["labels"].reverse()
        manifest.write_text(json.dumps(written))
    code, _, err = run("evaluate", copy)
    assert code == 2
    assert (
        f"{copy / 'data'} has another {what} than the corpus that {copy} was trained on; put that back" in err
    )
    # asked for by name, it is only another test set
    assert run("evaluate", copy, "--data", copy / "data")[0] == 0


def test_a_classifier_has_f1_and_a_confusion_matrix(run, runs, tmp_path):
    picture = tmp_path / "confusion.png"
    code, out, _ = run("evaluate", runs / "plain", "--confusion", picture)
    assert (code, picture.read_bytes()[:4]) == (0, b"\x89PNG")
    lines = [line.split() for line in out.splitlines()]
    (recall,) = [line for line in lines if line[:2] == ["label", "plural"]]
    assert (recall[3:5], recall[-6], recall[-3]) == (["%", "recall"], "precision", "F1")
    at = lines.index(["right,", "predicted", "singular", "plural"])
    assert sum(int(count) for row in lines[at + 1 : at + 3] for count in row[1:]) == 20
    for folder, path, sentence in (
        ("translator", picture, "--confusion is for classifiers, and "),
        ("plain", tmp_path / "confusion.doc", "does not end in .png, .svg or .pdf"),
    ):
        code, out, err = run("evaluate", runs / folder, "--confusion", path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert sentence in err
