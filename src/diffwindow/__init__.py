"""Differentiable windows for dynamic local attention, in PyTorch."""

__version__ = "0.1.0.dev0"
