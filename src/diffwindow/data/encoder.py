"""Encode many texts as the bytes of a store, remembering words already seen.

Neither vocabulary lets a token cross a single space: byte-level BPE attaches a space to the word after it and
word-level text is split at it. So the ids of a text are those of its words, one after the other, and corpora
repeat their words. The result is exactly that of `Tokenizer.encode`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from diffwindow.data.tokenizer import EOS, Tokenizer

CACHED_WORDS = 200_000
# a single space between words; around any other white space, words stay in one piece
_BETWEEN_WORDS = re.compile(r"(?<=\S) (?=\S)")


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """Give the narrowest type that holds every id."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


class _Words(dict[str, bytes]):
    """The encoded ids of words, filled on demand.

    When full it becomes the old generation, from which words that occur again are taken back; the others go.
    """

    def __init__(self, tokenizer: Tokenizer, before: str) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._before = before
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._old: dict[str, bytes] = {}

    def __missing__(self, word: str) -> bytes:
        encoded = self._old.get(word)
        if encoded is None:
            encoded = np.array(self._tokenizer.encode(self._before + word), self._dtype).tobytes()
        if len(self) >= CACHED_WORDS:
            self._old = dict(self)
            self.clear()
        self[word] = encoded
        return encoded


class Encoder:
    """Turn texts into (the bytes of all their ids, the number of ids of each), each text ending in EOS."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._end = np.array([EOS], self._dtype).tobytes()
        self._first = _Words(tokenizer, "")
        self._later = _Words(tokenizer, " ") if tokenizer.kind == "bpe" else self._first

    def encode(self, texts: Sequence[str]) -> tuple[bytes, NDArray[np.int64]]:
        """Encode a chunk of texts."""
        encoded = [self._one(text) for text in texts]
        size = self._dtype.itemsize
        return b"".join(encoded), np.array([len(item) // size for item in encoded], np.int64)

    def _one(self, text: str) -> bytes:
        words = text.split()
        if text.split(" ") != words:
            words = _BETWEEN_WORDS.split(text)
        return b"".join([self._first[words[0]], *map(self._later.__getitem__, words[1:]), self._end])
