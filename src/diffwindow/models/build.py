"""From settings to models: which config makes which model."""

from typing import Any

import torch

from diffwindow.models.classifier import Classifier, ClassifierConfig
from diffwindow.models.config import ModelConfig
from diffwindow.models.language_model import LanguageModel, LanguageModelConfig
from diffwindow.models.translator import Translator, TranslatorConfig
from diffwindow.ops import check_choice

Model = Translator | LanguageModel | Classifier
MODELS: dict[str, tuple[type[ModelConfig], type[Model]]] = {
    "translator": (TranslatorConfig, Translator),
    "language_model": (LanguageModelConfig, LanguageModel),
    "classifier": (ClassifierConfig, Classifier),
}


def read_config(fields: dict[str, Any]) -> ModelConfig:
    """Read the settings of a model from a file's fields, of which `model` says what it is.

    >>> read_config({"model": "classifier", "vocab_size": 100}).num_layers
    2
    """
    check_choice("model", fields.get("model"), list(MODELS))
    return MODELS[fields["model"]][0].read(fields)


def build_model(config: ModelConfig) -> Model:
    """Build the model of a config, freshly initialised."""
    for config_class, model_class in MODELS.values():
        if isinstance(config, config_class):
            return model_class(config)  # type: ignore[arg-type]
    raise TypeError(f"{type(config).__name__} is not the config of a model")


def count_parameters(config: ModelConfig) -> int:
    """Count the parameters of a config's model without allocating them."""
    with torch.device("meta"):
        model = build_model(config)
    return sum(parameter.numel() for parameter in model.parameters())
