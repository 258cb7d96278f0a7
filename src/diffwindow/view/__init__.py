"""Capture what a model attends to, and show it as figures, statistics and a page."""
