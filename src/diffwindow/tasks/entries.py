"""TASKS: one entry per task, with everything that differs between tasks; without torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from diffwindow.data.recipe import Settings
from diffwindow.data.trees import Placebo
from diffwindow.messages import check_choice

if TYPE_CHECKING:
    from pathlib import Path

    from diffwindow.data.store import Manifest, Store
    from diffwindow.models.config import ModelConfig
    from diffwindow.models.model import Model


class TaskOptions(BaseModel):
    """Settings of the loss and of the examples, not of the model; a task's entry names its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of the target probability that is spread over the vocabulary."""
    block_size: Annotated[int, Field(ge=1)] | None = None
    """Cut a language model's text into blocks of so many tokens; null: a line is an example."""
    max_length: Annotated[int, Field(ge=1)] | None = None
    """Let a classifier read only the first tokens of a text; null: all."""
    bleu_sentences: Annotated[int, Field(ge=1)] | None = None
    """Compute BLEU of a validation on so many sentences; null: on all."""
    class_weights: Literal["balanced"] | None = None
    """`balanced` weighs a class in the loss by examples / (classes · its examples)."""
    phrase_height: Annotated[int, Field(ge=0)] = 1
    """Windows of phrases get those of a store's trees that have at most this height."""
    phrase_placebo: Placebo | None = None
    """Put their ends elsewhere: as in another text, or at random, with the same lengths."""
    valid_tokens: Annotated[int, Field(ge=1)] = 4096
    """Largest batch of a validation, in padded tokens."""


@dataclass(frozen=True)
class Size:
    """Settings for corpora with fewer training tokens than `below`."""

    name: str
    below: float
    settings: Settings


@dataclass(frozen=True)
class TaskEntry:
    """A task; classes and functions are named as "module:name" and imported when they are used.

    `kind` is what the config of its model calls it. `evaluate` scores a trained model on a split, `wrapper`
    makes it a model of transformers, `pipeline` is its tag on the hub. `options` are those of `TaskOptions`
    that it has. `metric` and `attentions` are what `diffwindow compare` shows and trains.
    """

    name: str
    kind: str
    task: str
    model: str
    evaluate: str
    pipeline: str
    options: tuple[str, ...]
    metric: str
    attentions: tuple[str, ...]
    preset: Settings
    sizes: tuple[Size, ...]
    wrapper: str | None = None
    # texts with more tokens than this on average get these settings too
    long_texts: tuple[float, Settings] = (float("inf"), {})
    # whether its model makes logits of tokens with its embedding
    predicts_tokens: bool = True

    @property
    def noun(self) -> str:
        """Name the model in a sentence."""
        return self.kind.replace("_", " ")

    @property
    def model_class(self) -> type[Model[Any]]:
        """Import the class of the model."""
        model_class: type[Model[Any]] = load_named(self.model)
        return model_class

    @property
    def config_class(self) -> type[ModelConfig]:
        """Import the class of the model's config."""
        return self.model_class.config_class


def load_named(name: str) -> Any:
    """Import what "module:name" names in this package.

    >>> load_named("messages:quote")("a")
    "'a'"
    """
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"diffwindow.{module}"), attribute)


_OFTEN = {"log_every": 50, "valid_every": 250, "save_every": 250}
_ROTARY = "Global+positions=rotary"

# Sizes are plain choices after the presets of the known corpora, not tuned. Adam, inverse square root after
# 4,000 updates from 1e-7 and no clipping are the defaults of the training.
TRANSLATION = TaskEntry(
    name="translation",
    kind="translator",
    task="tasks.translation:Translation",
    model="models.translator:Translator",
    evaluate="evaluation.evaluate:evaluate_translation",
    wrapper="hf.auto_models:TranslatorForSeq2SeqLM",
    pipeline="translation",
    options=("label_smoothing", "bleu_sentences", "valid_tokens"),
    metric="bleu",
    attentions=(
        *("Global", _ROTARY, "Enc(Rel)@all-Dec(Rel)@all"),
        *("Enc(AW)-Dec(MW)", "Enc(AW)-Cr(AW,Seg)-Dec(MW)"),
    ),
    preset={
        "task": {"kind": "translation", "label_smoothing": 0.1},
        "train": {"max_tokens": 4096, "final": "average"},
    },
    sizes=(
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
)

CLASSIFICATION = TaskEntry(
    name="classification",
    kind="classifier",
    task="tasks.classification:Classification",
    model="models.classifier:Classifier",
    evaluate="evaluation.evaluate:evaluate_classification",
    wrapper="hf.auto_models:ClassifierForSequenceClassification",
    pipeline="text-classification",
    options=(
        *("label_smoothing", "max_length", "class_weights", "valid_tokens"),
        *("phrase_height", "phrase_placebo"),
    ),
    metric="accuracy",
    attentions=("Global", _ROTARY, "Enc(Rel)@all", "Enc(MW)", "Enc(AW)"),
    # neither batch size nor rate is published: plain choices, not tuned
    preset={
        "task": {"kind": "classification"},
        "train": {"warmup": 400, "clip_norm": 1.0, **_OFTEN, "watch": "accuracy", "final": "best"},
    },
    sizes=(
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
    # cut, and batches hold more of them
    long_texts=(256, {"task": {"max_length": 512}, "train": {"max_tokens": 16_384, "max_rows": None}}),
    predicts_tokens=False,
)

LANGUAGE_MODEL = TaskEntry(
    name="language-model",
    kind="language_model",
    task="tasks.language_modeling:LanguageModeling",
    model="models.language_model:LanguageModel",
    evaluate="evaluation.evaluate:evaluate_language_model",
    wrapper="hf.auto_models:LanguageModelForCausalLM",
    pipeline="text-generation",
    options=("label_smoothing", "block_size", "valid_tokens"),
    metric="perplexity",
    attentions=("Global", _ROTARY, "Dec(Rel)@all", "Dec(MW)", "Dec(AW)"),
    preset={"task": {"kind": "language-model"}, "train": {"max_tokens": 4096}},
    sizes=(
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
    # lines with fewer tokens are sentences, examples by themselves
    long_texts=(50, {"task": {"block_size": 128}}),
)

TASKS = {entry.name: entry for entry in (TRANSLATION, CLASSIFICATION, LANGUAGE_MODEL)}
# by what a model's config calls it
MODELS = {entry.kind: entry for entry in TASKS.values()}


def entry_of(manifest: Manifest, folder: Path) -> TaskEntry:
    """Return the entry of a store's task; raise if there is none."""
    check_choice(f"{folder}: task", manifest.task, list(TASKS))
    return TASKS[manifest.task]


def corpus_fields(store: Store) -> dict[str, int]:
    """Return the fields of a model's config that the corpus decides: vocabulary and number of classes."""
    decided = {"vocab_size": store.tokenizer.vocab_size, "num_classes": len(store.labels)}
    known = entry_of(store.manifest, store.folder).config_class.model_fields
    return {name: value for name, value in decided.items() if name in known}
