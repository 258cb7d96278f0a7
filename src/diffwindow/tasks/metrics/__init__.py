"""Scores: pure functions from what a model gave and what was right to numbers."""
