"""Where the verbs that read lines read from and write to."""

import pytest

from samples.model_folders import save_model

TYPED = b"the old keys\nmy lamp fell .\n"
VERBS = {"translate": "translator", "predict": "classifier", "score": "language"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {verb: save_model(root / kind, kind) for verb, kind in VERBS.items()}


@pytest.mark.parametrize("verb", VERBS)
def test_a_dash_is_stdin_or_stdout(run, folders, verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = run(verb, folders[verb], typed=TYPED)[:2]
    assert expected[0] == 0
    assert expected[1].count("\n") == 2
    assert run(verb, folders[verb], "--input", "-", "--output", "-", typed=TYPED)[:2] == expected
    assert not list(tmp_path.iterdir())


def test_a_dash_in_a_folder_is_a_file(run, folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = run("predict", folders["predict"], typed=TYPED)[1]
    (tmp_path / "-").write_bytes(TYPED)
    assert run("predict", folders["predict"], "--input", "./-", typed=b"")[1] == expected
    assert run("predict", folders["predict"], "--output", "./-", typed=TYPED)[:2] == (0, "")
    assert (tmp_path / "-").read_text() == expected


@pytest.mark.parametrize("verb", VERBS)
def test_carriage_returns_alone_are_refused(run, folders, verb, tmp_path):
    (tmp_path / "mac.txt").write_bytes(b"the old keys\rmy lamp fell .\r")
    code, out, err = run(verb, folders[verb], "--input", tmp_path / "mac.txt")
    assert (code, out, "mac.txt ends its lines with carriage returns alone; save" in err) == (2, "", True)
    # those inside of lines are text
    assert run(verb, folders[verb], typed=b"the\rkeys\nmy lamp\n")[0] == 0


def test_a_dash_of_pairs_is_stdin(run, folders):
    typed = b"the old keys\tthe old keys\n"
    code, out, _ = run("score", folders["score"], "--pairs", "-", typed=typed)
    assert (code, out) == (0, "0.00 % (0 of 1 pairs)\n")


@pytest.mark.parametrize(("words", "outcome"), [
    (("--output", "-"), "the lines above are done"),
    (("--output", "out.txt"), "out.txt was not written"),
])  # fmt: skip
def test_an_interruption_says_what_became_of_the_output(run, folders, words, outcome, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("diffwindow.cli.predict.stream", interrupt)
    code, _, err = run("predict", folders["predict"], *words)
    assert (code, err) == (130, f"diffwindow: interrupted; {outcome}\n")


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_names_the_dash(run, verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = run(verb, "--help")[1]
    assert "- is stdin, and the default" in out
    assert "- is stdout, and the default" in out
