"""Marks that the tests of several kernels share."""

import pytest

from diffwindow.kernels import toolchain

NEEDS_COMPILER = pytest.mark.skipif(toolchain.compiler() is None, reason="no C++ compiler")
BOTH_KINDS = pytest.mark.parametrize("additive", [False, True], ids=["multiplicative", "additive"])
