"""Our models on the Hugging Face hub: push a run's model with a card made from the run; download models."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from huggingface_hub import HfApi, snapshot_download

from diffwindow.attention.kinds import WINDOWED
from diffwindow.checks import check_bool
from diffwindow.files import read_json
from diffwindow.inference.attention import row_example, trace_example
from diffwindow.messages import quote
from diffwindow.models.model import MODEL_CONFIG, TOKENIZER, Model
from diffwindow.models.weights import MODEL_MANIFEST, WEIGHTS, hash_tensors, verify, write_manifest
from diffwindow.tasks.entries import MODELS
from diffwindow.tasks.model_folder import TASK, ModelFolder, find_model, read_entry
from diffwindow.training.config import ORIGIN
from diffwindow.training.run import Run

# what a model consists of; the manifest is written anew when a model is pushed
FILES = (MODEL_CONFIG, WEIGHTS, TOKENIZER, TASK)
PICTURE = "windows.png"
# The longest sentence that a picture has room for.
LONGEST = 30
# What tells which model an evaluation is of; the card says it already.
IDENTITY = ("run", "attention", "parameters", "weights")
CARD = """---
library_name: diffwindow
pipeline_tag: {pipeline}
tags: [diffwindow, attention]
---
# {repo_id}

A `{kind}` with the attention `{attention}` and {size:,} parameters, made with diffwindow, which
implements *Differentiable Window for Dynamic Local Attention* (ACL 2020).

