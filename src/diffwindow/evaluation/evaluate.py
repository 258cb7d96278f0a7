"""Evaluate a trained model on a split: metrics, and what is needed to compare them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from diffwindow.decoding import Decoding
from diffwindow.evaluation.confusion import Confusion
from diffwindow.evaluation.intervals import accuracy, accuracy_by, gain_interval, mcnemar
from diffwindow.evaluation.windows import has_gold_windows, window_fits
from diffwindow.models.classifier import Classifier
from diffwindow.models.translator import Translator
from diffwindow.progress import SILENT, Progress
from diffwindow.special_tokens import EOS, UNK
from diffwindow.tasks.classification import Classification
from diffwindow.tasks.entries import TASKS, load_named
from diffwindow.tasks.language_modeling import LanguageModeling
from diffwindow.tasks.metrics import (
    Terms,
    accuracy_terms,
    bleu_terms,
    bounded_exp,
    log_perplexity_of,
    paired_bootstrap,
    perplexity_of,
    translation_scores,
    word_perplexity,
)
from diffwindow.tasks.model_folder import ModelFolder
from diffwindow.tasks.task import StoreTask
from diffwindow.tasks.translation import Translation


@dataclass(frozen=True)
class Evaluation:
    """Metrics as plain data for JSON, the terms of each example, and what a comparison needs.

    `nll` has −log p of each example and what it is divided by, tokens of a translation or words of a text.
    """

    metrics: dict[str, Any]
    terms: Terms
    nll: Terms | None = None
    right: NDArray[np.bool_] | None = None
    hypotheses: list[str] = field(default_factory=list)
    references: list[str] = field(default_factory=list)
    language: str | None = None

    def terms_of(self, metric: str) -> Terms:
        """Return the terms of a metric, which may be another way of BLEU than `terms` are of."""
        if metric not in ("bleu_tokenized", "bleu_compound_split"):
            return self.terms
        return bleu_terms(self.hypotheses, self.references, language=self.language, way=metric)


def evaluate_model(
    trained: ModelFolder, task: StoreTask[Any], split: str, decoding: Decoding, *, progress: Progress = SILENT
) -> Evaluation:
    """Evaluate a model on a split of its task's store."""
    evaluation: Evaluation = load_named(TASKS[task.store.task].evaluate)(
        trained, task, split, decoding, progress
    )
    return evaluation


def evaluate_translation(
    trained: ModelFolder, task: Translation, split: str, decoding: Decoding, progress: Progress
) -> Evaluation:
    """Translate a split and score the translations."""
    rows, language = task.store.split(split), trained.record.languages.get("target")
    hypotheses, references, in_pieces = task.translate(
        cast(Translator, trained.model),
        split,
        range(len(rows)),
        decoding,
        moses=trained.record.moses.get("target"),
        progress=lambda done, total: progress("translating", done / total),
    )
    nll: Terms = np.stack(task.nll(trained.model, split, progress=progress), axis=-1, dtype=np.float64)
    metrics = {
        **score_texts(hypotheses, references, language=language),
        "perplexity_by_token": float(perplexity_of(nll.sum(0))),
        "sentences": len(hypotheses),
        "in_pieces": in_pieces,
        # words that the vocabulary does not have are not in the references either: scores are then too high
        "unknown_in_references": int((rows.stream("target") == UNK).sum()),
    }
    terms = bleu_terms(hypotheses, references, language=language)
    return Evaluation(metrics, terms, nll, hypotheses=hypotheses, references=references, language=language)


def score_texts(
    hypotheses: Sequence[str], references: Sequence[str], *, language: str | None
) -> dict[str, Any]:
    """Return the metrics of translations from any system as plain data; say so if the language is unknown."""
    scores = translation_scores(hypotheses, references, language=language)
    unknown = {} if language else {"target_language": "unknown"}
    return {**{name: asdict(score) for name, score in scores.items()}, **unknown}


def evaluate_classification(
    trained: ModelFolder, task: Classification, split: str, _: Decoding, progress: Progress
) -> Evaluation:
    """Classify a split; return the accuracy, also by label, length and what else the rows tell."""
    predicted, nll = task.predict(trained.model, split, progress=progress)
    columns, gold, names = task.store.split(split).columns, task.gold(split), trained.labels
    right, confusion = predicted == gold, Confusion.of(gold, predicted, len(names))
    scores = confusion.scores()
    metrics: dict[str, Any] = {
        "accuracy": asdict(accuracy(int(right.sum()), len(right))),
        "macro_f1": confusion.macro_f1(),
        "loss": float(nll.mean()),
        "by_label": {
            names[n]: asdict(group) | asdict(scores[n]) for n, group in accuracy_by(right, gold).items()
        },
        "confusion": {"labels": list(names), "counts": confusion.counts.tolist()},
    }
    metrics["by_length"] = _by_size(right, task.lengths(split)[0])
    # -1 stands for a distance or a number of attractors that is not known
    if (known := columns.get("distance", np.array([-1])) >= 0).any():
        metrics["by_distance"] = _by_size(right[known], columns["distance"][known])
    if "attractors" in columns:
        groups = accuracy_by(right, columns["attractors"].astype(np.int64))
        metrics["by_attractors"] = {str(count): asdict(group) for count, group in groups.items()}
    if has_gold_windows(task.store, task.options.max_length):
        metrics["windows"] = [
            asdict(fit) for fit in window_fits(task, cast(Classifier, trained.model), split)
        ]
    return Evaluation(metrics, accuracy_terms(right), right=right)


