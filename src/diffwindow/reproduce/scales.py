"""Scales: a column on the paper's data, trained to the end, on what two cores can train, or in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from diffwindow.messages import check_choice
from diffwindow.reproduce.table import Column, Row, Table
from diffwindow.training.overrides import resolve


@dataclass(frozen=True)
class Experiment:
    """How a column is trained: a preset, overrides, and the corpus with its vocabulary and size.

    `kept` is the share of the training rows, in thousandths, chosen by the hash of their text. `task`
    overrides the task of the corpus. With `moses`, texts are Moses-tokenised by their languages.
    """

    preset: str
    overrides: tuple[str, ...] = ()
    corpus: str | None = None
    vocab_size: int | None = None
    rows: int | None = None
    kept: int = 1000
    task: str | None = None
    moses: bool = False

    @property
    def corpus_name(self) -> str:
        """Name the corpus."""
        return self.corpus or self.preset

    @property
    def store_name(self) -> str:
        """Name the store: experiments that share a store share its name.

        >>> Experiment("sst2", kept=50).store_name
        'sst2-kept50'
        """
        parts = {"vocab": self.vocab_size, "rows": self.rows, "kept": self.kept if self.kept < 1000 else None}
        names = [self.corpus_name, *([self.task] if self.task else []), *(["moses"] if self.moses else [])]
        return "-".join([*names, *(f"{name}{n}" for name, n in parts.items() if n is not None)])

    def overrides_of(self, row: Row) -> tuple[str, ...]:
        """Return the overrides of a row; its own come last, as an ablation may change what a scale has set.

        >>> Experiment("sst2", ("model.num_layers=4",)).overrides_of(Row("deeper", more_layers=1))
        ('model.num_layers=4', 'model.num_layers=5')
        """
        overrides = (*self.overrides, *row.overrides)
        if not row.more_layers:
            return overrides
        model = resolve(self.preset, overrides).model
        stacks = (name for name in model if name.endswith("_layers"))
        return (*overrides, *(f"model.{name}={model[name] + row.more_layers}" for name in stacks))


@dataclass(frozen=True)
class Variation:
    """One change to an experiment, with the name that it adds to a column's name and title."""

    name: str
    title: str
    overrides: tuple[str, ...] = ()
    vocab_size: int | None = None

    def named(self, column: str) -> str:
        """Name a column under this variation."""
        return f"{column}-{self.name}"

    def column(self, base: Column) -> Column:
        """Return the column of a corpus under this variation.

        >>> Variation("deep", "4 layers").column(Column("sst", "SST-2", "accuracy")).name
        'sst-deep'
        """
        return replace(base, name=self.named(base.name), title=f"{base.title}, {self.title}")

    def experiment(self, base: Experiment) -> Experiment:
        """Return an experiment under this variation."""
        overrides = (*base.overrides, *self.overrides)
        return replace(base, overrides=overrides, vocab_size=self.vocab_size or base.vocab_size)


SEPARATE = Variation("init", "projections initialised one by one", ("model.init=separate",))
# what tuning on the validation set chooses from: one change at a time to the tables' configuration (learning
# rate 1e-3, dropout 0.1, 64 texts per batch, 8,192 subwords)
CANDIDATES = (
    Variation("base", "as in the tables"),
    Variation("rate-low", "rate 5e-4", ("train.lr=5e-4",)),
    Variation("rate-high", "rate 2e-3", ("train.lr=2e-3",)),
    Variation("dropout", "dropout 0.3", ("model.dropout=0.3",)),
    Variation("batch", "128 texts per batch", ("train.max_rows=128",)),
    SEPARATE,
    Variation("vocab", "4,096 subwords", vocab_size=4096),
)
# chosen once for all rows of a corpus that takes too long to try every variation with every row
RATES = tuple(variation for variation in CANDIDATES if variation.name in ("base", "rate-low", "rate-high"))
# circumstances that may decide whether windows help
CIRCUMSTANCES = (
    Variation("shallow", "1 layer", ("model.num_layers=1",)),
    Variation("deep", "4 layers", ("model.num_layers=4",)),
    SEPARATE,
    Variation("unplaced", "without positions", ("model.positions=none",)),
)


def under(variations: tuple[Variation, ...], name: str, experiment: Experiment) -> dict[str, Experiment]:
    """Return a column's experiment under each variation, by the names that `Variation.column` gives."""
    return {variation.named(name): variation.experiment(experiment) for variation in variations}


