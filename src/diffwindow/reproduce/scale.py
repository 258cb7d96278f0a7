"""Scales: the same rows on the paper's data, on what two cores can train, or in seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from diffwindow.ops import check_choice
from diffwindow.reproduce.condition import CANDIDATES, CIRCUMSTANCES, RATES, under
from diffwindow.reproduce.setting import Setting
from diffwindow.reproduce.table import Column


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
