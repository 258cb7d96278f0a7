"""Trained models in use: what they see in a text, and a server that shows it."""
