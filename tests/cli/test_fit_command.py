"""The verb `fit`: windows are saved and loaded again; mistakes are one sentence."""

import shutil
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from diffwindow.cli import main
from diffwindow.hf import load_windows, windows_of

WORDS = ["the", "old", "keys", "of", "a", "house", "are", "in", "one", "of", "its", "drawers"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model with its tokenizer, and a text."""
    path = tmp_path_factory.mktemp("fit")
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path / "model")
    vocabulary = {word: number for number, word in enumerate(sorted({*WORDS, "?"}))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?").save_pretrained(path / "model")
    (path / "text.txt").write_text("\n".join(" ".join(WORDS) for _ in range(16)))
    return path


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["diffwindow", "fit", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code, capsys.readouterr()


def test_windows_are_fitted_saved_and_loaded(folder, tmp_path, monkeypatch, capsys):
    out, picture = tmp_path / "windows", tmp_path / "shares.png"
    code, printed = run(
        monkeypatch, capsys, folder / "model", "--text", folder / "text.txt", "--share", "0.5",
        "--block", "32", "--spans", "head", "--out", out, "--picture", picture,
    )  # fmt: skip
    assert code == 0
    assert "held-out tokens" in printed.out
    assert f"saved in {out}" in printed.out
    assert picture.is_file()
    model = load_windows(AutoModelForCausalLM.from_pretrained(folder / "model"), out)
    assert len(windows_of(model).rows) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{model}", "--share", "1.5"), "share=1.5 is not above 0 and at most 1"),
        (("{model}", "--block", "4096"), "two blocks of 4,096 are needed"),
        (("{model}", "--block", "99999"), "tokens=16,384 do not hold two blocks of 99,999"),
        (("{damaged}",), "has no causal language model that transformers can load: SafetensorError"),
        (("{empty}",), "has no causal language model that transformers can load"),
        (("{model}", "--text", "missing.txt"), "missing.txt: No such file or directory"),
        (("{model}", "--picture", "shares.xyz"), "--picture shares.xyz does not end in .png, .svg or .pdf"),
        (("{model}", "--picture", "{empty}/no/shares.png"), "there is no folder"),
        (("{empty}", "--out", "{model}/config.json"), "config.json is not a folder"),
    ],
)
def test_mistakes_are_one_sentence(arguments, message, folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    shutil.copytree(folder / "model", tmp_path / "damaged")
    (tmp_path / "damaged/model.safetensors").write_bytes(b"no weights")
    names = {"model": folder / "model", "empty": tmp_path / "empty", "damaged": tmp_path / "damaged"}
    options = [str(one).format(**names) for one in arguments]
    text = () if "--text" in options else ("--text", folder / "text.txt")
    out = () if "--out" in options else ("--out", tmp_path / "out")
    code, printed = run(monkeypatch, capsys, *options, *text, *out)
    assert code == 2
    assert message in printed.err
    assert printed.err.strip().count("\n") == 0 or printed.err.splitlines()[-1].startswith("diffwindow: ")
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_tokenizer_is_named(folder, tmp_path, monkeypatch, capsys):
    model = tmp_path / "bare"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_bytes((folder / "model" / name).read_bytes())
    code, printed = run(monkeypatch, capsys, model, "--text", folder / "text.txt", "--out", tmp_path / "out")
    assert code == 2
    assert f"{model} has no tokenizer that transformers can load" in printed.err
    assert Path(model).is_dir()
