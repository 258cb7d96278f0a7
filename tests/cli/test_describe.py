import json

import pytest

from diffwindow.cli import main


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line; give its exit code, output and errors."""

    def command(*arguments):
        monkeypatch.setattr("sys.argv", ["diffwindow", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, *capsys.readouterr()

    return command


def test_describe_prints_the_plan_and_the_count(run):
    code, output, _ = run("describe", "wmt14-en-de", "--attention", "Enc(AW)-Cr(AW,Seg)-Dec(MW)")
    lines = output.splitlines()
    assert code == 0
    assert lines[0] == "wmt14-en-de  Enc(AW)-Cr(AW,Seg)-Dec(MW)"
    assert len(lines) == 20
    assert lines[3:5] == ["  Enc 3  AW", "  Enc 4  Global"]
    assert lines[7] == "  Cr  1  AW,Seg"
    assert lines[-1] == "73,523,200 parameters"


def test_describe_as_json(run):
    code, output, _ = run("describe", "wmt14-en-de", "--json")
    report = json.loads(output)
    assert (code, report["parameters"], report["config"]["attention"]) == (0, 60_915_712, "Global")
    assert report["layers"][-1] == {"role": "Dec", "layer": 6, "attention": "Global"}


def test_the_preset_of_a_task_takes_its_sizes_from_a_store(run, agreement_store):
    code, output, _ = run("describe", "classification", "--data", str(agreement_store.folder), "--json")
    config = json.loads(output)["config"]
    assert (code, config["vocab_size"]) == (0, agreement_store.tokenizer.vocab_size)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["classification"], "takes its sizes from a prepared corpus; give one, as --data STORE"),
        (["sst2", "--data", "store"], "--data goes with translation, classification or language-model"),
        (["wmt14-en-du"], "did you mean 'wmt14-en-de'"),
        (["sst2", "--attention", "Dec(AW)"], "it has Enc"),
        (["wmt14-en-de", "--attention", "Dec(Loc)"], "for Enc and not for Dec"),
        (["wmt14-en-de", "--attention", "Enc(AX)"], "did you mean 'AW'"),
    ],
)
def test_mistakes_are_told_without_a_traceback(run, arguments, sentence):
    code, output, errors = run("describe", *arguments)
    assert (code, output) == (2, "")
    assert sentence in errors
    assert "Traceback" not in errors
