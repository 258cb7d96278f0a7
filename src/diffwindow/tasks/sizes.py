"""Sizes of models and lengths of training that suit a corpus, for the presets of the tasks; without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diffwindow.data.recipe import Settings

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


def training_tokens(manifest: dict[str, Any]) -> int:
    """Return the tokens of the training split, of the target in parallel text."""
    tokens: dict[str, int] = manifest["splits"]["train"]["tokens"]
    return tokens["target"] if manifest["task"] == "translation" else tokens["text"]


def size_of(manifest: dict[str, Any]) -> Size:
    """Return the size that suits a store.

    >>> rows = {"rows": 900, "tokens": {"text": 12_000}}
    >>> size_of({"task": "lm", "splits": {"train": rows}}).name
    'tiny'
    """
    tokens = training_tokens(manifest)
    return next(size for size in SIZES[manifest["task"]] if tokens < size.below)


def example_settings(manifest: dict[str, Any]) -> Settings:
    """Return what the texts decide: blocks of running text, cut long texts, no validation without a set."""
    train = manifest["splits"]["train"]
    mean = training_tokens(manifest) / max(1, train["rows"])
    settings: Settings = {"task": {}, "train": {}}
    if manifest["task"] == "lm" and mean >= SENTENCE_TOKENS:
        settings["task"]["block_size"] = 128
    if manifest["task"] == "classification" and mean >= LONG_TEXT_TOKENS:
        settings["task"]["max_length"] = 512
        settings["train"] |= {"max_tokens": 16_384, "max_rows": None}
    if "valid" not in manifest["splits"]:
        settings["train"] |= {"valid_every": None, "watch": "loss", "final": "last"}
    return settings
