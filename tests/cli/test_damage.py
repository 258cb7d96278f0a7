"""Damaged files: every verb either does the same as before, or says one sentence and exits with an error.

Bytes are flipped, files cut, numbers and texts of JSON replaced by null, by huge numbers and by deep nesting.
"""

import gzip
import io
import json
import lzma
import random
import re
import shutil
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest

from diffwindow.cli import main
from diffwindow.data.own_files import plain_text
from diffwindow.data.prepare import prepare
from diffwindow.data.recipe import Recipe, Vocabulary
from diffwindow.files import sha256_of
from diffwindow.training import run as train_module
from diffwindow.training.overrides import resolve
from diffwindow.training.run import train

SMALL = ["model.embed_dim=8", "model.ffn_dim=8", "model.num_heads=2", "train.max_tokens=256"]
SHORT = ["train.max_updates=2", "train.save_every=1", "train.valid_every=2", "train.log_every=1"]
DEEP = "[" * 100_000 + "]" * 100_000
SENTENCES = "the keys to the cabinet are here .\nthe key is old .\n"
PREPARE = ("prepare", "--out", "store", "--workers", "1")
REPRODUCE = ("reproduce", "table5", "--scale", "smoke", "--columns", "sva", "--rows", "Global", "--jobs", "1")


@dataclass(frozen=True)
class Verb:
    """A command on one of the folders of `folders`; with `same=False` other input may give other output."""

    folder: str
    words: tuple[str, ...]
    same: bool = True
    # what it makes, in the folder or where it is called
    made: str | None = None


VERBS = {
    "evaluate": Verb("translator", ("evaluate", "{folder}", "--json")),
    "translate": Verb("translator", ("translate", "{folder}", "--beam", "2")),
    "train": Verb("translator", ("train", "{folder}", "train.max_updates=3"), made="model"),
    "average": Verb(
        "translator", ("average", "{folder}", "--last", "1", "--out", "averaged"), made="averaged"
    ),
    "check": Verb("translator", ("data", "check", "{folder}/data")),
    "prepare": Verb(
        "translator", (*PREPARE, "--text", "text.txt", "--tokenizer", "{folder}/model/tokenizer.json")
    ),
    "classify": Verb("classifier", ("evaluate", "{folder}", "--json")),
    "train classifier": Verb("classifier", ("train", "{folder}", "train.max_updates=3"), made="model"),
    "generate": Verb("language", ("generate", "{folder}", "--prompt", "the keys", "--max-new-tokens", "5")),
    "perplexity": Verb("language", ("evaluate", "{folder}", "--json")),
    "train language model": Verb("language", ("train", "{folder}", "train.max_updates=3"), made="model"),
    # a saved model without a run around it
    "generate from a model": Verb("language/model", ("generate", "{folder}", "--max-new-tokens", "5")),
    "demo": Verb("demo", ("demo", "--out", "{folder}", "--updates", "1", "--rows", "10")),
    "reproduce": Verb("reproduced", (*REPRODUCE, "--out", "{folder}")),
    "prepare text": Verb("raw", (*PREPARE, "--text", "{folder}/text.txt"), same=False),
    "prepare gzip": Verb("raw", (*PREPARE, "--text", "{folder}/text.txt.gz"), same=False),
    "prepare xz": Verb("raw", (*PREPARE, "--text", "{folder}/text.txt.xz"), same=False),
    "prepare tsv": Verb("raw", (*PREPARE, "--tsv", "{folder}/pairs.tsv"), same=False),
    "train yaml": Verb("yaml", ("train", "{folder}/config.yaml", "--out", "run"), same=False),
}
# each call of these trains in processes of their own, or draws figures
SLOW_VERBS = ("demo", "reproduce")


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
def folders(tmp_path_factory):
    """Make one small folder of each kind: trained runs, raw text, a config."""
    root = tmp_path_factory.mktemp("folders")
    raw = root / "raw"
    raw.mkdir()
    (raw / "text.txt").write_text(SENTENCES * 20)
    (raw / "text.txt.gz").write_bytes(gzip.compress((SENTENCES * 20).encode(), mtime=0))
    (raw / "text.txt.xz").write_bytes(lzma.compress((SENTENCES * 20).encode()))
    (raw / "pairs.tsv").write_text("a b c\tc b a\nd e\te d\n" * 10)
    split = plain_text(raw / "text.txt")
    splits = {"train": split, "valid": split, "test": split}
    prepare(Recipe("text", "language-model", splits, Vocabulary("words", None)), root / "text")
    two_layers = ["model.encoder_layers=1", "model.decoder_layers=1"]
    last = ["train.keep_last=2", "train.average_last=2"]
    presets = {
        "translator": ("reorder", ["data.rows=20", *two_layers, *last]),
        "classifier": ("agreement", ["data.rows=20", "attention=Enc(AW)"]),
        "language": ("wikitext2", [f"data.path={root / 'text'}", "model.num_layers=1"]),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "draw_curves", lambda records, path: None)
        for name, (preset, own) in presets.items():
            train(resolve(preset, [*SMALL, *SHORT, *own]), root / name)
    lines = ["preset: agreement", "data:", "  rows: 20", "model:", "  embed_dim: 8", "  ffn_dim: 8"]
    lines += ["  num_heads: 2", "train:", "  max_updates: 1", "  valid_every: 1", "  final: last"]
    (root / "yaml").mkdir()
    (root / "yaml/config.yaml").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(train_module, "draw_curves", lambda records, path: None)

    def run(verb, folder):
        """Run a verb; return its exit code, its result, its messages, and the traceback if there was one."""
        place = tmp_path / "here"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        (place / "text.txt").write_text("a b c\n")
        monkeypatch.chdir(place)
        words = [word.format(folder=folder) for word in verb.words]
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
        # demo says how long it took
        result = re.sub(r"\d+ s;", "", captured.out)
        if verb.made and code == 0:
            made = (place if (place / verb.made).exists() else folder) / verb.made
            result += sha256_of(made / "model.safetensors")
        return code, result, captured.err, trace

    return run


