"""Fine-tuning: start from the weights of a trained model, with windows added if it has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from diffwindow.models.added_windows import add_windows, window_plan
from diffwindow.models.pretrained import read_fields
from diffwindow.notation import parse
from diffwindow.tasks.presets import DECIDED_ELSEWHERE
from diffwindow.tasks.registry import TASKS, AnyTask
from diffwindow.tasks.trained_model import Trained, model_folder
from diffwindow.training.draft import Draft

# fields of a model's config that may differ from those of the model to start from
FREE_FIELDS = {"dropout", "attention_dropout", "activation_dropout", "init", "window_tolerance"}
# the weights of a classifier with a row per class
HEAD = ("output.weight", "output.bias")


def follow_start(draft: Draft) -> None:
    """Take the model's fields from the trained model that `start` names, unless they are set.

    Windows that the attention adds to a plain model start without effect: a multiplicative one gets a gate.
    """
    fields: dict[str, Any] = read_fields(model_folder(Path(draft.values["start"])))
    task = draft.values.get("task", {}).get("kind")
    if task in TASKS:
        wanted = TASKS[task][1].model_fields["model"].default
        if fields.get("model", wanted) != wanted:
            raise ValueError(f"start={draft.values['start']} holds a {fields['model']}, not a {wanted}")
    model = draft.values.setdefault("model", {})
    for name, value in fields.items():
        if name not in DECIDED_ELSEWHERE and ("model", name) not in draft.places:
            model[name] = value
    trained = fields.get("attention", "Global")
    if ("attention",) not in draft.places:
        draft.values["attention"] = trained
    elif parse(trained) != (plan := parse(str(draft.values["attention"]))):
        if parse(trained).terms:
            raise ValueError(
                f"{draft.place(('attention',))}: the model to start from has attention={trained!r}; "
                "windows can only be added to a plain model"
            )
        gated = window_plan(plan, layers=None, boundary_dim=None, init="identity")
        draft.values["attention"] = str(gated)


def starting_model(task: AnyTask, start: Path) -> nn.Module:
    """Return the task's model with the weights of a trained one; added windows do not change its outputs."""
    trained = Trained.load(start)
    # raises unless the vocabulary is the same
    trained.task(task.store)
    source, config, classes = trained.model, task.config, trained.classes_of(task.store)
    free = FREE_FIELDS | {"attention"} | ({"num_classes"} if classes else set())
    for name in type(config).model_fields:
        before, now = getattr(source.config, name, None), getattr(config, name)
        if before != now and name not in free:
            raise ValueError(f"model.{name}={now!r}, but the model of {start} has {before!r}; leave it out")
    model = task.build_model()
    if source.config.attention != config.attention:
        add_windows(source, config.attention)
    weights = source.state_dict()
    if classes:
        # the rows of the labels that the corpus has, in its order
        weights |= {name: weights[name][list(classes)] for name in HEAD}
    model.load_state_dict(weights)
    return model
