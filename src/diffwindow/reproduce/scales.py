"""Setting: how a column is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace

from diffwindow.ops import check_choice
from diffwindow.reproduce.table import Column


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


@dataclass(frozen=True)
class Scale:
    """Settings by the name of a column, and a sentence for the report."""

    name: str
    about: str
    settings: dict[str, Setting]

    def setting(self, column: Column) -> Setting:
        """Give the setting of a column."""
        if column.name not in self.settings:
            raise ValueError(f"{column.title} has no {self.name} scale; choose another --scale or --columns")
        return self.settings[column.name]


# one checkpoint to go on from is enough for runs of minutes
_SHORT = ("train.keep_last=1", "train.average_last=1")
# the paper gives neither batch size nor rate; docs/results says how these were chosen
_SST = Setting("sst2", ("train.max_rows=64", "train.lr=1e-3", *_SHORT))
# as many reviews a batch as let two cores make the paper's 10,000 updates: about ten
_IMDB = Setting(
    "imdb",
    (
        *("task.max_length=256", "train.max_tokens=2048", "train.lr=1e-3"),
        *("train.valid_every=2000", "train.save_every=500", *_SHORT),
    ),
)
_SVA = ("train.max_rows=32", "train.lr=1e-3", "train.valid_every=1000", "train.save_every=1000", *_SHORT)


def _sst(setting: Setting) -> dict[str, Setting]:
    """Give the settings of SST: whole, cut down, and under the conditions that are tried on it."""
    return {
        "sst": setting,
        "sst-5": replace(setting, kept=50),
        "sst-20": replace(setting, kept=200),
        "sst-sentences": replace(setting, corpus="sst2-sentences"),
        **under(CANDIDATES, "tuning", setting),
        **under(CIRCUMSTANCES, "sst", setting),
    }


PAPER = Scale(
    "paper",
    "The paper's model and number of updates, on its data unless a column says otherwise.",
    {
        "en-de": Setting("wmt14-en-de"),
        "en-fr": Setting("wmt14-en-fr"),
        "imdb": _IMDB,
        **under(RATES, "tuning-imdb", _IMDB),
        "sva": Setting("sva", _SVA, "sva-linzen"),
        "sva-subset": Setting("sva", _SVA),
        "lm": Setting("lm1b"),
        **_sst(_SST),
    },
)

_SMALL_TRANSLATION = (
    *("model.embed_dim=128", "model.ffn_dim=256", "model.encoder_layers=4", "model.decoder_layers=4"),
    *("train.max_tokens=2048", "train.max_updates=1500", "train.lr=2e-3", "train.warmup=300"),
    *("train.valid_every=250", "train.save_every=100"),
)
_SMALL_LM = (
    *("model.embed_dim=128", "model.ffn_dim=512", "model.dropout=0.1", "task.block_size=64"),
    *("train.max_tokens=2048", "train.max_updates=1000", "train.lr=2e-3", "train.warmup=200"),
    *("train.valid_every=250", "train.save_every=250", *_SHORT),
)
_SMALL_IMDB = replace(_IMDB, overrides=(*_IMDB.overrides, "train.max_updates=2000"))
_AGREEMENT_10 = Setting("agreement", ("train.max_rows=64", "train.max_updates=600", *_SHORT), kept=100)
MINI = Scale(
    "mini",
    "Smaller data and models that two cores can train: to compare rows with each other, not with the paper.",
    {
        "en-de": Setting("multi30k-en-de", _SMALL_TRANSLATION, vocab_size=4096),
        "en-fr": Setting("multi30k-en-de", _SMALL_TRANSLATION, "multi30k-en-fr", vocab_size=4096),
        "imdb": _SMALL_IMDB,
        **under(RATES, "tuning-imdb", _SMALL_IMDB),
        "sva-subset": Setting("sva", (*_SVA, "train.max_updates=1000")),
        "lm": Setting("wikitext2", _SMALL_LM, vocab_size=4096),
        "agreement": Setting("agreement", ("train.max_rows=128", *_SHORT)),
        "agreement-10": _AGREEMENT_10,
        **under(CIRCUMSTANCES, "agreement-10", _AGREEMENT_10),
        **_sst(replace(_SST, overrides=(*_SST.overrides, "train.max_updates=1000"))),
    },
)

_TINY_MODEL = ("model.embed_dim=32", "model.ffn_dim=32", "model.num_heads=2")
_TINY = (
    *(*_TINY_MODEL, "train.max_updates=4", "train.warmup=2", "train.log_every=2", "train.valid_every=4"),
    *("train.save_every=2", "train.max_tokens=256"),
)
_CLASSIFY = Setting("agreement", _TINY, rows=200)
_TRANSLATE = Setting("reorder", _TINY, rows=200)
SMOKE = Scale(
    "smoke",
    "Any table in seconds, on generated data: shows that everything runs, and nothing else.",
    {
        **dict.fromkeys((*PAPER.settings, *MINI.settings), _CLASSIFY),
        **under(CANDIDATES, "tuning", _CLASSIFY),
        **under(RATES, "tuning-imdb", _CLASSIFY),
        **under(CIRCUMSTANCES, "sst", _CLASSIFY),
        **under(CIRCUMSTANCES, "agreement-10", _CLASSIFY),
        "en-de": _TRANSLATE,
        "en-fr": _TRANSLATE,
        "lm": Setting("wikitext2", (*_TINY, "model.num_layers=2"), "agreement", rows=200, task="lm"),
    },
)
SCALES = {scale.name: scale for scale in (PAPER, MINI, SMOKE)}


def scale_of(name: str) -> Scale:
    """Give a scale by its name."""
    check_choice("scale", name, list(SCALES))
    return SCALES[name]
