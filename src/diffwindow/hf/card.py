"""The model card of a trained model: its settings, its data, its scores, and a picture of its windows."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import nn

from diffwindow.attention.kinds import WINDOWED
from diffwindow.files import read_json
from diffwindow.models.build import Model
from diffwindow.models.eval_mode import in_eval_mode
from diffwindow.models.weights import hash_tensors
from diffwindow.tasks.trained_model import Trained
from diffwindow.training.run_folder import ORIGIN, Run
from diffwindow.view.capture import capture

PICTURE = "windows.png"
# The longest sentence that a picture has room for.
LONGEST = 30
# What tells which model an evaluation is of; the card says it already.
IDENTITY = ("run", "attention", "parameters", "weights")
PIPELINES = {
    "translator": "translation",
    "language_model": "text-generation",
    "classifier": "text-classification",
}
CLASSES = {"translator": "Translator", "language_model": "LanguageModel", "classifier": "Classifier"}


def card_text(
    model: Model,
    repo_id: str,
    *,
    run: Path | None = None,
    scores: dict[str, Any] | None = None,
    picture: bool = False,
) -> str:
    """Write the card; what the run does not tell is left out.

    `scores` is what `diffwindow evaluate RUN --json` prints of this model; that of another is an error.
    """
    if scores is not None:
        check_scores(model, scores)
    config = model.config
    size = sum(parameter.numel() for parameter in model.parameters())
    name = CLASSES[config.model]
    parts = [
        "---",
        "library_name: diffwindow",
        f"pipeline_tag: {PIPELINES[config.model]}",
        "tags: [diffwindow, attention]",
        "---",
        f"# {repo_id}",
        "",
        f"A `{name}` with the attention `{config.attention}` and {size:,} parameters, made with diffwindow, "
        "which implements *Differentiable Window for Dynamic Local Attention* (ACL 2020).",
        "",
        "```python",
        f"from diffwindow.hf import {name}",
        "",
        f'model = {name}.from_pretrained("{repo_id}")',
        "```",
    ]
    if picture:
        parts += ["", f"![A window of the model, and its attention]({PICTURE})"]
    if scores is not None:
        shown = {name: value for name, value in scores.items() if name not in IDENTITY}
        parts += ["", "## Scores", "", *_table(dict(_leaves(shown)))]
    if run is not None:
        settings = Run.open(run).config.model_dump(mode="json")
        # its last part tells nothing that the corpus does not
        settings.get("data", {}).pop("path", None)
        origin = read_json(run / ORIGIN) if (run / ORIGIN).is_file() else {}
        parts += ["", "## Data", "", *_table(dict(_leaves(settings.pop("data", {}))))]
        parts += ["", *_table(dict(_leaves({"sha256": origin.get("corpus", {})})))]
        parts += ["", "## Training", "", *_table(dict(_leaves(settings)))]
        parts += ["", "## Versions", "", *_table(dict(_leaves(origin.get("versions", {}))))]
    else:
        parts += ["", "## Settings", "", *_table(config.model_dump())]
    return "\n".join(parts) + "\n"


def check_scores(model: Model, scores: dict[str, Any]) -> None:
    """Raise unless an evaluation is of this model."""
    again = "evaluate the model again with `diffwindow evaluate RUN --json`"
    if "weights" not in scores:
        raise ValueError(f"the scores do not say which model they are of; {again}")
    if scores["weights"] != hash_tensors(model.state_dict()):
        raise ValueError(
            f"the scores are of another model, of the run {_public(str(scores.get('run')))}; {again}"
        )


def draw_windows(run: Path, path: Path) -> bool:
    """Draw the first window of a run's model on a short sentence of its corpus, if it can be done.

    A model without windows has no picture, nor has a run whose corpus is gone: then return False.
    """
    trained = Trained.load(run)
    if not any(term.attention.kind in WINDOWED for term in trained.model.config.plan.terms):
        return False
    try:
        store = Run.open(run).open_store()
    except ValueError:
        return False
    task: Any = trained.task(store)
    split = "valid" if "valid" in store.splits else next(iter(store.splits))
    lengths = np.max(np.stack(task.lengths(split)), axis=0)
    short = np.flatnonzero(lengths <= LONGEST)
    batch = task.collate(split, np.array([short[0] if len(short) else int(lengths.argmin())]))
    names = {"source": "source", "target": "target"} if hasattr(batch, "source") else {"tokens": "tokens"}
    tokens = {
        side: trained.tokenizer.tokens(getattr(batch, name)[0].tolist()) for side, name in names.items()
    }
    model = cast(nn.Module, trained.model)
    with in_eval_mode(model), capture(model) as trace:
        task.loss(model, batch)
    labels = tokens if len(tokens) > 1 else next(iter(tokens.values()))
    trace.with_tokens(labels).draw(path)
    return True


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the plain values of nested objects under dotted names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    elif value is not None:
        yield name, value


def _table(rows: dict[str, Any]) -> list[str]:
    """Format rows as a Markdown table; a bar in a value would end its cell."""
    body = [f"| {name} | {str(_shown(value)).replace('|', chr(92) + '|')} |" for name, value in rows.items()]
    return ["| | |", "|---|---|", *body] if body else []


def _shown(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else _public(value) if isinstance(value, str) else value


def _public(text: str) -> str:
    """Return the names alone of files and folders: a local path is private, and of no use to readers.

    >>> _public("/home/me/runs/first, ../second"), _public("Enc(AW)")
    ('first, second', 'Enc(AW)')
    """
    return ", ".join(re.split(r"[/\\]", part.rstrip("/\\"))[-1] for part in text.split(", "))
