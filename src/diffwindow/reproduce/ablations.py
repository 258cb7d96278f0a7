"""Our own tables: what the paper leaves open, and when windows help."""

from __future__ import annotations

from collections.abc import Iterable

from diffwindow.reproduce.scales import CANDIDATES, CIRCUMSTANCES, RATES
from diffwindow.reproduce.table import (
    AGREEMENT,
    AGREEMENT_10,
    AGREEMENT_10_VALID,
    AGREEMENT_TREES,
    EN_DE,
    IMDB,
    LM,
    LM_LONG,
    SST,
    SST_TREES,
    SVA_SUBSET,
    TUNING,
    TUNING_IMDB,
    Column,
    Row,
    Table,
)


def _ablation(
    name: str, title: str, attentions: tuple[str, ...], columns: tuple[Column, ...], more: Iterable[Row] = ()
) -> Table:
    return Table(name, title, columns, (*(Row(text, text) for text in ("Global", *attentions)), *more))


WINDOWS = ("Enc(MW)", "Enc(AW)")

TUNING_TABLE = _ablation(
    "tuning",
    "What the validation set chooses for each model of Table 5",
    ("Enc(Rel)@all", "Enc(Loc)", *WINDOWS),
    (
        *(variation.column(TUNING) for variation in CANDIDATES),
        *(variation.column(TUNING_IMDB) for variation in RATES),
    ),
)
TUNED = Table(
    "tuned",
    "Each model with the settings that validation chose for it",
    (SST,),
    (
        Row("Global, dropout 0.3", "Global", ("model.dropout=0.3",)),
        Row("Enc(Rel)@all, 128 texts per batch", "Enc(Rel)@all", ("train.max_rows=128",)),
        Row("Enc(Loc), as in the tables", "Enc(Loc)"),
        Row("Enc(MW), 128 texts per batch", "Enc(MW)", ("train.max_rows=128",)),
        Row("Enc(AW), as in the tables", "Enc(AW)"),
    ),
)
EXPECTATION = _ablation(
    "expectation",
    "The paper's window or the exact expectation",
    ("Enc(AW)", "Enc(AW,Exact)", "Enc(MW)", "Enc(MW,Exact)"),
    (AGREEMENT_10, SST, SVA_SUBSET),
)
# the claim behind Eq. 9: with boundaries that must be in order, windows vanish where they are not
ORDERED = _ablation(
    "ordered",
    "Boundaries in either order (Eq. 9), or in order alone (Eq. 6)",
    ("Enc(MW)", "Enc(MW,Ordered)", "Enc(AW)", "Enc(AW,Ordered)"),
    (AGREEMENT_10,),
)


def _sizes(role: str) -> tuple[str, ...]:
    # a size of 5 is written Seg, and a size of 1 is left out
    sizes = (f"{role}(AW,Seg={size})" if size != 5 else f"{role}(AW,Seg)" for size in range(2, 11))
    return (f"{role}(AW)", *sizes)


SEGMENTS = _ablation("segments", "Segment sizes from 1 to 10 in cross-attention", _sizes("Cr"), (EN_DE,))
ENCODER_SEGMENTS = _ablation(
    "encoder-segments", "Segment sizes from 1 to 10 in an encoder", _sizes("Enc"), (AGREEMENT_10, SST)
)
# placebos have phrases of the same lengths elsewhere: if they serve as well, it is not the phrases
PHRASES = _ablation(
    "phrases",
    "Windows of phrases: those of a grammar or of trees, learned ones, and placebos",
    ("Enc(AW)", "Enc(AW,Seg)", "Enc(AW,Phr)", "Enc(AW,Tree)"),
    (AGREEMENT_TREES, SST_TREES),
    (
        Row(f"Enc(AW,Phr), {placebo}", "Enc(AW,Phr)", (f"task.phrase_placebo={placebo}",))
        for placebo in ("shuffled", "random")
    ),
)
BOUNDARIES = _ablation(
    "boundaries",
    "Boundaries with a smaller head width than the scores' 32",
    tuple(
        f"Enc({kind}{narrow})"
        for kind in ("AW", "MW")
        for narrow in ("", ",Dim=16", ",Dim=8", ",Dim=4", ",Dim=2")
    ),
    (AGREEMENT_10, SST, SVA_SUBSET),
)
TRANSLATION_BOUNDARIES = _ablation(
    "translation-boundaries",
    "Boundaries with a smaller head width than the scores', in translation",
    tuple(f"Enc(AW{narrow})-Cr(AW,Seg{narrow})-Dec(MW{narrow})" for narrow in ("", ",Dim=8", ",Dim=2")),
    (EN_DE,),
)
BASELINES = _ablation(
    "baselines",
    "Local attentions that the paper cites and does not run",
    ("Cr(Gauss)", "Enc(Band)", "Enc(Bell)", "Enc(Span)-Dec(Span)", "Cr(AW,Seg)", "Enc(AW)"),
    (EN_DE,),
)
TOGETHER = _ablation(
    "together",
    "Windows in cross-attention beside relative positions in self-attention",
    (
        "Enc(AW)-Cr(AW,Seg)-Dec(MW)",
        "Enc(Rel)@all-Dec(Rel)@all",
        "Enc(Rel)@all-Cr(AW,Seg)-Dec(Rel)@all",
        "Enc(Rel)@all-Cr(AW)-Dec(Rel)@all",
    ),
    (EN_DE,),
)


