"""Windows in models of the `transformers` library, and our models on the Hugging Face hub (extra `hf`)."""

from importlib import import_module
from typing import TYPE_CHECKING

from diffwindow.extras import require

if TYPE_CHECKING:
    from diffwindow.hf.auto_models import as_transformers, register_auto_models, transformers_tokenizer
    from diffwindow.hf.checkpoint import load_windows, save_windows
    from diffwindow.hf.families import FAMILIES, Family
    from diffwindow.hf.fit import FittedWindows, fit_windows
    from diffwindow.hf.hub import download_model, push_run
    from diffwindow.hf.window_cache import WindowCache
    from diffwindow.hf.windows import add_windows, freeze_base, remove_windows, windows_of

# Imported on first use, so that `transformers` is only needed by what uses it.
_HOMES = {
    **dict.fromkeys(("as_transformers", "register_auto_models", "transformers_tokenizer"), "auto_models"),
    **dict.fromkeys(("load_windows", "save_windows"), "checkpoint"),
    **dict.fromkeys(("FAMILIES", "Family"), "families"),
    **dict.fromkeys(("FittedWindows", "fit_windows"), "fit"),
    **dict.fromkeys(("download_model", "push_run"), "hub"),
    "WindowCache": "window_cache",
    **dict.fromkeys(("add_windows", "freeze_base", "remove_windows", "windows_of"), "windows"),
}
__all__ = [
    "FAMILIES",
    "Family",
    "FittedWindows",
    "WindowCache",
    "add_windows",
    "as_transformers",
    "download_model",
    "fit_windows",
    "freeze_base",
    "load_windows",
    "push_run",
    "register_auto_models",
    "remove_windows",
    "save_windows",
    "transformers_tokenizer",
    "windows_of",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'diffwindow.hf' has no attribute {name!r}")
    require("transformers", "huggingface_hub")
    return getattr(import_module(f"diffwindow.hf.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
