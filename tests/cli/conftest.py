"""The command line, called as people do."""

import io
import sys

import pytest

from diffwindow.cli import main
from diffwindow.data.own_files import plain_text
from diffwindow.data.prepare import prepare
from diffwindow.data.recipe import Recipe, Vocabulary
from diffwindow.training.overrides import resolve
from diffwindow.training.train import train

SMALL = ["model.embed_dim=32", "model.ffn_dim=64", "model.num_heads=2", "train.warmup=0", "train.lr=5e-3"]


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the command line; return its exit code, stdout and stderr."""

    def call(*arguments, typed=""):
        monkeypatch.setattr(sys, "argv", ["diffwindow", *map(str, arguments)])
        read = typed if isinstance(typed, bytes) else typed.encode("utf-8", "surrogateescape")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(read)))
        with pytest.raises(SystemExit) as done:
            main()
        return done.value.code or 0, *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
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
