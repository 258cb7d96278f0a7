"""Wherever annotations say shapes, they are checked at run time in every test."""

import os

import hypothesis
import pytest
import torch
from jaxtyping import config, install_import_hook

# Without a GPU Triton's interpreter runs its kernels; it must be chosen before they are imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

SHAPED = [
    "checks",
    "functional",
    "soft_window",
    "ops",
    # not those in Triton, which are no Python functions to be wrapped
    "kernels.cpu",
    "kernels.interval",
    "kernels.operator",
    "kernels.registration",
    "kernels.triton",
    "kernels.triton_launch",
    "attention",
    "models",
    "decoding.batches",
    "decoding.beam",
    "decoding.ensemble",
    "decoding.sampling",
    "decoding.search",
]
install_import_hook([f"diffwindow.{name}" for name in SHAPED], "beartype.beartype")

# Imported after the hook, which must see them.
from diffwindow.data.corpora import recipe_of  # noqa: E402
from diffwindow.data.own_files import plain_text  # noqa: E402
from diffwindow.data.prepare import prepare  # noqa: E402
from diffwindow.data.recipe import Recipe, Vocabulary  # noqa: E402
from diffwindow.data.synthetic import agreement  # noqa: E402

# The tensors here are small: a second thread would cost more than it gives.
torch.set_num_threads(1)

hypothesis.settings.register_profile("default", max_examples=25, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=1000, deadline=None)
hypothesis.settings.load_profile("default")


def pytest_xdist_auto_num_workers():
    """Let `-n auto` start one worker more than there are cores: many tests wait for other processes."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture
def unchecked():
    """Switch the run-time type checks off, to see what a user with a wrong argument sees."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def agreement_store(tmp_path_factory):
    return prepare(recipe_of("agreement", rows=2000), tmp_path_factory.mktemp("agreement") / "store")


@pytest.fixture(scope="session")
def reorder_store(tmp_path_factory):
    return prepare(recipe_of("reorder", rows=2000), tmp_path_factory.mktemp("reorder") / "store")


@pytest.fixture(scope="session")
def text_store(tmp_path_factory):
    """Sentences of the agreement grammar as language-model text, in subwords."""
    folder = tmp_path_factory.mktemp("text")
    sources = {}
    for split, size in (("train", 1000), ("valid", 100), ("test", 100)):
        file = folder / f"{split}.txt"
        file.write_text("".join(f"{example.sentence}\n" for example in agreement(size, part=split)))
        sources[split] = plain_text(file)
    return prepare(Recipe("sentences", "language-model", sources, Vocabulary("bpe", 300)), folder / "store")
