"""Damaged files: every verb either does the same as before, or says one sentence and exits with an error.

Bytes are flipped, files cut, numbers and texts of JSON replaced by null, by huge numbers and by deep nesting.
"""

import io
import json
import random
import re
import shutil
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest

from diffwindow.cli import main
from diffwindow.files import sha256_of
from diffwindow.training import train as train_module
from diffwindow.training.overrides import resolve
from diffwindow.training.train import train

SMALL = ["model.embed_dim=8", "model.ffn_dim=8", "model.num_heads=2", "data.rows=20", "train.max_tokens=256"]
SHORT = ["train.max_updates=2", "train.save_every=1", "train.valid_every=2", "train.log_every=1"]
DEEP = "[" * 100_000 + "]" * 100_000
# the files of a run's corpus are those that matter for these verbs; the others for all that open the run
VERBS = {
    "evaluate": ("evaluate", "{run}", "--json"),
    "translate": ("translate", "{run}", "--beam", "2"),
    "train": ("train", "{run}", "train.max_updates=3"),
    "average": ("average", "{run}", "--last", "1", "--out", "averaged"),
    "check": ("data", "check", "{run}/data"),
    "prepare": (
        "prepare",
        "--text",
        "text.txt",
        "--tokenizer",
        "{run}/model/tokenizer.json",
        "--out",
        "store",
    ),
}


@dataclass(frozen=True)
class Damage:
    """One change to the content of one file."""

    file: str
    kind: str
    seed: int

    def apply(self, content: bytes) -> bytes:
        chance = random.Random(f"{self.file} {self.kind} {self.seed}")
        match self.kind:
            case "flip":
                place = chance.randrange(len(content))
                changed = content[place] ^ (1 << chance.randrange(8))
                return content[:place] + bytes([changed]) + content[place + 1 :]
            case "cut":
                return content[: chance.randrange(len(content))]
            case _:
                # a value of JSON: a number, a text or a word
                values = list(re.finditer(rb'(?<=[:\[,] )("[^"]*"(?!:)|-?[\d.e+-]+|true|false)', content))
                new = {"null": b"null", "huge": b"1" + b"0" * 30, "deep": DEEP.encode()}[self.kind]
                if not values:
                    return new
                value = chance.choice(values)
                return content[: value.start()] + new + content[value.end() :]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "draw_curves", lambda records, path: None)
        layers = [
            "model.encoder_layers=1",
            "model.decoder_layers=1",
            "train.keep_last=2",
            "train.average_last=2",
        ]
        train(resolve("reorder", [*SMALL, *SHORT, *layers]), folder)
    return folder


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(train_module, "draw_curves", lambda records, path: None)

    def run(name, folder):
        """Run a verb; give the exit code, what it gave, what it said, and the traceback if there was one."""
        place = tmp_path / "here"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        (place / "text.txt").write_text("a b c\n")
        monkeypatch.chdir(place)
        words = [word.format(run=folder) for word in VERBS[name]]
        monkeypatch.setattr(sys, "argv", ["diffwindow", *words])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a b\n")))
        code, trace = None, ""
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            trace = traceback.format_exc()
        captured = capsys.readouterr()
        made = {"train": folder / "model", "average": place / "averaged"}.get(name)
        model = sha256_of(made / "model.safetensors") if made and code == 0 else ""
        return code, captured.out + model, captured.err, trace

    return run


def files_of(folder: Path) -> list[str]:
    """Name every kind of file of a run once: of its checkpoints, the newest."""
    files = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    newest = max(file for file in files if file.startswith("checkpoints/")).split("/")[1]
    kept = [file for file in files if not file.startswith("checkpoints/") or f"/{newest}/" in file]
    return [file for file in kept if "tensorboard" not in file and not file.endswith(".png")]


def damages(files: list[str], per_kind: int) -> list[Damage]:
    kinds = {file: ("flip", "cut", "null", "huge", "deep") for file in files if ".json" in file}
    return [
        Damage(file, kind, seed)
        for file in files
        for kind in kinds.get(file, ("flip", "cut"))
        for seed in range(per_kind)
    ]


def complaint(call, verb, trained, damage, tmp_path, undamaged):
    """Say what is wrong about how a verb meets a damaged file, if anything is."""
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(trained, folder)
    path = folder / damage.file
    content = path.read_bytes()
    if not content:
        return None
    path.write_bytes(damage.apply(content))
    code, out, err, trace = call(verb, folder)
    said = [line for line in err.splitlines() if line.startswith("diffwindow: ")]
    if trace:
        return f"{verb}, {damage}: {trace[-600:]}"
    if code == 0:
        return None if out == undamaged[verb] else f"{verb}, {damage}: another result: {out[:300]}"
    if len(said) != 1 or "Traceback" in err or len(said[0]) > 700 or "pydantic" in err:
        return f"{verb}, {damage}: exit {code} with {err[-600:]!r}"
    return None


def outcomes(call, trained, chosen, tmp_path):
    folder = tmp_path / "run"
    undamaged = {}
    for verb in {verb for verb, _ in chosen}:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(trained, folder)
        code, undamaged[verb], err, trace = call(verb, folder)
        assert code == 0, (verb, err, trace)
    found = [complaint(call, verb, trained, damage, tmp_path, undamaged) for verb, damage in chosen]
    return [text for text in found if text]


def test_a_sample_of_damage_ends_in_one_sentence_or_changes_nothing(call, trained, tmp_path):
    every = [(verb, damage) for damage in damages(files_of(trained), 1) for verb in VERBS]
    chosen = random.Random(0).sample(every, 30)
    assert json.dumps(outcomes(call, trained, chosen, tmp_path), indent=1) == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_all_damage_ends_in_one_sentence_or_changes_nothing(call, trained, tmp_path, verb):
    chosen = [(verb, damage) for damage in damages(files_of(trained), 5)]
    assert json.dumps(outcomes(call, trained, chosen, tmp_path), indent=1) == "[]"
