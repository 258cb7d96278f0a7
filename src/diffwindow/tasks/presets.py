"""Presets: named configs, and sizes and lengths of training that suit your own data; without torch."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffwindow.data.corpora import CORPORA
from diffwindow.data.recipe import Settings
from diffwindow.data.store import Manifest, Store, is_store, read_manifest
from diffwindow.messages import check_choice
from diffwindow.models.config import ModelConfig
from diffwindow.tasks.registry import TASKS, corpus_fields

TASKS_BY_PRESET = {"translation": "translation", "classification": "classification", "language-model": "lm"}
# a line of text with fewer tokens on average is a sentence, an example by itself
SENTENCE_TOKENS = 50
# texts with more tokens on average are cut, and batches hold more of them
LONG_TEXT_TOKENS = 256
_OFTEN = {"log_every": 50, "valid_every": 250, "save_every": 250}


@dataclass(frozen=True)
class Size:
    """Settings for corpora with fewer training tokens than `below`."""

    name: str
    below: float
    settings: Settings


# plain choices after the presets of the known corpora, not tuned
SIZES: dict[str, tuple[Size, ...]] = {
    "translation": (
        Size(
            "tiny",
            100_000,
            {
                "model": {
                    "embed_dim": 128,
                    "ffn_dim": 512,
                    "num_heads": 4,
                    "encoder_layers": 2,
                    "decoder_layers": 2,
                    "dropout": 0.2,
                },
                "train": {"max_updates": 2_000, "max_tokens": 2048, "lr": 1e-3, "warmup": 400, **_OFTEN},
            },
        ),
        Size(
            "small",
            2_000_000,
            {
                "model": {
                    "embed_dim": 256,
                    "ffn_dim": 1024,
                    "num_heads": 4,
                    "encoder_layers": 3,
                    "decoder_layers": 3,
                },
                "train": {"max_updates": 6_000, "warmup": 1_000, "valid_every": 500, "save_every": 500},
            },
        ),
        Size(
            "medium",
            30_000_000,
            {
                "model": {"embed_dim": 512, "ffn_dim": 1024, "num_heads": 4, "dropout": 0.3},
                "train": {"max_updates": 30_000},
            },
        ),
        Size("large", float("inf"), {"train": {"max_updates": 100_000, "accumulate": 8}}),
    ),
    "classification": (
        Size(
            "tiny",
            20_000,
            {
                "model": {"dropout": 0.2},
                "train": {
                    "max_updates": 500,
                    "max_rows": 32,
                    "lr": 1e-3,
                    "warmup": 100,
                    "valid_every": 50,
                    "save_every": 50,
                },
            },
        ),
        Size("small", 1_000_000, {"train": {"max_updates": 3_000, "max_rows": 64}}),
        Size("large", float("inf"), {"train": {"max_updates": 10_000, "valid_every": 500}}),
    ),
    "lm": (
        Size(
            "tiny",
            200_000,
            {
                "model": {"embed_dim": 128, "ffn_dim": 512, "num_heads": 4, "num_layers": 2, "dropout": 0.2},
                "train": {
                    "max_updates": 2_000,
                    "max_tokens": 2048,
                    "lr": 1e-3,
                    "warmup": 400,
                    "clip_norm": 1.0,
                    "final": "best",
                    **_OFTEN,
                },
            },
        ),
        Size(
            "small",
            5_000_000,
            {
                "model": {"embed_dim": 256, "ffn_dim": 1024, "num_heads": 4, "num_layers": 4, "dropout": 0.3},
                "train": {"max_updates": 10_000, "clip_norm": 1.0, "valid_every": 500, "final": "best"},
            },
        ),
        Size("medium", 100_000_000, {"train": {"max_updates": 50_000, "clip_norm": 1.0, "final": "best"}}),
        Size("large", float("inf"), {"train": {"max_updates": 100_000, "accumulate": 8}}),
    ),
}


def training_tokens(manifest: Manifest) -> int:
    """Return the tokens of the training split, of the target in parallel text."""
    train = manifest.splits["train"]
    return train.tokens[train.sequences[-1]]


def size_of(manifest: Manifest) -> Size:
    """Return the size that suits a store."""
    tokens = training_tokens(manifest)
    return next(size for size in SIZES[manifest.task] if tokens < size.below)


def example_settings(manifest: Manifest) -> Settings:
    """Return what the texts decide: blocks of running text, cut long texts, no validation without a set."""
    mean = training_tokens(manifest) / max(1, manifest.splits["train"].rows)
    settings: Settings = {"task": {}, "train": {}}
    if manifest.task == "lm" and mean >= SENTENCE_TOKENS:
        settings["task"]["block_size"] = 128
    if manifest.task == "classification" and mean >= LONG_TEXT_TOKENS:
        settings["task"]["max_length"] = 512
        settings["train"] |= {"max_tokens": 16_384, "max_rows": None}
    if "valid" not in manifest.splits:
        settings["train"] |= {"valid_every": None, "watch": "loss", "final": "last"}
    return settings


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
    if manifest.task != task:
        right = next(one for one, of_task in TASKS_BY_PRESET.items() if of_task == manifest.task)
        raise ValueError(f"{data} is prepared for {manifest.task}, not for {task}; train {right}")
    settings = merged(TASK_PRESETS[task], size_of(manifest).settings)
    return _complete(name, merged(settings, example_settings(manifest)), manifest.settings.corpus)


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
    if "valid" not in manifest.splits:
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
