"""Trained models in use: `load`, attention traces, and the server of the live page."""
