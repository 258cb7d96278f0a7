"""The experiments by name: a table of what each changes; models come from `models.presets`."""

from __future__ import annotations

import copy
from typing import Any

from diffwindow.models import presets as models
from diffwindow.ops import check_choice

Settings = dict[str, Any]

# Adam, inverse square root after 4,000 updates from 1e-7 and no clipping are the defaults of TrainConfig
_TRANSLATION: Settings = {
    "task": {"kind": "translation", "label_smoothing": 0.1},
    "train": {"max_tokens": 4096, "final": "average"},
}
# neither batch size nor rate is published for these: plain choices, not tuned
_CLASSIFICATION: Settings = {
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
}
_LANGUAGE_MODEL: Settings = {"task": {"kind": "lm"}, "train": {"max_tokens": 4096}}

# name: (what it shares with others, what it changes)
_EXPERIMENTS: dict[str, tuple[Settings, Settings]] = {
    "wmt14-en-de": (_TRANSLATION, {"train": {"max_updates": 200_000, "accumulate": 8}}),
    "wmt14-en-fr": (_TRANSLATION, {"train": {"max_updates": 150_000, "accumulate": 8}}),
    "multi30k-en-de": (
        _TRANSLATION,
        {"train": {"max_updates": 6_000, "warmup": 1_000, "valid_every": 500, "save_every": 500}},
    ),
    "reorder": (
        _TRANSLATION,
        {
            "train": {
                "max_updates": 1_500,
                "lr": 2e-3,
                "warmup": 200,
                "log_every": 50,
                "valid_every": 250,
                "save_every": 250,
            }
        },
    ),
    "lm1b": (_LANGUAGE_MODEL, {"train": {"max_updates": 100_000, "accumulate": 8}}),
    "wikitext2": (
        _LANGUAGE_MODEL,
        {
            "task": {"block_size": 128},
            "train": {"max_updates": 10_000, "clip_norm": 1.0, "valid_every": 500, "final": "best"},
        },
    ),
    "sst2": (_CLASSIFICATION, {"train": {"max_updates": 3_000}}),
    "imdb": (
        _CLASSIFICATION,
        {
            "task": {"max_length": 512},
            "train": {"max_updates": 10_000, "max_tokens": 16_384, "valid_every": 500},
        },
    ),
    "sva": (_CLASSIFICATION, {"train": {"max_updates": 10_000, "valid_every": 500}}),
    "agreement": (
        _CLASSIFICATION,
        {"train": {"max_updates": 1_000, "lr": 2e-3, "warmup": 100, "valid_every": 100, "save_every": 100}},
    ),
}
NAMES = tuple(_EXPERIMENTS)


def preset(name: str) -> Settings:
    """Give the settings of an experiment.

    >>> preset("sst2")["train"]["max_updates"]
    3000
    """
    check_choice("preset", name, NAMES)
    shared, own = _EXPERIMENTS[name]
    # what the corpus decides is left to it
    model = models.PRESETS[name].model_dump(exclude={"model", "vocab_size", "num_classes", "attention"})
    return _merged(shared, own) | {"name": name, "data": {"corpus": name}, "model": model}


def _merged(first: Settings, second: Settings) -> Settings:
    merged = copy.deepcopy(first)
    for key, value in second.items():
        merged[key] = _merged(merged.get(key, {}), value) if isinstance(value, dict) else value
    return merged
