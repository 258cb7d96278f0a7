"""Which task a corpus is for, and the fields of a model that a corpus decides."""

from dataclasses import fields
from typing import Any

from diffwindow.data.store import Store
from diffwindow.models.classifier import Classifier, ClassifierConfig
from diffwindow.models.config import ModelConfig
from diffwindow.models.language_model import LanguageModel, LanguageModelConfig
from diffwindow.models.model import Model
from diffwindow.models.translator import Translator, TranslatorConfig
from diffwindow.tasks.classification import Classification
from diffwindow.tasks.language_modeling import LanguageModeling
from diffwindow.tasks.options import TaskOptions
from diffwindow.tasks.translation import Translation

MODELS: dict[str, type[Model[Any]]] = {
    "translator": Translator,
    "language_model": LanguageModel,
    "classifier": Classifier,
}
AnyTask = Translation | Classification | LanguageModeling
TASKS: dict[str, tuple[type[AnyTask], type[ModelConfig]]] = {
    "translation": (Translation, TranslatorConfig),
    "classification": (Classification, ClassifierConfig),
    "lm": (LanguageModeling, LanguageModelConfig),
}


def task_name(config: ModelConfig) -> str:
    """Return the task that a model is for."""
    return next(name for name, (_, kind) in TASKS.items() if isinstance(config, kind))


def corpus_fields(store: Store) -> dict[str, int]:
    """Return the fields of a model's config that the corpus decides: vocabulary and number of classes."""
    decided = {"vocab_size": store.tokenizer.vocab_size}
    if store.task == "classification":
        decided["num_classes"] = len(store.labels)
    return decided


def model_config(store: Store, settings: dict[str, Any]) -> ModelConfig:
    """Build the config of the store's model: `settings`, and what the corpus decides."""
    _, config = TASKS[store.task]
    return config(**settings | corpus_fields(store))


def task_of(store: Store, config: ModelConfig, options: TaskOptions | None = None) -> AnyTask:
    """Build the task of a store; raise if the model or an option is not for it."""
    kind, config_kind = TASKS[store.task]
    if not isinstance(config, config_kind):
        raise ValueError(f"{store.folder} is for {store.task}, which a {type(config).__name__} cannot do")
    if config.vocab_size != store.tokenizer.vocab_size:
        raise ValueError(
            f"the model has a vocabulary of {config.vocab_size:,}, but that of {store.folder} has "
            f"{store.tokenizer.vocab_size:,}; use the corpus that the model was made for"
        )
    classes = corpus_fields(store).get("num_classes", 0)
    if isinstance(config, ClassifierConfig) and classes > config.num_classes:
        raise ValueError(
            f"the model has {config.num_classes} classes, but {store.folder} has {classes}; "
            "use the corpus that the model was made for"
        )
    given = (options or TaskOptions()).model_dump(
        include=set(TaskOptions.model_fields), exclude_defaults=True
    )
    known = {field.name for field in fields(kind)}
    for name in given:
        if name not in known:
            raise ValueError(f"{name}={given[name]} is not an option of {store.task}; leave it out")
    task: AnyTask = kind(store, config, **given)  # type: ignore[arg-type]
    return task
