"""Scores: pure functions of what a model returned and what was right."""
