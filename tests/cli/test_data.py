import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from unicodedata import normalize

import pytest

from diffwindow.cli import main
from diffwindow.cli.errors import WORKER_DIED
from diffwindow.data import encoding
from diffwindow.data.store import Store, read_manifest
from diffwindow.data.tokenizer import Tokenizer


@pytest.fixture
def run(monkeypatch, capsys):
    monkeypatch.delenv("DIFFWINDOW_DATA", raising=False)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["diffwindow", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return call


@pytest.fixture
def pair(tmp_path):
    (tmp_path / "a.en").write_text("one dog\ntwo dogs\n" * 50)
    (tmp_path / "a.de").write_text("ein Hund\nzwei Hunde\n" * 50)
    return ("--source", tmp_path / "a.en", "--target", tmp_path / "a.de", "--vocab-size", 280)


def test_prepares_a_generated_corpus(run, tmp_path):
    code, out, _ = run("prepare", "agreement", "--rows", 50, "--seed", 3, "--out", tmp_path / "store")
    assert code == 0
    assert "train: 50 rows" in out
    assert len(Store.open(tmp_path / "store").split("train")) == 50
    assert run("data", "check", tmp_path / "store")[0] == 0


def test_prepares_parallel_files(run, pair, tmp_path):
    extra = ("--valid-source", tmp_path / "a.en", "--valid-target", tmp_path / "a.de")
    code, out, _ = run("prepare", *pair, *extra, "--out", tmp_path / "store")
    assert code == 0
    assert "valid: 100 rows" in out
    store = Store.open(tmp_path / "store")
    assert store.tokenizer.decode(store.split("valid")[1]["target"]) == "zwei Hunde"


def test_prepares_tsv_and_text(run, tmp_path):
    (tmp_path / "a.tsv").write_text("one\teins\n" * 3)
    assert run("prepare", "--tsv", tmp_path / "a.tsv", "--vocab-size", 270, "--out", tmp_path / "t")[0] == 0
    assert run("prepare", "--text", tmp_path / "a.tsv", "--vocab-size", 270, "--out", tmp_path / "l")[0] == 0
    assert Store.open(tmp_path / "l").task == "language-model"
    assert json.loads((tmp_path / "l/manifest.json").read_text())["task"] == "lm", "as in older stores"


def test_names_that_are_not_utf8_are_read(run, tmp_path):
    name = tmp_path / os.fsdecode(b"caf\xe9.txt")
    name.write_text("one two\n" * 3)
    code, _, err = run("prepare", "--text", name, "--vocab-size", 270, "--out", tmp_path / "store")
    assert code == 0, err


def test_the_current_folder_is_no_place_for_a_store(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("one two\n")
    code, _, err = run("prepare", "--text", "a.txt", "--out", ".")
    assert (code, err) == (2, "diffwindow: . exists already; remove it or choose another folder\n")


def test_prepares_validation_beside_a_single_file(run, tmp_path):
    for name, rows in (("a", 3), ("b", 2), ("c", 1)):
        (tmp_path / f"{name}.tsv").write_text("one\teins\n" * rows)
    more = ("--valid", tmp_path / "b.tsv", "--test", tmp_path / "c.tsv", "--vocab-size", 270)
    for kind in ("--tsv", "--text"):
        out = tmp_path / kind
        assert run("prepare", kind, tmp_path / "a.tsv", *more, "--out", out)[0] == 0
        assert [len(split) for split in Store.open(out).splits.values()] == [3, 2, 1]


def test_files_that_would_not_be_read_are_refused(run, pair, tmp_path):
    (tmp_path / "a.tsv").write_text("one\teins\n")
    sides = ("--valid-source", tmp_path / "a.en", "--valid-target", tmp_path / "nowhere")
    code, _, err = run("prepare", "--tsv", tmp_path / "a.tsv", *sides, "--out", tmp_path / "store")
    assert (code, "go with --source, not with --tsv" in err) == (2, True)
    code, _, err = run("prepare", *pair, "--valid", tmp_path / "a.tsv", "--out", tmp_path / "store")
    assert (code, "go with --tsv, --labels or --text, not with --source" in err) == (2, True)
    code, _, err = run("prepare", *pair, "--rows", 5, "--out", tmp_path / "store")
    assert (code, "--rows and --seed are for a generated corpus" in err) == (2, True)
    assert not (tmp_path / "store").exists()


def test_bad_rows(run, pair, tmp_path):
    (tmp_path / "a.de").write_text("ein Hund\n\n" * 50)
    code, _, err = run("prepare", *pair, "--out", tmp_path / "store")
    assert code == 2
    assert err.count("\n") == 1
    assert "a.de, line 2: empty target; fix the file, or pass --skip-bad to leave such rows out" in err
    code, out, _ = run("prepare", *pair, "--out", tmp_path / "store", "--skip-bad")
    assert code == 0
    assert "skipped 50: empty target (first: " in out


def test_pairs_that_are_too_long_or_unequal_are_left_out_of_training_and_counted(run, tmp_path):
    sentences = {"train": ["a b c", "a b c d e f", "a", "a b"], "valid": ["a b c d e f"]}
    translations = {"train": ["u v w", "u v w x", "u v w x", "u v w x y"], "valid": ["u"]}
    for split in sentences:
        (tmp_path / f"{split}.en").write_text("\n".join(sentences[split]) + "\n")
        (tmp_path / f"{split}.de").write_text("\n".join(translations[split]) + "\n")
    files = ("--source", tmp_path / "train.en", "--target", tmp_path / "train.de")
    files += ("--valid-source", tmp_path / "valid.en", "--valid-target", tmp_path / "valid.de")
    out = ("--out", tmp_path / "store")
    code, text, err = run("prepare", *files, *out, "--max-length", 5, "--max-ratio", 2.5)
    assert code == 0, err
    # 5 words are 2.5 times 2 and stay
    assert "train: 2 rows" in text
    assert "skipped 1: more than 5 words (first: pair 2)" in text
    assert "skipped 1: one side has more than 2.5 times the words of the other (first: pair 3)" in text
    assert "valid: 1 rows" in text
    manifest = read_manifest(tmp_path / "store")
    assert manifest.settings.variant == {"max_length": 5, "max_ratio": 2.5}
    assert sum(manifest.splits["train"].found.skipped.values()) == 2
    code, _, err = run("prepare", *files, *out, "--max-length", 6, "--max-ratio", 2.5)
    assert (code, "max_length" in err) == (2, True)
    code, _, err = run("prepare", "agreement", "--out", tmp_path / "other", "--max-length", 5)
    assert code == 2
    assert "is for pairs of sentences, but agreement is prepared for classification; leave it out" in err
    code, _, err = run("prepare", *files, "--out", tmp_path / "other", "--max-ratio", 0.5)
    assert (code, "Invalid value for '--max-ratio'" in err) == (2, True)
    assert not (tmp_path / "other").exists()


def test_only_the_verb_that_can_skip_bad_rows_advises_it(run, tmp_path):
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.txt").write_text("(3 (2 It) (4 good))\n(3 (2 It\n")
    for verb in (("train", "sst2"), ("reproduce", "table5", "--columns", "sst", "--jobs", 1)):
        code, _, err = run(*verb, "--data", tmp_path, "--out", tmp_path / "out")
        assert code == 2
        assert "train.txt, line 2: not a labelled tree" in err
        assert "--skip-bad" not in err
    code, _, err = run("prepare", "sst2", "--data", tmp_path, "--out", tmp_path / "store", "--dry-run")
    assert (code, "pass --skip-bad" in err) == (2, True)


def test_misaligned_files_are_never_skipped(run, pair, tmp_path):
    (tmp_path / "a.de").write_text("ein Hund\n" * 99)
    for more in ((), ("--skip-bad",)):
        code, _, err = run("prepare", *pair, *more, "--out", tmp_path / "store")
        assert (code, "a.en has a line 100" in err, "--skip-bad" in err) == (2, True, False)


def test_a_worker_that_died_is_one_sentence(run, pair, tmp_path, monkeypatch):
    def dying(workers, context, *_):
        return ProcessPoolExecutor(workers, context, os._exit, (9,))

    monkeypatch.setattr(encoding, "ProcessPoolExecutor", dying)
    code, _, err = run("prepare", *pair, "--workers", 2, "--out", tmp_path / "store")
    assert (code, err) == (2, f"diffwindow: {WORKER_DIED}\n")
    monkeypatch.undo()
    assert run("prepare", *pair, "--out", tmp_path / "store")[0] == 0


def test_dry_run_writes_nothing(run, pair, tmp_path):
    before = set(tmp_path.iterdir())
    code, out, _ = run("prepare", *pair, "--out", tmp_path / "store", "--dry-run")
    assert code == 0
    assert out.startswith("about train 100 rows")
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("arguments", "message"), [
    (["prepare", "--out", "x"], "give one of a corpus, --source with --target, --tsv, --labels or"),
    (["prepare", "sst2", "--text", "a", "--out", "x"], "not a corpus and --text"),
    (["prepare", "--source", "a", "--out", "x"], "there is no file a"),
    (["prepare", "agrement", "--out", "x"], "did you mean 'agreement'"),
    (
        ["prepare", "agreement", "--tokenizer", "t.json", "--vocab-size", "5000", "--out", "x"],
        "--vocab-size 5000 is for a new vocabulary, but t.json has its own; leave one out",
    ),
    (
        ["prepare", "agreement", "--tokenizer", "t.json", "--normalization", "none", "--out", "x"],
        "--normalization none is for a new vocabulary, but t.json has its own; leave one out",
    ),
    (["data", "check", "nowhere"], "nowhere is not a prepared corpus"),
    (["data", "get", "sst9"], "no corpus is called 'sst9'"),
])  # fmt: skip
def test_mistakes_are_one_sentence(run, arguments, message):
    code, _, err = run(*arguments)
    assert code == 2
    assert message in err
    assert err.startswith("diffwindow: ")
    assert err.count("\n") == 1


def test_missing_side(run, pair, tmp_path):
    code, _, err = run("prepare", *pair[:2], "--out", tmp_path / "store")
    assert (code, "--target is missing" in err) == (2, True)
    code, _, err = run("prepare", *pair, "--valid-source", tmp_path / "a.en", "--out", tmp_path / "store")
    assert (code, "--valid-target is missing" in err) == (2, True)


def test_lists_the_corpora(run):
    code, out, _ = run("data", "list")
    assert code == 0
    assert "wmt14-en-fr" in out
    assert "statmt.org" in out
    assert "data/trees/dev.txt" in run("data", "get", "sst2")[1]


def test_ctrl_c_says_how_to_go_on(tmp_path):
    lines = 100_000
    with (tmp_path / "a.txt").open("w") as file:
        file.writelines(f"line {i} of a long text that takes a while\n" for i in range(lines))
    Tokenizer.train_bpe(["line of a long text that takes a while"], 280).save(tmp_path / "tokenizer.json")
    command = [sys.executable, "-m", "diffwindow", "prepare", "--text", "a.txt", "--out", "store"]
    command += ["--tokenizer", "tokenizer.json", "--workers", "2"]
    # a background job of a shell ignores Ctrl-C, and so would what it starts
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=_absolute())
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 60
    while not (tmp_path / "store.partial/train.text.tokens").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted; the same command resumes from store.partial"
    assert "Traceback" not in err
    assert not (tmp_path / "store").exists()
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, env=_absolute())
    assert f"{lines:,} rows" in done.stdout


def _absolute():
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def test_labelled_text_keeps_its_labels(run, tmp_path):
    rows = ["review\tverdict", *["fine film\tvery good", "dull\tpas terrible"] * 2]
    (tmp_path / "a.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    command = ["prepare", "--labels", tmp_path / "a.tsv", "--out", tmp_path / "store"]
    code, _, err = run(*command)
    assert (code, err.count("\n")) == (2, 1)
    assert "--text-column and --label-column take a name, or a number if there is no header" in err
    code, out, _ = run(*command, "--text-column", "review", "--label-column", "verdict")
    assert code == 0
    assert "labels pas terrible: 2, very good: 2" in out
    assert "chosen to suit the corpus" in out


def test_languages_are_named_or_said_to_be_unknown(run, pair, tmp_path):
    known = ("--source-lang", "en", "--target-lang", "de")
    assert "languages: source en, target de" in run("prepare", *pair, *known, "--out", tmp_path / "a")[1]
    assert "languages: unknown; name them with" in run("prepare", *pair, "--out", tmp_path / "b")[1]
    code, _, err = run("prepare", "agreement", *known, "--out", tmp_path / "c")
    assert (code, "go with --source or --tsv, not with a corpus" in err) == (2, True)


def test_text_keeps_its_bytes_if_asked_and_with_such_a_tokenizer_but_labels_do_not(run, tmp_path):
    rows = [normalize(form, "très café\tdéjà\n") for form in ("NFC", "NFD")]
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(rows) + "bad\tno\n")
    arguments = ("prepare", "--labels", tmp_path / "a.tsv", "--out")
    assert run(*arguments, tmp_path / "store", "--normalization", "none")[0] == 0
    own = tmp_path / "store/tokenizer.json"
    assert run(*arguments, tmp_path / "again", "--tokenizer", own)[0] == 0
    for store in (Store.open(tmp_path / name) for name in ("store", "again")):
        assert store.labels == ("déjà", "no")
        texts = [store.tokenizer.decode(row["text"]) for row in store.split("train")]
        assert texts == [row.partition("\t")[0] for row in rows] + ["bad"]


def test_a_finished_store_is_left_as_it_is(run, pair, tmp_path):
    words = ("prepare", *pair, "--out", tmp_path / "store")
    first = run(*words)
    code, out, err = run(*words)
    assert (code, out) == (0, first[1])
    assert (
        err == f"{tmp_path / 'store'} is complete: it was made from the same files with the same settings\n"
    )


def test_text_that_several_splits_have_is_told(run, tmp_path):
    rows = [f"text {number}\t{'yes' if number % 2 else 'no'}\n" for number in range(40)]
    for name, some in (("a.tsv", rows[:20]), ("turned.tsv", rows[11:3:-1]), ("other.tsv", rows[18:])):
        (tmp_path / name).write_text("".join(some))
    files = [tmp_path / name for name in ("a.tsv", "turned.tsv", "other.tsv")]
    words = zip(("--labels", "--valid", "--test"), files, strict=True)
    code, _, err = run("prepare", *chain.from_iterable(words), "--out", tmp_path / "store")
    # two of the 22 rows of test are few
    told = "100% of the text of valid is in train too: its scores say little of new text\n"
    assert (code, err) == (0, told)


@pytest.mark.parametrize("inside", ["", "/store"])
def test_a_file_where_the_store_should_be_is_named(run, pair, tmp_path, inside):
    (tmp_path / "file").write_text("mine")
    code, _, err = run("prepare", *pair, "--out", f"{tmp_path / 'file'}{inside}")
    assert code == 2
    assert re.search(r"/file (exists already|is not a folder); ", err)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("a line of text\n" * 10_000)
    # a limit on the size of files fails as a full disk does
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
    words = ["prepare", "--text", str(tmp_path / "a.txt"), "--out", str(tmp_path / "store")]
    code = f"{limited} from diffwindow.cli import main; sys.argv[1:] = {words!r}; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"diffwindow: {tmp_path}/store.partial")
    assert done.stderr.endswith(": File too large\n")
