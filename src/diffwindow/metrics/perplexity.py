"""Perplexity by word, whatever the subwords."""

import math
from collections.abc import Iterable


def word_perplexity(nll: float, words: int) -> float:
    """Return exp(−log p(text) / words), with log p summed over all tokens, subwords or not.

    A text's probability is the product of its tokens' whichever way they cut it, so only the number of words
    may divide it: two models with different vocabularies then compare.

    >>> word_perplexity(nll=4 * math.log(10), words=4)
    10.000000000000002
    """
    if words < 1:
        raise ValueError("a text without words has no perplexity")
    # a float overflows beyond this
    return math.exp(min(nll / words, 700.0))


def count_words(texts: Iterable[str]) -> int:
    """Count the words between white space, and the end of each text, which a model predicts too.

    >>> count_words(["the keys are here", ""])
    6
    """
    return sum(len(text.split()) + 1 for text in texts)
