"""Differentiable windows for dynamic local attention, in PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffwindow.attention.differentiable_window import DifferentiableWindow
    from diffwindow.attention.window import WindowAttention
    from diffwindow.attention.window_module import use_impl, use_window_rule
    from diffwindow.data.prepare import prepare
    from diffwindow.decoding import Decoding
    from diffwindow.inference.model import evaluate, load
    from diffwindow.models.added_windows import add_windows, remove_windows
    from diffwindow.models.classifier import Classifier, ClassifierConfig
    from diffwindow.models.language_model import LanguageModel, LanguageModelConfig
    from diffwindow.models.translator import Translator, TranslatorConfig
    from diffwindow.notation import Plan, parse_attention
    from diffwindow.ops import (
        Boundaries,
        Maps,
        SoftWindow,
        compose_window,
        interval_attention,
        window_attention,
        window_maps,
    )
    from diffwindow.training.overrides import resolve
    from diffwindow.training.run import train
    from diffwindow.view.capture import capture
    from diffwindow.view.trace import AttentionTrace

__version__ = "0.3.0"

# Imported on first use, so that `import diffwindow` and the command line's help do not load PyTorch.
_HOMES = {
    "AttentionTrace": "view.trace",
    "Boundaries": "ops",
    "Classifier": "models.classifier",
    "ClassifierConfig": "models.classifier",
    "Decoding": "decoding",
    "DifferentiableWindow": "attention.differentiable_window",
    "LanguageModel": "models.language_model",
    "LanguageModelConfig": "models.language_model",
    "Plan": "notation",
    "Translator": "models.translator",
    "TranslatorConfig": "models.translator",
    "WindowAttention": "attention.window",
    "Maps": "ops",
    "SoftWindow": "ops",
    "add_windows": "models.added_windows",
    "capture": "view.capture",
    "compose_window": "ops",
    "evaluate": "inference.model",
    "interval_attention": "ops",
    "load": "inference.model",
    "parse_attention": "notation",
    "prepare": "data.prepare",
    "remove_windows": "models.added_windows",
    "resolve": "training.overrides",
    "train": "training.run",
    "use_impl": "attention.window_module",
    "use_window_rule": "attention.window_module",
    "window_attention": "ops",
    "window_maps": "ops",
}
__all__ = [
    "AttentionTrace",
    "Boundaries",
    "Classifier",
    "ClassifierConfig",
    "Decoding",
    "DifferentiableWindow",
    "LanguageModel",
    "LanguageModelConfig",
    "Maps",
    "Plan",
    "SoftWindow",
    "Translator",
    "TranslatorConfig",
    "WindowAttention",
    "add_windows",
    "capture",
    "compose_window",
    "evaluate",
    "interval_attention",
    "load",
    "parse_attention",
    "prepare",
    "remove_windows",
    "resolve",
    "train",
    "use_impl",
    "use_window_rule",
    "window_attention",
    "window_maps",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'diffwindow' has no attribute {name!r}")
    return getattr(import_module(f"diffwindow.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
