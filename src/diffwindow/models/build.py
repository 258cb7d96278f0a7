"""From settings to models: which config makes which model."""

from collections.abc import Callable
from typing import Any

import torch

from diffwindow.messages import check_choice
from diffwindow.models.classifier import Classifier
from diffwindow.models.config import ModelConfig
from diffwindow.models.language_model import LanguageModel
from diffwindow.models.model import Model
from diffwindow.models.translator import Translator

MODELS: dict[str, type[Model[Any]]] = {
    "translator": Translator,
    "language_model": LanguageModel,
    "classifier": Classifier,
}


def read_config(fields: dict[str, Any]) -> ModelConfig:
    """Read the settings of a model from a file's fields, of which `model` says what it is.

    >>> read_config({"model": "classifier", "vocab_size": 100}).num_layers
    2
    """
    check_choice("model", fields.get("model"), list(MODELS))
    return MODELS[fields["model"]].config_class(**fields)


def build_model(config: ModelConfig) -> Model[Any]:
    """Build the model of a config, freshly initialised."""
    model_class: Callable[[Any], Model[Any]] = MODELS[config.model]
    return model_class(config)


def count_parameters(config: ModelConfig) -> int:
    """Count the parameters of a config's model without allocating them."""
    with torch.device("meta"):
        model = build_model(config)
    return sum(parameter.numel() for parameter in model.parameters())