```python
import diffwindow
from diffwindow.hf import download_model

model = diffwindow.load(download_model("{repo_id}"))
```
"""


def download_model(
    repo_id: str,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
    token: str | bool | None = None,
) -> Path:
    """Download a model of ours and return its folder, for `diffwindow.load`, `from_pretrained` and `start`.

    Nothing but the files of a model is fetched; raise ValueError if one is damaged.
    """
    folder = Path(
        snapshot_download(
            repo_id, revision=revision, cache_dir=cache_dir, force_download=force_download,
            local_files_only=local_files_only, token=token, allow_patterns=[*FILES, MODEL_MANIFEST],
        )
    )  # fmt: skip
    verify(folder)
    return folder


def push_run(
    run: str | Path,
    repo_id: str,
    *,
    scores: str | Path | None = None,
    picture: bool = True,
    private: bool | None = None,
    branch: str | None = None,
    token: str | None = None,
) -> str:
    """Push the model of a run folder, with a card made from the run, and return the address of the commit.

    `scores` is a file with what `diffwindow evaluate RUN --json` printed of this run. The picture shows a
    window on a sentence of the run's validation set. A model folder that is not of a run has a card without
    data, training and picture.
    """
    check_bool("picture", picture)
    folder = find_model(Path(run))
    model = read_entry(folder).model_class.from_pretrained(folder)
    own_run = None if folder == Path(run) else Path(run)
    with TemporaryDirectory() as made:
        target = Path(made)
        for name in FILES:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, target / name)
        write_manifest(target, verify(folder) if (folder / MODEL_MANIFEST).is_file() else {})
        drawn = picture and own_run is not None and draw_windows(own_run, target / PICTURE)
        evaluation = None if scores is None else read_json(Path(scores))
        card = card_text(model, repo_id, run=own_run, scores=evaluation, picture=drawn)
        (target / "README.md").write_text(card, encoding="utf-8")
        hub = HfApi(token=token)
        repo_id = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if branch is not None:
            hub.create_branch(repo_id, branch=branch, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=repo_id, folder_path=target, revision=branch, commit_message="Add the model"
        )
    return str(commit)


def card_text(
    model: Model[Any],
    repo_id: str,
    *,
    run: Path | None = None,
    scores: dict[str, Any] | None = None,
    picture: bool = False,
) -> str:
    """Write the card; what the run does not tell is left out.

    `scores` is what `diffwindow evaluate RUN --json` prints of this model; that of another is an error.
    """
    check_bool("picture", picture)
    if not isinstance(repo_id, str):
        raise TypeError(f"repo_id={quote(repo_id)} is not a str; pass the name on the hub, as user/name")
    if scores is not None:
        check_scores(model, scores)
    parts = [
        CARD.format(
            repo_id=repo_id,
            pipeline=MODELS[model.config.model].pipeline,
            kind=type(model).__name__,
            attention=model.config.attention,
            size=model.config.count_parameters(),
        )
    ]
    if picture:
        parts.append(f"![A window of the model, and its attention]({PICTURE})\n")
    if scores is not None:
        shown = {name: value for name, value in scores.items() if name not in IDENTITY}
        # a matrix does not fit a table of names and values
        shown["metrics"] = {name: value for name, value in scores["metrics"].items() if name != "confusion"}
        parts += ["## Scores\n", _table(shown)]
    if run is None:
        parts += ["## Settings\n", _table(model.config.model_dump())]
    else:
        settings = Run.open(run).config.model_dump(mode="json")
        data = settings.pop("data")
        # its last part tells nothing that the corpus does not
        del data["path"]
        origin = read_json(run / ORIGIN) if (run / ORIGIN).is_file() else {}
        parts += ["## Data\n", _table(data), _table({"sha256": origin.get("corpus", {})})]
        parts += ["## Training\n", _table(settings), "## Versions\n", _table(origin.get("versions", {}))]
    return "\n".join(parts)


def check_scores(model: Model[Any], scores: dict[str, Any]) -> None:
    """Raise unless an evaluation is of this model."""
    again = "evaluate the model again with `diffwindow evaluate RUN --json`"
    if not isinstance(scores, dict):
        raise TypeError(f"scores={quote(scores)} is not what an evaluation prints; {again}")
    if "weights" not in scores:
        raise ValueError(f"the scores do not say which model they are of; {again}")
    if scores["weights"] != hash_tensors(model.state_dict()):
        raise ValueError(
            f"the scores are of another model, of the run {_public(str(scores.get('run')))}; {again}"
        )


def draw_windows(run: Path, path: Path) -> bool:
    """Draw the first window of a run's model on a short sentence of its corpus, if it can be done.

    A model without windows has no picture, nor has one of placebo phrases or a run whose corpus is gone: then
    return False.
    """
    trained = ModelFolder.read(run)
    windowed = any(term.attention.kind in WINDOWED for term in trained.model.config.plan.terms)
    if not windowed or trained.record.options.phrase_placebo:
        return False
    try:
        store = Run.open(run).open_store()
    except ValueError:
        return False
    split = "valid" if "valid" in store.splits else next(iter(store.splits))
    rows = store.split(split)
    lengths = np.max([rows.lengths(field) for field in rows.sequences], axis=0)
    short = np.flatnonzero(lengths <= LONGEST)
    row = int(short[0] if len(short) else lengths.argmin())
    trace_example(trained, row_example(trained, store, split, row)).draw(path)
    return True


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the plain values of nested objects under dotted names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{_public(str(key))}".removeprefix("."))
    elif value is not None:
        yield name, value


def _table(rows: dict[str, Any]) -> str:
    """Format nested values as a Markdown table; a bar in a name or a value would end its cell."""
    cells = [(name.replace("|", r"\|"), _shown(x).replace("|", r"\|")) for name, x in _leaves(rows)]
    body = [f"| {name} | {text} |\n" for name, text in cells]
    return "".join(["| | |\n", "|---|---|\n", *body] if body else [])


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:.6g}" if isinstance(value, float) else _public(str(value))


def _public(text: str) -> str:
    """Return the name alone of a file or folder: a local path is private, and of no use to readers.

    >>> _public("/home/me/my, runs/first/"), _public("Enc(AW)")
    ('first', 'Enc(AW)')
    """
    return re.split(r"[/\\]", text.rstrip("/\\"))[-1]
