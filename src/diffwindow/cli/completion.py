"""Names that the shell completes: presets, corpora and tables; without torch."""

from __future__ import annotations

from diffwindow.cli.library import data_corpora, reproduce_tables, tasks_entries


def complete_presets(incomplete: str) -> list[str]:
    """Return the presets that begin so; for anything else, the shell completes files."""
    return _beginning(incomplete, [*tasks_entries.TASKS, *data_corpora.CORPORA])


def complete_corpora(incomplete: str) -> list[str]:
    """Return the corpora that begin so."""
    return _beginning(incomplete, list(data_corpora.CORPORA))


def complete_tables(incomplete: str) -> list[str]:
    """Return the tables that begin so."""
    return _beginning(incomplete, ["list", "figure1", "figure2", *reproduce_tables.TABLES])


def _beginning(incomplete: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
