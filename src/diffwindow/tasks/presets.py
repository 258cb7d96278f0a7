"""Presets: the settings of an experiment by the name of its corpus, from those of its task."""

from __future__ import annotations

import copy
from typing import Any

from diffwindow.data.corpora import CORPORA
from diffwindow.data.recipe import Settings
from diffwindow.models.config import ModelConfig
from diffwindow.ops import check_choice
from diffwindow.tasks.registry import TASKS

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


def preset(name: str) -> Settings:
    """Return the settings of an experiment.

    >>> preset("sst2")["train"]["max_updates"]
    3000
    """
    check_choice("preset", name, NAMES)
    corpus = CORPORA[name]
    model = model_preset(name).model_dump(exclude=DECIDED_ELSEWHERE)
    settings = merged(TASK_PRESETS[corpus.task], corpus.preset)
    return settings | {"name": name, "data": {"corpus": name}, "model": model}


def model_preset(name: str, *, attention: str | None = None, vocab_size: int | None = None) -> ModelConfig:
    """Return the model of a preset, with another attention or vocabulary if asked.

    The vocabulary is as large as the paper or the corpus has it; a model that is trained on a prepared corpus
    takes the size of that corpus's own.

    >>> model_preset("sst2", attention="Enc(AW)").attention
    'Enc(AW)'
    """
    check_choice("preset", name, NAMES)
    corpus = CORPORA[name]
    _, config = TASKS[corpus.task]
    fields: dict[str, Any] = {"vocab_size": vocab_size or corpus.vocabulary.expected_size}
    if attention is not None:
        fields["attention"] = attention
    return config.read(corpus.preset.get("model", {}) | fields)


def merged(first: Settings, second: Settings) -> Settings:
    """Return settings with those of `second` over those of `first`, section by section.

    >>> merged({"train": {"lr": 1, "seed": 2}}, {"train": {"lr": 3}})
    {'train': {'lr': 3, 'seed': 2}}
    """
    both = copy.deepcopy(first)
    for key, value in second.items():
        both[key] = merged(both.get(key, {}), value) if isinstance(value, dict) else value
    return both
