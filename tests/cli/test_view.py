"""The verb `view`, as people call it, on model folders with random weights."""

import gzip
import json
import os
import signal
import subprocess
import sys

import httpx
import numpy as np
import pytest

from diffwindow.cli import main
from diffwindow.data.corpora import recipe_of
from diffwindow.data.prepare import prepare
from diffwindow.data.store import Store
from samples.model_folders import save_model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Make a run of agreement with two checkpoints, a plain model of it, a translator, and the corpus."""
    root = tmp_path_factory.mktemp("view")
    prepare(recipe_of("agreement", rows=30, seed=1), root / "store")
    tokenizer = Store.open(root / "store").tokenizer
    save_model(root / "run" / "model", "classifier", tokenizer=tokenizer)
    for update in (10, 200):
        save_model(root / f"run/checkpoints/{update:08d}", "classifier", tokenizer=tokenizer, seed=update)
    save_model(root / "plain", "plain", tokenizer=tokenizer, seed=1)
    save_model(root / "translator", "translator")
    return root


@pytest.fixture
def run(monkeypatch, capsys, tmp_path, folders):
    """Call `view` in an empty folder; return its exit code, stdout and stderr."""

    def call(name, *arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["diffwindow", "view", str(folders / name), *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        return done.value.code or 0, *capsys.readouterr()

    return call


def page_data(path):
    return json.loads(path.read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0])


def test_a_text_becomes_a_page(run, tmp_path):
    code, out, _ = run("run", "the old keys near my lamps")
    assert code == 0
    assert out.startswith("windows.html  0.")
    data = page_data(tmp_path / "windows.html")
    assert data["title"] == "the old keys near my lamps"
    assert [run["label"] for run in data["runs"]] == ["Enc(AW)@all"]


def test_a_row_against_another_run_with_checkpoints(run, folders, tmp_path):
    arguments = (
        "--data",
        folders / "store",
        "--against",
        folders / "plain",
        "--checkpoints",
        "--out",
        "a.html",
    )
    assert run("run", "--row", 3, "--split", "train", *arguments)[0] == 0
    ours, theirs = page_data(tmp_path / "a.html")["runs"]
    assert [one["label"] for one in ours["snapshots"]] == ["update 10", "update 200", "final model"]
    assert theirs["label"] == "Global"
    assert ours["gold"]["role"] == "Enc"
    assert ours["tokens"] == theirs["tokens"]


def test_figures_without_a_page(run, folders, tmp_path):
    options = ("--png", "w.png", "--svg", "w.svg", "--pdf", "w.pdf", "--head", "all", "--layer", "2")
    code, out, _ = run("run", "the old keys", *options, "--against", folders / "plain")
    assert (code, out.split()) == (0, ["w.png", "w.svg", "w.pdf"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.pdf", "w.png", "w.svg"]


def test_a_translation_with_its_target(run, tmp_path):
    assert run("translator", "my lamp fell .", "--target", "the boats", "--out", "t.html")[0] == 0
    (found,) = page_data(tmp_path / "t.html")["runs"]
    assert found["tokens"]["translation"]["labels"] == ["the", "boats", "</s>"]


def test_statistics_of_a_split_and_of_a_file(run, folders, tmp_path):
    arguments = ("--data", folders / "store", "--limit", "5", "--png", "s.png")
    code, out, _ = run("run", "--statistics", "train", *arguments)
    assert code == 0
    assert len(out.splitlines()) == 1 + 4
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "text.txt").write_text("the old keys\n\nmy lamps\n")
    code, out, _ = run("run", "--statistics", "text.txt", "--json")
    assert {row["queries"] for row in json.loads(out)} == {4 + 3}


def test_a_file_for_statistics_may_be_compressed_and_its_bad_line_is_named(run, tmp_path):
    (tmp_path / "text.gz").write_bytes(gzip.compress("\ufeffthe old keys\n".encode()))
    code, out, _ = run("run", "--statistics", "text.gz", "--json")
    assert {row["queries"] for row in json.loads(out)} == {4}
    (tmp_path / "latin.txt").write_bytes(b"the old keys\nna\xefve\n")
    code, _, error = run("run", "--statistics", "latin.txt")
    assert (code, error) == (2, "diffwindow: latin.txt, line 2: not UTF-8 at byte 2\n")


def test_a_page_is_written_to_the_file_behind_a_link(run, tmp_path):
    (tmp_path / "real.html").touch()
    (tmp_path / "link.html").symlink_to("real.html")
    assert run("run", "the old keys", "--out", "link.html")[0] == 0
    assert (tmp_path / "link.html").is_symlink()
    assert page_data(tmp_path / "real.html")["title"] == "the old keys"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "give one of a text, --row, --statistics and --serve"),
        (("a text", "--serve"), "got a text and --serve"),
        (("--row", "3", "--target", "b"), "--target goes with a text, not with --row"),
        (("--serve", "--target", "b"), "--target goes with a text, not with --serve"),
        (("a text", "--split", "train"), "--split goes with --row, not with a text"),
        (("a text", "--data", "store"), "--data goes with --row or --statistics, not with a text"),
        (
            ("--statistics", "test", "--against", "b"),
            "--against goes with a text, --row or --serve, not",
        ),
        (("--statistics", "test", "--checkpoints"), "--checkpoints goes with a text or --row, not with --st"),
        (("--serve", "--checkpoints"), "--checkpoints goes with a text or --row, not with --serve"),
        (("--serve", "--out", "a.html"), "--out goes with a text or --row, not with --serve"),
        (
            ("--statistics", "test", "--out", "a.html"),
            "--out goes with a text or --row, not with --st",
        ),
        (("--serve", "--svg", "a.svg"), "--png, --svg and --pdf go with a text, --row or --statistics, not"),
        (("--serve", "--json"), "--json goes with a text, --row or --statistics, not with --serve"),
        (("--row", "3", "--tolerance", "0"), "--tolerance goes with --statistics, not with --row"),
        (("--statistics", "test", "--png", "a.png", "--layer", "1"), "--head go with a text or --row, not"),
        (("a text", "--limit", "3"), "--limit goes with --statistics, not with a text"),
        (("a text", "--port", "9"), "--host and --port go with --serve, not with a text"),
        (("a text", "--role", "Enc"), "--role, --layer and --head choose what a figure shows; add --png"),
        (("a text", "--out", "a.html", "--head", "all"), "--head choose what a figure shows; add --png"),
        (("a text", "--checkpoints", "--png", "a.png"), "which is not asked for; add --out"),
        (("a text", "--out", "page.txt"), "page.txt does not end in .html"),
        (("a text", "--png", "a.pdf"), "a.pdf does not end in .png"),
        (("a text", "--head", "0", "--png", "a.png"), "--head 0 is not a number from 1, mean, or all"),
        (
            ("a text", "--head", "9", "--png", "a.png"),
            "--head 9: the layer has 2 heads; give 1 to 2, mean or all",
        ),
        (("a text", "--head", "3", "--png", "a.png"), "--head 3: the layer has 2 heads"),
        (
            ("a text", "--layer", "3", "--png", "a.png"),
            "--layer 3: the model has 2 layers; give 1 to 2",
        ),
        (
            ("a text", "--role", "Cr", "--png", "a.png"),
            "--role Cr: the model has no such attention; give Enc",
        ),
        ((" ",), "there is no word in the text"),
        (("--row", "3"), "give one: data=DIR, or --data DIR"),
        (("a text", "--target", "b"), "a classifier reads one text"),
        (("a text", "--out", "nowhere/a.html"), "there is no such folder"),
    ],
)
def test_mistakes_are_one_sentence_and_write_nothing(run, tmp_path, arguments, reason):
    code, out, error = run("run", *arguments)
    assert (code, out) == (2, "")
    assert reason in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_layers_of_a_role_are_counted(run):
    error = run("translator", "my lamp", "--role", "Enc", "--layer", "2", "--png", "a.png")[2]
    assert error == "diffwindow: --layer 2: Enc has 1 layer; give 1\n"


def test_a_run_without_checkpoints_is_told(run):
    assert "has no checkpoints" in run("plain", "a text", "--checkpoints")[2]


def test_the_server_answers_and_stops_on_a_signal(folders):
    command = [sys.executable, "-m", "diffwindow", "view", str(folders / "run"), "--serve", "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        address = server.stdout.readline().split()[0]
        assert httpx.get(f"{address}/health").json()["status"] == "ok"
        answer = httpx.post(f"{address}/attention", json={"text": "the old keys"}, timeout=60)
        assert json.loads(answer.text)["page"]["runs"][0]["tokens"]["text"]["labels"][-1] == "</s>"
        server.send_signal(signal.SIGTERM)
        _, error = server.communicate(timeout=30)
    assert error == ""
    assert server.returncode in (0, -signal.SIGTERM)


def test_the_numbers_of_a_text_as_arrays_and_as_json(run, tmp_path):
    code, out, _ = run("run", "the old keys", "--npz", "maps.npz", "--layer", "1", "--png", "one.png")
    assert (code, out.split()) == (0, ["one.png", "maps.npz"])
    arrays = np.load(tmp_path / "maps.npz", allow_pickle=False)
    assert arrays["Enc.2.window"].shape == (2, 4, 4)
    assert arrays["tokens.text"].tolist() == ["the", "old", "keys", "</s>"]
    code, out, _ = run("run", "the old keys", "--json")
    data = json.loads(out)
    assert (code, data["tokens"]["text"][2], data["attention"]) == (0, "keys", "Enc(AW)@all")
    assert np.allclose(data["layers"][0]["weights"], arrays["Enc.1.weights"])
    # nothing else was written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["maps.npz", "one.png"]
    for words, sentence in (
        (("--npz", "maps.json"), "maps.json does not end in .npz"),
        (("--json", "--checkpoints"), "--checkpoints adds to the page, which is not asked for; add --out"),
        (("--json", "--against", "plain"), "are of one run; leave --against out"),
    ):
        code, out, err = run("run", "the old keys", *words)
        assert (code, out) == (2, "")
        assert sentence in err
