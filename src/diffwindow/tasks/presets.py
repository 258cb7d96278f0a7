"""Presets: the settings of an experiment by the name of its corpus or of its task."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from diffwindow.data.corpora import CORPORA
from diffwindow.data.integrity import read_manifest
from diffwindow.data.recipe import Settings
from diffwindow.data.store import Store, is_store
from diffwindow.models.config import ModelConfig
from diffwindow.spelling import check_choice
from diffwindow.tasks.registry import TASKS, corpus_fields
from diffwindow.tasks.sizes import TASKS_BY_PRESET, example_settings, size_of, training_tokens

# fields of a model's config that are not the preset's: the corpus decides them, or the command
DECIDED_ELSEWHERE = {"model", "vocab_size", "num_classes", "attention"}
# Adam, inverse square root after 4,000 updates from 1e-7 and no clipping are the defaults of the training
TASK_PRESETS: dict[str, Settings] = {
    "translation": {
        "task": {"kind": "translation", "label_smoothing": 0.1},
        "train": {"max_tokens": 4096, "final": "average"},
    },
    # neither batch size nor rate is published for these: plain choices, not tuned
    "classification": {
        "task": {"kind": "classification"},
        "train": {
            "warmup": 400,
            "clip_norm": 1.0,
            "log_every": 50,
            "valid_every": 250,
            "save_every": 250,
            "watch": "accuracy",
            "final": "best",
        },
    },
    "lm": {"task": {"kind": "lm"}, "train": {"max_tokens": 4096}},
}
NAMES = tuple(CORPORA)


def preset(name: str, data: Path | None = None) -> Settings:
    """Return the settings of an experiment by the name of its corpus, or of a task and the store `data`.

    >>> preset("sst2")["train"]["max_updates"]
    3000
    """
    check_choice("preset", name, (*NAMES, *TASKS_BY_PRESET))
    if name in TASKS_BY_PRESET:
        return _task_preset(name, data)
    corpus = CORPORA[name]
    settings = merged(TASK_PRESETS[corpus.task], corpus.preset)
    return _complete(name, settings, name)


def _task_preset(name: str, data: Path | None) -> Settings:
    """Return the settings of a task, with sizes that suit the prepared corpus `data`."""
    if data is None or not is_store(data):
        where = f", which {data} is not" if data else ""
        raise ValueError(
            f"the preset {name!r} takes its sizes from a prepared corpus{where}; give one, as --data STORE"
        )
    manifest = read_manifest(data)
    task = TASKS_BY_PRESET[name]
    if manifest["task"] != task:
        right = next(one for one, of_task in TASKS_BY_PRESET.items() if of_task == manifest["task"])
        raise ValueError(f"{data} is prepared for {manifest['task']}, not for {task}; train {right}")
    settings = merged(TASK_PRESETS[task], size_of(manifest).settings)
    return _complete(name, merged(settings, example_settings(manifest)), manifest["settings"]["corpus"])


def _complete(name: str, settings: Settings, corpus: str) -> Settings:
    """Return settings with every field of the model that is neither the corpus's nor the command's."""
    _, config = TASKS[settings["task"]["kind"]]
    model = config(**{"vocab_size": 4} | settings.get("model", {})).model_dump(exclude=DECIDED_ELSEWHERE)
    return settings | {"name": name, "data": {"corpus": corpus}, "model": model}


def describe_sizes(name: str, data: Path, settings: Settings) -> str:
    """Return a line with the sizes of a run that a task's preset chose for a store, or an override."""
    manifest = read_manifest(data)
    layers = [settings["model"][field] for field in settings["model"] if field.endswith("layers")]
    task = TASKS_BY_PRESET[name]
    parts = [
        f"{size_of(manifest).name} sizes for {training_tokens(manifest):,} training tokens",
        f"width {settings['model']['embed_dim']}",
        f"{' + '.join(map(str, layers))} layers",
        f"{settings['train']['max_updates']:,} updates",
    ]
    if task == "lm":
        blocks = settings["task"].get("block_size")
        parts.append(f"blocks of {blocks} tokens" if blocks else "each line by itself")
    if "valid" not in manifest["splits"]:
        parts.append("no validation set, so the last model is kept")
    return f"{name}: {', '.join(parts)}"


def model_preset(
    name: str, data: Path | None = None, *, attention: str | None = None, vocab_size: int | None = None
) -> ModelConfig:
    """Return the model of a preset, with another attention or vocabulary if asked.

    The vocabulary is as large as the paper or the corpus has it; a model that is trained on a prepared corpus
    takes the size of that corpus's own. The preset of a task needs the store `data`.

    >>> model_preset("sst2", attention="Enc(AW)").attention
    'Enc(AW)'
    """
    settings = preset(name, data)
    fields: dict[str, Any]
    if name in TASKS_BY_PRESET:
        assert data is not None
        fields = settings["model"] | corpus_fields(Store.open(data))
    else:
        corpus = CORPORA[name]
        fields = corpus.preset.get("model", {}) | {"vocab_size": corpus.vocabulary.expected_size}
    asked = {"attention": attention, "vocab_size": vocab_size}
    _, config = TASKS[settings["task"]["kind"]]
    return config(**fields | {key: value for key, value in asked.items() if value is not None})


def merged(first: Settings, second: Settings) -> Settings:
    """Return settings with those of `second` over those of `first`, section by section.

    >>> merged({"train": {"lr": 1, "seed": 2}}, {"train": {"lr": 3}})
    {'train': {'lr': 3, 'seed': 2}}
    """
    both = copy.deepcopy(first)
    for key, value in second.items():
        both[key] = merged(both.get(key, {}), value) if isinstance(value, dict) else value
    return both
