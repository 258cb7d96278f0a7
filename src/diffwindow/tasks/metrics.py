"""Metrics: BLEU, accuracy and perplexity, computed from what each example adds to them."""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from diffwindow.data.tokenizer import moses_tokenizer, nfc
from diffwindow.files import replacing


def word_perplexity(nll: float, words: int) -> float:
    """Return exp(−log p(text) / words), with log p summed over all tokens, subwords or not.

    A text's probability is the product of its tokens' whichever way they cut it, so only the number of words
    may divide it: two models with different vocabularies then compare.

    >>> word_perplexity(nll=4 * math.log(10), words=4)
    10.000000000000002
    """
    if words < 1:
        raise ValueError("a text without words has no perplexity")
    return bounded_exp(nll / words)


# the exponential of more overflows a float
_LARGEST = 700.0


def bounded_exp(logarithm: float) -> float:
    """Return the exponential, or a very large number where a float would overflow."""
    return math.exp(min(logarithm, _LARGEST))


def count_words(text: str) -> int:
    """Count the words between white space, and the end of the text, which a model predicts too.

    >>> count_words("the keys are here"), count_words("")
    (5, 1)
    """
    return len(text.split()) + 1


Array = NDArray[np.float64]
# what each example adds to a metric, which is a function of the totals
Terms = NDArray[np.integer | np.floating]


def accuracy_of(totals: Array) -> Array:
    """Return 100 · right / examples, from totals of (right, 1).

    >>> float(accuracy_of(np.array([3.0, 4.0])))
    75.0
    """
    return np.asarray(100.0 * totals[..., 0] / totals[..., 1])


def perplexity_of(totals: Array) -> Array:
    """Return exp(−log p / words), from totals of (−log p, words)."""
    return np.exp(np.minimum(log_perplexity_of(totals), _LARGEST))


def log_perplexity_of(totals: Array) -> Array:
    """Return −log p / words, from totals of (−log p, words)."""
    return np.asarray(totals[..., 0] / totals[..., 1])


def bleu_of(totals: Array, *, smooth: bool = True) -> Array:
    """Return corpus BLEU, from totals of (length, reference's length, 4 matches, 4 n-grams).

    Orders without a match are smoothed as in sacreBLEU ("exp"): the first counts 1/2, the next 1/4, …;
    without smoothing, as in multi-bleu.perl, the score is 0.
    """
    length, reference, matches, ngrams = totals[..., 0], totals[..., 1], totals[..., 2:6], totals[..., 6:]
    smoothed = np.where(matches == 0, 0.5 ** np.cumsum(matches == 0, axis=-1), matches)
    # a text too short for an order has none of its n-grams, and scores 0 below
    precision = np.exp(np.log(smoothed / np.maximum(ngrams, 1)).mean(-1))
    brevity = np.exp(np.minimum(1.0 - reference / np.maximum(length, 1), 0.0))
    scored = (ngrams > 0).all(-1) & ((matches > 0).any(-1) if smooth else (matches > 0).all(-1))
    return np.where(scored, 100.0 * brevity * precision, 0.0)


@dataclass(frozen=True)
class Metric:
    """A metric: its name, how it is printed, and which of two values is better.

    `compute` gives the printed value from totals of terms; `scale` turns what a task returns into it.
    `curve` has name and title of what validations log instead; BLEU would take a search.
    """

    name: str
    title: str
    more_is_better: bool = False
    compute: Callable[[Array], Array] | None = None
    scale: float = 1.0
    curve: tuple[str, str] | None = None
    # the first perplexities of a training are far above the rest
    log_scale: bool = False

    @property
    def learning(self) -> tuple[str, str]:
        """Name and title of what validations log of it."""
        return self.curve or (self.name, self.title)

    @property
    def sign(self) -> float:
        """The sign that makes a gain positive: that in perplexity is its reduction."""
        return 1.0 if self.more_is_better else -1.0

    def gain(self, totals: Array) -> Array:
        """Return the value from totals of terms, negative if less is better."""
        assert self.compute is not None
        return self.sign * self.compute(totals)

    def score(self, evaluation: Mapping[str, Any]) -> float:
        """Return the printed value from what an evaluation returned.

        >>> METRICS["accuracy"].score({"accuracy": {"value": 0.8125}})
        81.25
        """
        value = evaluation[self.name]
        return self.scale * float(value["value"] if isinstance(value, dict) else value)


_BLEU = Metric(
    "bleu", "BLEU", more_is_better=True, compute=bleu_of, curve=("perplexity", "perplexity by token")
)
_PLAIN_BLEU = partial(bleu_of, smooth=False)
METRICS = {
    metric.name: metric
    for metric in (
        Metric("loss", "loss"),
        Metric("nll", "−log p by token"),
        Metric("perplexity", "perplexity by word", compute=perplexity_of, log_scale=True),
        # of a translator, beside its BLEU
        Metric("perplexity_by_token", "perplexity by token"),
        Metric("accuracy", "accuracy, %", more_is_better=True, compute=accuracy_of, scale=100.0),
        _BLEU,
        replace(_BLEU, name="bleu_tokenized", title="tokenised BLEU", compute=_PLAIN_BLEU),
        replace(
            _BLEU, name="bleu_compound_split", title="tokenised BLEU, compounds split", compute=_PLAIN_BLEU
        ),
    )
}


def accuracy_terms(right: NDArray[np.bool_]) -> Terms:
    """Return the terms of `accuracy_of`, one row per example."""
    return np.stack([right, np.ones_like(right)], axis=-1).astype(np.int8)