@dataclass(frozen=True)
class Scale:
    """The experiment of each column, by name, and a sentence for the report."""

    name: str
    about: str
    experiments: dict[str, Experiment]
    # whether generated data stand in for the data of every column
    generated: bool = False
    # the metrics of columns that are not scored as at the other scales; their usual one is shown beside it
    metrics: dict[str, str] = field(default_factory=dict)

    def apply(self, table: Table) -> Table:
        """Return a table with the metrics of the scale, and titles that say where generated data stand in."""
        return replace(table, columns=tuple(map(self._apply, table.columns)))

    def _apply(self, column: Column) -> Column:
        if self.generated:
            column = replace(column, title=f"generated data in place of {column.title}")
        if column.name in self.metrics:
            beside = (column.metric, *column.beside)
            column = replace(column, metric=self.metrics[column.name], beside=beside)
        return column

    def experiment(self, column: Column) -> Experiment:
        """Return the experiment of a column."""
        if column.name not in self.experiments:
            raise ValueError(f"{column.title} has no {self.name} scale; choose another scale or column")
        return self.experiments[column.name]


# one checkpoint is enough for runs of minutes
_SHORT = ("train.keep_last=1", "train.average_last=1")
# the paper gives neither batch size nor rate; docs/results says how these were chosen
_SST = Experiment("sst2", ("train.max_rows=64", "train.lr=1e-3", *_SHORT))
# about ten reviews per batch: what two cores can train for the paper's 10,000 updates
_IMDB = Experiment(
    "imdb",
    (
        *("task.max_length=256", "train.max_tokens=2048", "train.lr=1e-3"),
        *("train.valid_every=2000", "train.save_every=500", *_SHORT),
    ),
)
_SVA = ("train.max_rows=32", "train.lr=1e-3", "train.valid_every=1000", "train.save_every=1000", *_SHORT)
# `transformer_tiny` of tensor2tensor, where it differs: normalisation first, Xavier for each projection, the
# last model. It spreads a smoothing of 0.1 over the other classes alone: of two, that is 0.2 over both.
_T2T = (
    *("model.norm=pre", "model.init=separate", "model.attention_dropout=0.1", "model.activation_dropout=0.1"),
    *("task.label_smoothing=0.2", "train.max_tokens=4096", "train.clip_norm=null", "train.final=last"),
    # 2 / √(128 · 8,000): runs of 3,000 updates end before the peak
    *("train.lr=1.976e-3", "train.warmup=8000", "train.warmup_from=0"),
    *("train.betas=[0.9,0.997]", "train.eps=1e-9", *_SHORT),
)


def _sst(experiment: Experiment) -> dict[str, Experiment]:
    """Return the experiments on SST: whole, with less data, and with each variation."""
    return {
        "sst": experiment,
        "sst-5": replace(experiment, kept=50),
        "sst-20": replace(experiment, kept=200),
        "sst-sentences": replace(experiment, corpus="sst2-sentences"),
        # phrases of three words on average
        "sst-trees": replace(
            experiment, corpus="sst2-trees", overrides=(*experiment.overrides, "task.phrase_height=5")
        ),
        **under(CANDIDATES, "tuning", experiment),
        **under(CIRCUMSTANCES, "sst", experiment),
    }


