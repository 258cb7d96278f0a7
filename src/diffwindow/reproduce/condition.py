"""Condition: one thing changed about a corpus or its training, the same for every row."""

from __future__ import annotations

from dataclasses import dataclass, replace

from diffwindow.reproduce.setting import Setting
from diffwindow.reproduce.table import Column


@dataclass(frozen=True)
class Condition:
    """A change to a setting, and its name in a column's name and title."""

    name: str
    title: str
    overrides: tuple[str, ...] = ()
    vocab_size: int | None = None

    def named(self, column: str) -> str:
        """Name a column under this condition."""
        return f"{column}-{self.name}"

    def column(self, base: Column) -> Column:
        """Give the column of a corpus under this condition.

        >>> Condition("deep", "4 layers").column(Column("sst", "SST-2", "accuracy")).name
        'sst-deep'
        """
        return replace(base, name=self.named(base.name), title=f"{base.title}, {self.title}")

    def setting(self, base: Setting) -> Setting:
        """Give a setting under this condition."""
        return replace(
            base,
            overrides=(*base.overrides, *self.overrides),
            vocab_size=self.vocab_size or base.vocab_size,
        )


SEPARATE = Condition("init", "projections initialised one by one", ("model.init=separate",))
# what tuning on the validation set chooses from: one change at a time to the tables' settings, whose
# rate is 1e-3 and whose dropout is 0.1, with 64 texts a batch and 8,192 subwords
CANDIDATES = (
    Condition("base", "as in the tables"),
    Condition("rate-low", "rate 5e-4", ("train.lr=5e-4",)),
    Condition("rate-high", "rate 2e-3", ("train.lr=2e-3",)),
    Condition("dropout", "dropout 0.3", ("model.dropout=0.3",)),
    Condition("batch", "128 texts a batch", ("train.max_rows=128",)),
    SEPARATE,
    Condition("vocab", "4,096 subwords", vocab_size=4096),
)
# what is chosen alike for every row of a corpus that is too long to try each row with all of them
RATES = tuple(condition for condition in CANDIDATES if condition.name in ("base", "rate-low", "rate-high"))
# what may decide whether windows help
CIRCUMSTANCES = (
    Condition("shallow", "1 layer", ("model.num_layers=1",)),
    Condition("deep", "4 layers", ("model.num_layers=4",)),
    SEPARATE,
    Condition("unplaced", "without positions", ("model.positions=none",)),
)


def under(conditions: tuple[Condition, ...], name: str, setting: Setting) -> dict[str, Setting]:
    """Give a column's setting under each condition, by the names that `Condition.column` gives."""
    return {condition.named(name): condition.setting(setting) for condition in conditions}
