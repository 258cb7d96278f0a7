"""The extras of `diffwindow`, the optional packages they install, and the error if one is missing."""

from __future__ import annotations

from importlib.util import find_spec

# the modules of each extra, as they are imported; pyproject.toml lists the packages
EXTRAS = {
    "toolkit": (
        "matplotlib",
        "rich",
        "sacrebleu",
        "sacremoses",
        "scipy",
        "tensorboard",
        "tokenizers",
        "typer",
        "yaml",
    ),
    "data": ("datasets",),
    "hf": ("huggingface_hub", "transformers"),
    "web": ("h11", "starlette", "uvicorn"),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "gpu": ("triton",),
    "wandb": ("wandb",),
}


class MissingExtraError(ModuleNotFoundError):
    """An optional package is not installed; the message names the extra that installs it."""


def missing_error(package: str) -> MissingExtraError:
    """Return the error for a package of an extra that is not installed."""
    extra = next(extra for extra, packages in EXTRAS.items() if package in packages)
    return MissingExtraError(
        f"this needs the package {package}: pip install 'diffwindow[{extra}]'", name=package
    )


def is_optional(package: str) -> bool:
    """Return whether a package belongs to an extra."""
    return any(package in packages for packages in EXTRAS.values())


def require(*packages: str) -> None:
    """Raise an error that names the extra if one of these packages is not installed.

    >>> require("typer")
    """
    for package in packages:
        if find_spec(package) is None:
            raise missing_error(package)