def save_outcomes(path: Path, outcomes: Mapping[str, Terms]) -> None:
    """Write the terms of evaluations by name, whole or not at all."""
    arrays: dict[str, Any] = dict(outcomes)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load_outcomes(path: Path) -> dict[str, Terms]:
    """Read the terms of evaluations by name."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is damaged ({error}); delete it and the result.json beside it, and evaluate again"
        ) from None


_HYPHEN = re.compile(r"(\S)-(\S)")
Rewrite = Callable[[str], str]
# languages without spaces between words, and the tokenizer of sacreBLEU for each; to 13a a clause is one word
_UNSPACED = {"zh": "zh", "ja": "char", "th": "char", "lo": "char", "km": "char", "my": "char"}


@dataclass(frozen=True)
class Score:
    """A corpus score from 0 to 100, and the signature of how it was computed."""

    value: float
    signature: str


@dataclass(frozen=True)
class Comparison:
    """A metric of two systems on the same sentences; p is that of the paired bootstrap."""

    metric: str
    value: float
    other: float
    p: float
    signature: str


@dataclass(frozen=True)
class _Way:
    """A way of scoring: what is done to both sides, and a fresh metric of sacreBLEU."""

    rewrite: Rewrite
    metric: Callable[[], Any]
    prefix: str


def split_compounds(tokenized: str) -> str:
    """Split words at hyphens as `get_ende_bleu.sh` does, for scores comparable with older papers.

    >>> split_compounds("a rich-text format - now")
    'a rich ##AT##-##AT## text format - now'
    """
    return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", tokenized)


def translation_scores(
    hypotheses: Sequence[str], references: Sequence[str], *, language: str | None
) -> dict[str, Score]:
    """Score detokenised text in every way.

    `bleu` is detokenised sacreBLEU, the one to report: 13a, or by character for languages without spaces,
    which have none of the next two. `bleu_tokenized` takes both sides through the
    Moses tokenizer of `language` and smooths nothing, as multi-bleu.perl; `bleu_compound_split` splits
    hyphenated words besides, which alone moves German by about a point. Without a language there are
    neither: any tokenizer would be a guess.
    """
    both = _compose(hypotheses, references)
    scores = {}
    for name, way in _ways(language).items():
        metric = way.metric()
        sides = [[way.rewrite(text) for text in side] for side in both]
        result = metric.corpus_score(sides[0], [sides[1]])
        scores[name] = Score(float(result.score), way.prefix + str(metric.get_signature()))
    return scores


def bleu_terms(
    hypotheses: Sequence[str], references: Sequence[str], *, language: str | None, way: str = "bleu"
) -> NDArray[np.int32]:
    """Return what each sentence adds to a way of BLEU: lengths, matches and n-grams, for `bleu_of`."""
    ways = _ways(language)
    if way not in ways:
        raise ValueError(f"{way} needs the rules of a language with spaces, and the target's is {language}")
    both = [list(map(ways[way].rewrite, texts)) for texts in _compose(hypotheses, references)]
    # the option changes only the score of a sentence, which is not used, and keeps sacreBLEU from warning
    tokenize = _UNSPACED.get(language or "") if way == "bleu" else "none"
    metric = BLEU(effective_order=True, tokenize=tokenize, force=way != "bleu")
    scores: Any = [metric.sentence_score(one, [reference]) for one, reference in zip(*both, strict=True)]
    rows = [[one.sys_len, one.ref_len, *one.counts, *one.totals] for one in scores]
    return np.array(rows, np.int32).reshape(-1, 10)


def paired_bootstrap(
    hypotheses: Sequence[str],
    other: Sequence[str],
    references: Sequence[str],
    *,
    language: str | None,
    samples: int = 1000,
) -> list[Comparison]:
    """Compare two systems in every way with sacreBLEU's paired bootstrap (Koehn 2004)."""
    texts = _compose(hypotheses, other, references)
    comparisons = []
    for name, way in _ways(language).items():
        first, second, gold = ([way.rewrite(text) for text in s] for s in texts)
        systems: Any = [("first", first), ("second", second)]
        test = PairedTest(systems, {name: way.metric()}, [gold], test_type="bs", n_samples=samples)
        signatures, results = test()
        # the results carry sacreBLEU's own name of the metric
        ((label, signature),) = signatures.items()
        ours: Any
        theirs: Any
        ours, theirs = results[label]
        # sacreBLEU counts samples that differ by more; equal systems have none, and would get a p near 0
        p = 1.0 if ours.score == theirs.score else float(theirs.p_value)
        comparisons.append(Comparison(name, ours.score, theirs.score, p, way.prefix + str(signature)))
    return comparisons


def _compose(*systems_and_references: Sequence[str]) -> list[list[str]]:
    """Compose all texts; raise unless each system has a translation for each reference, which come last."""
    *systems, references = systems_and_references
    for hypotheses in systems:
        if len(hypotheses) != len(references):
            raise ValueError(f"{len(hypotheses)} translations for {len(references)} references")
    return [list(map(nfc, texts)) for texts in systems_and_references]


def _ways(language: str | None) -> dict[str, _Way]:
    bleu = _Way(str, partial(BLEU, tokenize=_UNSPACED.get(language or "")), "")
    if language is None or language in _UNSPACED:
        return {"bleu": bleu, "chrf": _Way(str, CHRF, "")}
    tokenize = moses_tokenizer(language)
    # sacreBLEU warns about tokenised input unless told that it is meant
    tokenized = lambda: BLEU(tokenize="none", smooth_method="none", force=True)  # noqa: E731
    moses = f"moses:{language},sacremoses:{version('sacremoses')}"
    return {
        "bleu": bleu,
        "bleu_tokenized": _Way(tokenize, tokenized, f"{moses}|"),
        "bleu_compound_split": _Way(
            lambda text: split_compounds(tokenize(text)), tokenized, f"{moses}+atat|"
        ),
        "chrf": _Way(str, CHRF, ""),
    }
