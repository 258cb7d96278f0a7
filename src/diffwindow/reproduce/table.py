"""Table: the rows and columns to compare, as plain data."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

T = TypeVar("T")
PLAIN = "Global"


@dataclass(frozen=True)
class Row:
    """A model to compare: label, attention, overrides, and the paper's score for each column.

    `more_layers` are added to each stack of the experiment's model. `paper_size` is the number of parameters
    that the paper gives, in millions.
    """

    label: str
    attention: str = PLAIN
    overrides: tuple[str, ...] = ()
    paper: dict[str, float] = field(default_factory=dict)
    more_layers: int = 0
    paper_size: int | None = None

    @property
    def key(self) -> str:
        """Name the row by what it trains, so that tables which share a model share its run.

        >>> Row("wider", overrides=("model.ffn_dim=704",)).key, Row("deeper", more_layers=2).key
        ('Global+ffn_dim=704', 'Global+layers+2')
        """
        layers = [f"layers+{self.more_layers}"] if self.more_layers else []
        overrides = (text.partition(".")[2] or text for text in self.overrides)
        return "+".join([self.attention, *overrides, *layers])


@dataclass(frozen=True)
class Column:
    """A corpus and the metric of its test set; `name` is a key of each scale.

    A column for choosing hyperparameters has the split "valid"; its rows never read the test set. `also` are
    further test sets, where a corpus has them: the same models are evaluated on each. The means of the
    metrics in `beside` are shown too.
    """

    name: str
    title: str
    metric: str
    split: str = "test"
    also: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def further(self) -> tuple[Column, ...]:
        """The columns of the further test sets."""
        return tuple(
            replace(self, name=f"{self.name}-{split}", title=f"{self.title}, {split}", split=split, also=())
            for split in self.also
        )


@dataclass(frozen=True)
class Table:
    """Rows by columns; the first row is what the others are compared with."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    # "speed" times the rows in turns, "figure" draws the attention of the first and the last row of a column
    extra: Literal["speed", "figure"] | None = None

    def at(self, columns: Container[str]) -> Table:
        """Keep the columns that a scale has."""
        return replace(self, columns=tuple(column for column in self.columns if column.name in columns))

    def choose(self, columns: Sequence[str], rows: Sequence[str]) -> Table:
        """Keep the columns and rows with these keys; an empty list keeps all."""
        kept_columns = _pick("column", {column.name: column for column in self.columns}, columns)
        kept_rows = _pick("row", {row.key: row for row in self.rows}, rows)
        return replace(self, columns=tuple(kept_columns), rows=tuple(kept_rows))


def _pick(what: str, known: dict[str, T], names: Sequence[str]) -> list[T]:
    for name in names:
        if name not in known:
            raise ValueError(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return [value for name, value in known.items() if not names or name in names]


MULTI30K_TESTS = ("test2017", "mscoco")
EN_DE = Column("en-de", "English-German", "bleu", also=MULTI30K_TESTS, beside=("perplexity_by_token",))
EN_FR = replace(EN_DE, name="en-fr", title="English-French")
SST = Column("sst", "SST-2", "accuracy")
# what two cores can train; the paper does not say that it cuts reviews, and imdb-t2t does not
IMDB = Column("imdb", "IMDB, the first 256 subwords", "accuracy")
SVA = Column("sva", "subject-verb agreement", "accuracy", also=("differ",))
# no score of the paper: its test set is another one
SVA_SUBSET = Column("sva-subset", "subject-verb agreement, a subset heavy in attractors", "accuracy")
# the footnote of Table 5 refers to tensor2tensor, whose SST is GLUE's: its test set has no labels
SST_T2T = Column("sst-t2t", "SST-2, tensor2tensor's settings", "accuracy", also=("valid",))
SST_GLUE = Column("sst-glue", "GLUE's SST-2, tensor2tensor's settings", "accuracy", split="valid")
IMDB_T2T = Column("imdb-t2t", "IMDB, whole reviews, tensor2tensor's settings", "accuracy")
SVA_T2T = Column("sva-t2t", "subject-verb agreement, tensor2tensor's settings", "accuracy", also=("differ",))
LM = Column("lm", "language modelling", "perplexity")
LM_LONG = Column("lm-long", "language modelling in blocks of 1,024 words", "perplexity")
AGREEMENT = Column("agreement", "generated agreement", "accuracy")
AGREEMENT_10 = Column("agreement-10", "generated agreement, 10 % of the sentences", "accuracy")
AGREEMENT_10_VALID = Column(
    "agreement-10-valid", "generated agreement, 10 % of the sentences", "accuracy", split="valid"
)
AGREEMENT_TREES = Column("agreement-trees", "generated agreement, 10 % of the sentences", "accuracy")
SST_TREES = Column("sst-trees", "SST-2, 6,920 sentences", "accuracy")
TUNING = Column("tuning", "SST-2", "accuracy", split="valid")
TUNING_IMDB = Column("tuning-imdb", IMDB.title, "accuracy", split="valid")