def files_of(folder: Path) -> list[str]:
    """Name every kind of file of a folder once: of checkpoints, the newest."""
    files = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    newest = max((file.split("/")[1] for file in files if file.startswith("checkpoints/")), default="")
    kept = [file for file in files if not file.startswith("checkpoints/") or f"/{newest}/" in file]
    return [file for file in kept if "tensorboard" not in file and not file.endswith((".png", ".lock"))]


def damages(folder: Path, per_kind: int) -> list[Damage]:
    texts = (".json", ".jsonl", ".yaml")
    return [
        Damage(file, kind, seed)
        for file in files_of(folder)
        for kind in (("flip", "cut", "null", "huge", "deep") if file.endswith(texts) else ("flip", "cut"))
        for seed in range(per_kind)
    ]


def complaint(call, verb, folder, damage, result):
    """Say what is wrong about how a verb handles a damaged file, if anything is."""
    path = folder / damage.file
    content = path.read_bytes()
    if not content:
        return None
    path.write_bytes(damage.apply(content))
    code, out, err, trace = call(verb, folder)
    said = [line for line in err.splitlines() if line.startswith("diffwindow: ")]
    if trace:
        return f"{verb.words}, {damage}: {trace[-600:]}"
    if code == 0:
        same = out == result or not verb.same
        return None if same else f"{verb.words}, {damage}: another result: {out[:300]}"
    if len(said) != 1 or "Traceback" in err or len(said[0]) > 700 or "pydantic" in err:
        return f"{verb.words}, {damage}: exit {code} with {err[-600:]!r}"
    return None


def complaints(call, folders, tmp_path, name, chosen):
    """Run a verb once on an undamaged copy of its folder and once for each damage; list what is wrong."""
    verb, folder = VERBS[name], tmp_path / "copy"

    def copy():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(folders / verb.folder, folder)

    copy()
    code, result, err, trace = call(verb, folder)
    assert code == 0, (name, err, trace)
    found = []
    for damage in chosen:
        copy()
        found.append(complaint(call, verb, folder, damage, result))
    return [text for text in found if text]


@pytest.mark.parametrize("name", [name for name in VERBS if name not in SLOW_VERBS])
def test_a_sample_of_damage_ends_in_one_sentence_or_changes_nothing(call, folders, tmp_path, name):
    every = damages(folders / VERBS[name].folder, 1)
    chosen = random.Random(name).sample(every, min(3, len(every)))
    assert json.dumps(complaints(call, folders, tmp_path, name, chosen), indent=1) == "[]"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", VERBS)
def test_all_damage_ends_in_one_sentence_or_changes_nothing(call, folders, tmp_path, name):
    verb = VERBS[name]
    if name in SLOW_VERBS:
        (folders / verb.folder).mkdir(exist_ok=True)
        code, _, err, trace = call(verb, folders / verb.folder)
        assert code == 0, (err, trace)
    chosen = damages(folders / verb.folder, 1 if name in SLOW_VERBS else 5)
    assert json.dumps(complaints(call, folders, tmp_path, name, chosen), indent=1) == "[]"