def _by_size(right: NDArray[np.bool_], sizes: NDArray[np.integer]) -> dict[str, dict[str, Any]]:
    """Return the accuracy by size, in ranges that double from ten on.

    >>> list(_by_size(np.array([True, False, True]), np.array([0, 20, 21])))
    ['0-10', '11-20', '21-40']
    """
    # the last of each range; sizes between two of them belong to the larger
    ends = 10 * 2 ** np.searchsorted(10 * 2 ** np.arange(20), sizes)
    return {
        f"{end // 2 + 1 if end > 10 else 0}-{end}": asdict(group)
        for end, group in accuracy_by(right, ends).items()
    }


def evaluate_language_model(
    trained: ModelFolder, task: LanguageModeling, split: str, _: Decoding, progress: Progress
) -> Evaluation:
    """Return the perplexity of a split, per word and per token."""
    by_row, tokens_by_row = task.nll(trained.model, split, progress=progress)
    nll, tokens = float(by_row.sum()), int(tokens_by_row.sum())
    words_by_row, stream = task.words(split), task.store.split(split).stream("text")
    words = round(float(words_by_row.sum()))
    metrics = {
        "perplexity": word_perplexity(nll, words),
        "perplexity_by_token": word_perplexity(nll, tokens),
        "bits_by_token": nll / tokens / float(np.log(2)),
        "words": words,
        "tokens": tokens,
        "unknown_words": int((stream == UNK).sum()),
        "rows": int((stream == EOS).sum()),
    }
    terms = np.stack([by_row, words_by_row], axis=-1)
    return Evaluation(metrics, terms.astype(np.float32), terms)


def compare(first: Evaluation, second: Evaluation, *, samples: int = 1000) -> dict[str, Any]:
    """Compare two models on the same examples; p is the probability of such a difference by chance.

    Translations: sacreBLEU's paired bootstrap, and the ratio of the perplexities. Classes: McNemar's exact
    test. Text: the ratio of the perplexities. There is no ratio of perplexities that do not compare.
    """
    if first.references != second.references:
        raise ValueError("the two runs have different references; evaluate them on one corpus")
    if first.hypotheses:
        comparisons = paired_bootstrap(
            first.hypotheses, second.hypotheses, first.references, language=first.language, samples=samples
        )
        scores: dict[str, Any] = {
            one.metric: {"difference": one.value - one.other, "p": one.p, "signature": one.signature}
            for one in comparisons
        }
        # the tokens of two tokenizers do not compare
        same = np.array_equal(cast(Terms, first.nll)[:, 1], cast(Terms, second.nll)[:, 1])
        return scores | ({"perplexity_by_token": _perplexity_ratio(first, second)} if same else {})
    if first.right is not None and second.right is not None:
        difference = float(first.right.mean() - second.right.mean())
        return {"accuracy": {"difference": difference, "p": mcnemar(first.right, second.right)}}
    # nor do texts of other words, or of other unknown ones
    same = all(first.metrics[name] == second.metrics[name] for name in ("words", "unknown_words"))
    return {"perplexity": _perplexity_ratio(first, second)} if same else {}


def _perplexity_ratio(first: Evaluation, second: Evaluation) -> dict[str, float]:
    """Return the ratio of two perplexities, and its 95 % interval over examples if they are two or more.

    Models that cut one text into other blocks have other examples, and no interval.
    """
    nll, other = cast(Terms, first.nll), cast(Terms, second.nll)
    # of logarithms, since a perplexity may be too large for a float
    gain = float(log_perplexity_of(nll.sum(0)) - log_perplexity_of(other.sum(0)))
    if len(nll) < 2 or not np.array_equal(nll[:, 1], other[:, 1]):
        return {"ratio": bounded_exp(gain)}
    reach = gain_interval(nll[None], other[None], log_perplexity_of).reach
    return {"ratio": bounded_exp(gain), "low": bounded_exp(gain - reach), "high": bounded_exp(gain + reach)}
