"""Scales: the same rows on the paper's data, on what two cores can train, or in seconds."""

from __future__ import annotations

from dataclasses import dataclass

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
# the paper gives neither batch size nor rate: near those of a trial with the plain encoder; see docs/results
_SST = ("train.max_rows=64", "train.lr=1e-3", *_SHORT)
_SVA = ("train.max_rows=64", "train.lr=1e-3", *_SHORT)
_SST_CUTS = {
    "sst-5": Setting("sst2", _SST, kept=50),
    "sst-20": Setting("sst2", _SST, kept=200),
    "sst-sentences": Setting("sst2", _SST, "sst2-sentences"),
}

PAPER = Scale(
    "paper",
    "The paper's data, model and number of updates.",
    {
        "en-de": Setting("wmt14-en-de"),
        "en-fr": Setting("wmt14-en-fr"),
        "sst": Setting("sst2", _SST),
        "imdb": Setting("imdb"),
        "sva": Setting("sva", _SVA, "sva-linzen"),
        "lm": Setting("lm1b"),
        **_SST_CUTS,
    },
)

_SMALL_TRANSLATION = (
    *("model.embed_dim=128", "model.ffn_dim=512", "train.max_tokens=1024", "train.max_updates=2000"),
    *("train.lr=2e-3", "train.warmup=400", "train.valid_every=500", "train.save_every=200"),
)
MINI = Scale(
    "mini",
    "Smaller data and models that two cores can train: to compare rows with each other, not with the paper.",
    {
        "en-de": Setting("multi30k-en-de", _SMALL_TRANSLATION, vocab_size=4096),
        "en-fr": Setting("multi30k-en-de", _SMALL_TRANSLATION, "multi30k-en-fr", vocab_size=4096),
        "sst": Setting("sst2", (*_SST, "train.max_updates=1000")),
        "imdb": Setting("imdb", ("train.max_updates=1000", "train.max_tokens=4096", "task.max_length=256")),
        "sva": Setting("sva", (*_SVA, "train.max_updates=1000")),
        "lm": Setting(
            "wikitext2",
            (
                *("model.embed_dim=128", "model.ffn_dim=512", "train.max_tokens=1024", "task.block_size=64"),
                *("train.max_updates=2000", "train.lr=2e-3", "train.warmup=400", *_SHORT),
            ),
            vocab_size=8192,
        ),
        "agreement": Setting("agreement", ("train.max_rows=128", *_SHORT)),
        "agreement-10": Setting(
            "agreement", ("train.max_rows=64", "train.max_updates=600", *_SHORT), kept=100
        ),
        **_SST_CUTS,
    },
)

_TINY_MODEL = ("model.embed_dim=16", "model.ffn_dim=32", "model.num_heads=2")
_TINY = (
    *(*_TINY_MODEL, "train.max_updates=4", "train.warmup=2", "train.log_every=2", "train.valid_every=4"),
    *("train.save_every=2", "train.max_tokens=256"),
)
_CLASSIFY = Setting("agreement", _TINY, rows=200)
_TRANSLATE = Setting("reorder", _TINY, rows=200)
SMOKE = Scale(
    "smoke",
    "Seconds on generated data: shows that everything runs, and nothing else.",
    {
        "en-de": _TRANSLATE,
        "en-fr": _TRANSLATE,
        "lm": Setting("wikitext2", (*_TINY, "model.num_layers=2"), "agreement", rows=200, task="lm"),
        **dict.fromkeys(("sst", "imdb", "sva", "agreement", "agreement-10", *_SST_CUTS), _CLASSIFY),
    },
)
SCALES = {scale.name: scale for scale in (PAPER, MINI, SMOKE)}


def scale_of(name: str) -> Scale:
    """Give a scale by its name."""
    check_choice("scale", name, list(SCALES))
    return SCALES[name]
