"""Wherever annotations say shapes, they are checked at run time in every test."""

import hypothesis
import pytest
import torch
from jaxtyping import config, install_import_hook

SHAPED = ["arguments", "functional", "ops", "kernels", "modules", "models"]
install_import_hook([f"diffwindow.{name}" for name in SHAPED], "beartype.beartype")

# The tensors here are small: a second thread would cost more than it gives.
torch.set_num_threads(1)

hypothesis.settings.register_profile("default", max_examples=25, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=1000, deadline=None)
hypothesis.settings.load_profile("default")


@pytest.fixture
def unchecked():
    """Switch the run-time type checks off, to see what a user with a wrong argument sees."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
