import math

import pytest

from diffwindow.metrics.perplexity import count_words, word_perplexity


def test_ends_of_lines_count_as_words():
    assert count_words(["a b c", "", "  d  "]) == 3 + 1 + 1 + 1 + 1


def test_nothing_has_no_perplexity_and_nonsense_is_finite():
    with pytest.raises(ValueError, match="without words"):
        word_perplexity(1.0, 0)
    assert math.isfinite(word_perplexity(1e9, 1))
