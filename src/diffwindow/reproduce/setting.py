"""Setting: how a column is trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """How a scale trains a column: a preset, what it changes, and the corpus with its vocabulary and size.

    `kept` is the share of the training rows, in thousandths, chosen by the hash of their text. `task` reads
    the corpus for another task than its own.
    """

    preset: str
    overrides: tuple[str, ...] = ()
    corpus: str | None = None
    vocab_size: int | None = None
    rows: int | None = None
    kept: int = 1000
    task: str | None = None

    @property
    def corpus_name(self) -> str:
        """Name the corpus."""
        return self.corpus or self.preset

    @property
    def store_name(self) -> str:
        """Name the prepared corpus: two settings that share it share the name.

        >>> Setting("sst2", kept=50).store_name
        'sst2-kept50'
        """
        parts = {"vocab": self.vocab_size, "rows": self.rows, "kept": self.kept if self.kept < 1000 else None}
        names = [self.corpus_name, *([self.task] if self.task else [])]
        return "-".join([*names, *(f"{name}{n}" for name, n in parts.items() if n is not None)])