def _rotary(attention: str, rotated: str = "scores") -> Row:
    """Return a row with rotary positions in the place of sinusoids."""
    row = Row(f"{attention}, rotary", attention, ("model.positions=rotary",))
    if rotated == "scores":
        return row
    return Row(f"{row.label} ({rotated})", attention, (*row.overrides, f"model.rotary={rotated}"))


ROTARY = _ablation(
    "rotary",
    "What rotary positions should turn: the scores, the pointers or both",
    WINDOWS,
    (AGREEMENT_10_VALID,),
    (
        _rotary("Global"),
        *(_rotary(text, turned) for text in WINDOWS for turned in ("scores", "pointers", "both")),
    ),
)
POSITIONS = _ablation(
    "positions",
    "Windows beside today's positions: sinusoidal, relative and rotary",
    ("Enc(Rel)@all", *WINDOWS, "Enc(AW,Dist)", "Enc(MW,Dist)"),
    (SVA_SUBSET, AGREEMENT_10),
    map(_rotary, ("Global", *WINDOWS)),
)
TRANSLATION_POSITIONS = _ablation(
    "translation-positions",
    "Windows beside rotary positions in translation",
    ("Enc(Rel)@all-Dec(Rel)@all", "Enc(AW)-Cr(AW,Seg)-Dec(MW)"),
    (EN_DE,),
    (
        *map(_rotary, ("Global", "Enc(AW)-Cr(AW,Seg)-Dec(MW)")),
        # as many parameters as with all three windows
        Row("Global, rotary, wider feed-forward", "Global", ("model.positions=rotary", "model.ffn_dim=512")),
    ),
)
SENTIMENT_POSITIONS = _ablation(
    "sentiment-positions",
    "Windows beside rotary positions in sentiment",
    ("Enc(Rel)@all", *WINDOWS),
    (SST, IMDB),
    map(_rotary, ("Global", *WINDOWS)),
)
DECODERS = _ablation(
    "decoders",
    "Language modelling with windows, and with what prefers recent tokens today",
    ("Dec(Rel)@all", "Dec(MW)", "Dec(AW)"),
    (LM,),
    (
        # their papers have no other positions
        *(Row(text, text, ("model.positions=none",)) for text in ("Dec(Fox)@all", "Dec(Stick)@all")),
        *map(_rotary, ("Global", "Dec(MW)", "Dec(AW)")),
    ),
)

# windows are 0 below it
_CUT = "model.window_tolerance=1e-3"
_NARROW = ("Dec(MW,Dim=8)@all", "Dec(MW,Norm,Dim=8)@all")
LONG_TEXT = _ablation(
    "long-text",
    "Windows over long texts, and whether they become narrow enough to skip what lies outside",
    _NARROW,
    (LM_LONG,),
    (
        *(Row(f"{text}, cut", text, (_CUT,)) for text in _NARROW),
        *(
            Row(f"{text}, cut, penalty {penalty}", text, (_CUT, f"train.window_penalty={penalty}"))
            for text in _NARROW
            for penalty in ("0.1", "1")
        ),
    ),
)
AGREEMENT_TABLE = Table(
    "agreement",
    "Where the right window is known: generated agreement",
    (AGREEMENT, AGREEMENT_10),
    (
        Row("Global", "Global"),
        # as many parameters as with the additive window
        Row("Global, wider feed-forward", "Global", ("model.ffn_dim=704",)),
        *(Row(text, text) for text in ("Enc(Rel)@all", "Enc(Loc)", "Enc(Band)", "Enc(Bell)", "Enc(Span)")),
        *(Row(text, text) for text in (*WINDOWS, "Enc(AW)@all")),
    ),
)
CIRCUMSTANCES_TABLE = _ablation(
    "circumstances",
    "One thing changed for every model: depth, initialisation, positions",
    WINDOWS,
    tuple(variation.column(base) for base in (AGREEMENT_10, SST) for variation in CIRCUMSTANCES),
)
# the same corpus with less data; the names are keys of each scale
_SHARES = tuple(Column(f"sst-{share}", f"SST-2, {share} % of the phrases", "accuracy") for share in (5, 20))
DATA_SIZE = _ablation("data-size", "How much training data", WINDOWS, (*_SHARES, SST))
SENTENCES = _ablation(
    "sentences",
    "Training on whole sentences alone, not on their phrases",
    WINDOWS,
    (Column("sst-sentences", "SST-2, 6,920 sentences", "accuracy"),),
)

ABLATIONS = (
    *(TUNING_TABLE, TUNED, EXPECTATION, ORDERED, SEGMENTS, ENCODER_SEGMENTS, PHRASES, BOUNDARIES),
    *(TRANSLATION_BOUNDARIES, BASELINES, TOGETHER, LONG_TEXT),
    *(AGREEMENT_TABLE, CIRCUMSTANCES_TABLE, DATA_SIZE, SENTENCES),
    *(ROTARY, POSITIONS, TRANSLATION_POSITIONS, SENTIMENT_POSITIONS, DECODERS),
)
