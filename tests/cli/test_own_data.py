"""Every command of docs/start/your-own-data.md runs, on tiny files and with tiny sizes."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from diffwindow.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "start" / "your-own-data.md"
TINY = (
    "model.embed_dim=16",
    "model.ffn_dim=16",
    "model.num_heads=2",
    "train.max_updates=2",
    "train.save_every=1",
)
ENGLISH = ["A dog runs .", "The keys are here .", "Nothing at all .", "A film that is not so bad ."]
GERMAN = [
    "Ein Hund läuft .",
    "Die Schlüssel sind hier .",
    "Gar nichts .",
    "Ein Film , der nicht so übel ist .",
]
LABELS = ["très bon", "not so good"]


def commands():
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files that the page names, a few lines each."""
    monkeypatch.chdir(tmp_path)
    for split in ("train", "valid", "test"):
        for language, text in (("en", ENGLISH), ("de", GERMAN), ("txt", ENGLISH)):
            Path(f"{split}.{language}").write_text("\n".join(text) + "\n", encoding="utf-8")
    rows = [(text, LABELS[number % 2]) for number, text in enumerate(ENGLISH)]
    table = "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows)
    for name in ("reviews.csv", "reviews-valid.csv"):
        Path(name).write_text(table, encoding="utf-8")
    lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
    Path("reviews-test.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def test_the_page_runs_from_files_to_pictures(folder, monkeypatch, capsys):
    said = []
    for command in commands():
        extra = TINY if command[1] == "train" else ()
        monkeypatch.setattr(sys, "argv", [*command, *extra])
        with pytest.raises(SystemExit) as done:
            main()
        out, err = capsys.readouterr()
        assert done.value.code in (0, None), f"{shlex.join(command)}: {err}"
        said.append(out + err)
    everything = "\n".join(said)
    assert {command[1] for command in commands()} >= {
        "prepare",
        "train",
        "evaluate",
        "translate",
        "predict",
        "view",
    }
    assert "moses:de," in everything
    assert "label not so good" in everything
    assert "très bon=" in everything, "predict shows labels by name"
    assert "translation: tiny sizes for" in everything
    pictures = [folder / f"windows-{name}.png" for name in ("translation", "reviews", "text")]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
