"""Presets: named configs, and sizes and lengths of training that suit your own data; without torch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING

from diffwindow.data.corpora import CORPORA
from diffwindow.data.recipe import Settings
from diffwindow.data.store import Manifest, Store, is_store, read_manifest
from diffwindow.messages import check_choice
from diffwindow.tasks.entries import TASKS, Size, corpus_fields

if TYPE_CHECKING:
    from diffwindow.models.config import ModelConfig

# fields of a model's config that are not the preset's, and what decides them
DECIDED_ELSEWHERE = {
    "attention": "the attention is not in this section; set attention=…",
    "vocab_size": "the corpus decides the vocabulary; choose its size when it is prepared",
    "num_classes": "the corpus decides the number of classes",
    "model": "the task decides the kind of model",
}
NAMES = tuple(CORPORA)


def training_tokens(manifest: Manifest) -> int:
    """Return the tokens of the training split, of the target in parallel text."""
    train = manifest.splits["train"]
    return train.tokens[train.sequences[-1]]


def size_of(manifest: Manifest) -> Size:
    """Return the size that suits a store."""
    tokens = training_tokens(manifest)
    return next(size for size in TASKS[manifest.task].sizes if tokens < size.below)


def example_settings(manifest: Manifest) -> Settings:
    """Return what the texts decide: blocks of running text, cut long texts, no validation without a set."""
    mean = training_tokens(manifest) / max(1, manifest.splits["train"].rows)
    long, for_long_texts = TASKS[manifest.task].long_texts
    settings = for_long_texts if mean >= long else {}
    if "valid" not in manifest.splits:
        settings = merge(settings, {"train": {"valid_every": None, "watch": "loss", "final": "last"}})
    return settings


def preset(name: str, data: Path | None = None) -> Settings:
    """Return the settings of an experiment by the name of its corpus, or of a task and the store `data`.

    >>> preset("sst2")["train"]["max_updates"]
    3000
    """
    check_choice("preset", name, (*NAMES, *TASKS))
    if name in TASKS:
        return _task_preset(name, data)
    corpus = CORPORA[name]
    settings = merge(TASKS[corpus.task].preset, corpus.preset)
    return _complete(name, settings, name)


def _task_preset(name: str, data: Path | None) -> Settings:
    if data is None or not is_store(data):
        where = f", which {data} is not" if data else ""
        raise ValueError(
            f"the preset {name!r} takes its sizes from a prepared corpus{where}; give one, as --data STORE"
        )
    manifest = read_manifest(data)
    if manifest.task != name:
        raise ValueError(f"{data} is prepared for {manifest.task}, not for {name}; train {manifest.task}")
    settings = merge(TASKS[name].preset, size_of(manifest).settings)
    return _complete(name, merge(settings, example_settings(manifest)), manifest.settings.corpus)


def _complete(name: str, settings: Settings, corpus: str) -> Settings:
    """Return settings with every field of the model that is neither the corpus's nor the command's."""
    config = TASKS[settings["task"]["kind"]].config_class
    model = config(**{"vocab_size": 4} | settings.get("model", {})).model_dump(exclude=set(DECIDED_ELSEWHERE))
    return settings | {"name": name, "data": {"corpus": corpus}, "model": model}


def describe_sizes(name: str, data: Path, settings: Settings) -> str:
    """Return a line with the sizes of a run that a task's preset chose for a store, or an override."""
    manifest = read_manifest(data)
    layers = [settings["model"][field] for field in settings["model"] if field.endswith("layers")]
    parts = [
        f"{size_of(manifest).name} sizes for {training_tokens(manifest):,} training tokens",
        f"width {settings['model']['embed_dim']}",
        f"{' + '.join(map(str, layers))} layers",
        f"{settings['train']['max_updates']:,} updates",
    ]
    if "block_size" in TASKS[name].options:
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
    if name in TASKS:
        assert data is not None
        fields = settings["model"] | corpus_fields(Store.open(data))
    else:
        corpus = CORPORA[name]
        fields = corpus.preset.get("model", {}) | {"vocab_size": corpus.vocabulary.expected_size}
    asked = {"attention": attention, "vocab_size": vocab_size}
    config = TASKS[settings["task"]["kind"]].config_class
    return config(**fields | {key: value for key, value in asked.items() if value is not None})


def merge(first: Settings, second: Settings) -> Settings:
    """Return settings with those of `second` over those of `first`, section by section.

    >>> merge({"train": {"lr": 1, "seed": 2}}, {"train": {"lr": 3}})
    {'train': {'lr': 3, 'seed': 2}}
    """
    both = copy.deepcopy(first)
    for key, value in second.items():
        both[key] = merge(both.get(key, {}), value) if isinstance(value, dict) else value
    return both