PAPER = Scale(
    "paper",
    "The paper's model and number of updates, on its data unless a column says otherwise.",
    {
        "en-de": Experiment("wmt16-en-de", moses=True),
        "en-fr": Experiment("wmt14-en-fr", moses=True),
        "imdb": _IMDB,
        **under(RATES, "tuning-imdb", _IMDB),
        "sva": Experiment("sva", _SVA, "sva-linzen"),
        "sva-subset": Experiment("sva", _SVA),
        "lm": Experiment("lm1b"),
        **_sst(_SST),
        "sst-t2t": Experiment("sst2", _T2T, vocab_size=2**14),
        "sst-glue": Experiment("sst2-glue", _T2T, vocab_size=2**14),
        "imdb-t2t": Experiment("imdb", (*_T2T, "task.max_length=null"), vocab_size=2**13),
        "sva-t2t": Experiment("sva", _T2T, "sva-linzen"),
    },
    # "case-sensitive tokenized BLEU"; the scripts of these years split the compounds of German
    metrics={"en-de": "bleu_compound_split", "en-fr": "bleu_tokenized"},
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
# a block of 1,024 holds as many tokens as 16 of 64, so fewer updates make an epoch
_LONG = (
    *("task.block_size=1024", "model.num_layers=2", "train.max_tokens=2048", "train.max_updates=400"),
    *("train.valid_every=200", "train.save_every=200"),
)
_SMALL_IMDB = replace(_IMDB, overrides=(*_IMDB.overrides, "train.max_updates=2000"))
_AGREEMENT_10 = Experiment("agreement", ("train.max_rows=64", "train.max_updates=600", *_SHORT), kept=100)
_MINI_SST = _sst(replace(_SST, overrides=(*_SST.overrides, "train.max_updates=1000")))
MINI = Scale(
    "mini",
    "Smaller data and models that two cores can train: to compare rows with each other, not with the paper.",
    {
        "en-de": Experiment("multi30k-en-de", _SMALL_TRANSLATION, vocab_size=4096),
        "en-fr": Experiment("multi30k-en-de", _SMALL_TRANSLATION, "multi30k-en-fr", vocab_size=4096),
        "imdb": _SMALL_IMDB,
        **under(RATES, "tuning-imdb", _SMALL_IMDB),
        "sva-subset": Experiment("sva", (*_SVA, "train.max_updates=1000")),
        "lm": Experiment("wikitext2", _SMALL_LM, vocab_size=4096),
        "lm-long": Experiment("wikitext2", (*_SMALL_LM, *_LONG), vocab_size=4096),
        "agreement": Experiment("agreement", ("train.max_rows=128", *_SHORT)),
        "agreement-10": _AGREEMENT_10,
        "agreement-10-valid": _AGREEMENT_10,
        "agreement-trees": replace(_AGREEMENT_10, corpus="agreement-trees"),
        **under(CIRCUMSTANCES, "agreement-10", _AGREEMENT_10),
        **_MINI_SST,
        # phrases run in plain PyTorch; the validation loss rises after two epochs
        "sst-trees": replace(
            _MINI_SST["sst-trees"],
            overrides=(
                *_MINI_SST["sst-trees"].overrides,
                *("train.max_updates=200", "train.warmup=100", "train.valid_every=50"),
            ),
        ),
    },
)

# the Transformer-tiny of Wu et al. (ACL 2021) on Multi30k; an epoch is 124 batches
_EPOCH = 124
TRAINED = Scale(
    "trained",
    "A small model trained until validation stops improving, on lower-cased text: its tokenised BLEU stands "
    "beside published figures.",
    {
        "en-de": Experiment(
            "multi30k-tok-en-de",
            (
                *("model.embed_dim=128", "model.ffn_dim=256", "model.num_heads=4", "model.dropout=0.3"),
                *("model.encoder_layers=4", "model.decoder_layers=4"),
                *("train.max_tokens=4096", "train.max_updates=8000", "train.lr=5e-3", "train.warmup=2000"),
                *(f"train.valid_every={_EPOCH}", f"train.save_every={_EPOCH}", "train.patience=10"),
                *("train.keep_last=10", "train.average_last=10", "search.length_penalty=1.0"),
            ),
        ),
    },
)

_TINY_MODEL = ("model.embed_dim=32", "model.ffn_dim=32", "model.num_heads=2")
_TINY = (
    *(*_TINY_MODEL, "train.max_updates=4", "train.warmup=2", "train.log_every=2", "train.valid_every=4"),
    *("train.save_every=2", "train.max_tokens=256"),
)
_CLASSIFY = Experiment("agreement", _TINY, rows=200)
_TRANSLATE = Experiment("reorder", _TINY, rows=200)
SMOKE = Scale(
    "smoke",
    "Any table in minutes, on generated data: shows that everything runs, and nothing else.",
    {
        **dict.fromkeys((*PAPER.experiments, *MINI.experiments), _CLASSIFY),
        **under(CANDIDATES, "tuning", _CLASSIFY),
        **under(RATES, "tuning-imdb", _CLASSIFY),
        **under(CIRCUMSTANCES, "sst", _CLASSIFY),
        **under(CIRCUMSTANCES, "agreement-10", _CLASSIFY),
        **dict.fromkeys(("agreement-trees", "sst-trees"), replace(_CLASSIFY, corpus="agreement-trees")),
        "en-de": _TRANSLATE,
        "en-fr": _TRANSLATE,
        **dict.fromkeys(
            ("lm", "lm-long"),
            Experiment(
                "wikitext2", (*_TINY, "model.num_layers=2"), "agreement", rows=200, task="language-model"
            ),
        ),
    },
    generated=True,
)
SCALES = {scale.name: scale for scale in (PAPER, TRAINED, MINI, SMOKE)}


def scale_of(name: str) -> Scale:
    """Return a scale by its name."""
    check_choice("scale", name, list(SCALES))
    return SCALES[name]
