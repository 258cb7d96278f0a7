"""Text to token ids and back: byte-level BPE, or whole words for language models."""

from __future__ import annotations

import json
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from diffwindow.extras import require
from diffwindow.files import write_atomically
from diffwindow.special_tokens import BOS, EOS, PAD, SPECIAL_TOKENS, UNK

CONTROL = (PAD, BOS, EOS)
Kind = Literal["bpe", "words"]
Normalization = Literal["nfc", "none"]
Ids = Sequence[int] | NDArray[Any]
_KINDS: dict[str, Kind] = {"ByteLevel": "bpe", "WhitespaceSplit": "words"}


class Tokenizer:
    """Encode text as ids; 0 is padding, 1 begin, 2 end, 3 unknown, and no text encodes to 0, 1 or 2.

    >>> tokenizer = Tokenizer.train_words(["the keys are here", "the key is here"], vocab_size=8)
    >>> tokenizer.encode("the keys")
    [5, 3]
    >>> tokenizer.decode([5, 3])
    'the <unk>'
    """

    def __init__(self, backend: tokenizers.Tokenizer, kind: Kind) -> None:
        # "<s>" inside a corpus is text, not a control token
        backend.encode_special_tokens = True
        self._backend = backend
        self.kind = kind

    @classmethod
    def train_bpe(
        cls, lines: Iterable[str], vocab_size: int, *, normalization: Normalization = "nfc"
    ) -> Tokenizer:
        """Learn a byte-level BPE of exactly `vocab_size` ids, or fewer when the text has no more pairs."""
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        if vocab_size < len(SPECIAL_TOKENS) + len(alphabet):
            raise ValueError(f"vocab_size={vocab_size} is too small: bytes and special tokens alone need 260")
        backend = tokenizers.Tokenizer(models.BPE())
        if normalization == "nfc":
            backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=sorted(alphabet),
            show_progress=False,
        )
        backend.train_from_iterator(lines, trainer)
        return cls(backend, "bpe")

    @classmethod
    def train_words(
        cls, lines: Iterable[str], vocab_size: int | None = None, *, normalization: Normalization = "nfc"
    ) -> Tokenizer:
        """Keep the most frequent words (all of them by default); the rest become `<unk>`."""
        counts: Counter[str] = Counter()
        normalizer = normalizers.NFC() if normalization == "nfc" else None
        for line in lines:
            counts.update((normalizer.normalize_str(line) if normalizer else line).split())
        for name in SPECIAL_TOKENS:
            counts.pop(name, None)
        by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
        size = None if vocab_size is None else max(vocab_size, len(SPECIAL_TOKENS))
        vocabulary = {word: index for index, word in enumerate([*SPECIAL_TOKENS, *by_frequency][:size])}
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[UNK]))
        if normalizer:
            backend.normalizer = normalizer
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.add_special_tokens(list(SPECIAL_TOKENS))
        return cls(backend, "words")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read a tokenizer.json that `save` wrote."""
        if Path(path).exists() and not Path(path).is_file():
            raise ValueError(f"{path} is not a regular file; give a tokenizer.json")
        try:
            text = Path(path).read_text(encoding="utf-8")
            scheme = json.loads(text)["pre_tokenizer"]["type"]
            backend = tokenizers.Tokenizer.from_str(text)
        except OSError as error:
            raise OSError(f"cannot read the tokenizer {path}: {error.strerror}") from error
        except Exception as error:  # the library raises bare Exception on a damaged file
            raise ValueError(f"{path} is not a tokenizer file: {error}") from error
        tokens = tuple(backend.id_to_token(index) for index in range(len(SPECIAL_TOKENS)))
        if not isinstance(backend.normalizer, normalizers.NFC | None):
            raise ValueError(f"{path} was not made by diffwindow: it changes the text ({backend.normalizer})")
        if scheme not in _KINDS or tokens != SPECIAL_TOKENS:
            raise ValueError(
                f"{path} was not made by diffwindow: it splits by {scheme} and its first ids are {tokens}"
            )
        largest, size = max(backend.get_vocab().values()), backend.get_vocab_size()
        if largest >= size:
            raise ValueError(f"{path} is damaged: it has the id {largest:,} in a vocabulary of {size:,}")
        return cls(backend, _KINDS[scheme])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tokenizer.json in the format of the `tokenizers` library."""
        write_atomically(Path(path), self._backend.to_str(pretty=True).encode("utf-8"))

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return int(self._backend.get_vocab_size())

    @property
    def normalization(self) -> Normalization:
        """What is done to a text first: `nfc` (see `nfc`), or `none`, as for all before this was known."""
        return "none" if self._backend.normalizer is None else "nfc"

    def pretokenizer(self, language: str | None) -> Callable[[str], str]:
        """Return what is done to a text before `encode`: Moses of a language, or nothing."""
        return moses_tokenizer(language, normalization=self.normalization) if language else str

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without begin or end."""
        return self._as_text(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, on all cores."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._as_text(encoding.ids) for encoding in encodings]

    def _as_text(self, ids: list[int]) -> list[int]:
        # a word-level vocabulary holds "<pad>", "<s>" and "</s>" as words; in a corpus they are unknown ones
        if self.kind == "words" and ids and min(ids) < UNK:
            return [max(index, UNK) for index in ids]
        return ids

    def decode(self, ids: Ids) -> str:
        """Return the text of `ids`; padding, begin and end are left out."""
        text = [int(i) for i in ids if i not in CONTROL]
        return str(self._backend.decode(text, skip_special_tokens=False))

    def word_starts(self) -> list[bool]:
        """Tell of each id whether a word begins with it, where it is not the first of a text."""
        tokens = (str(self._backend.id_to_token(index)) for index in range(self.vocab_size))
        # a byte-level token has this letter in place of a space
        return [
            self.kind == "words" or index < len(SPECIAL_TOKENS) or token[:1] == "Ġ"
            for index, token in enumerate(tokens)
        ]

    def tokens(self, ids: Ids) -> list[str]:
        """Return each token as people read it: `@@` marks one that the next continues.

        Joining with spaces and removing `@@ ` gives the text back, unless a token holds part of a character.
        """
        if self.kind == "words":
            return [str(self._backend.id_to_token(int(i))) for i in ids]
        pieces = [str(self._backend.decode([int(i)], skip_special_tokens=False)) for i in ids]
        begins = [i in CONTROL or piece[:1] == " " for i, piece in zip(ids, pieces, strict=True)]
        shown = []
        for i, piece, next_begins in zip(ids, pieces, [*begins[1:], True], strict=True):
            continued = not next_begins and i not in CONTROL
            shown.append(piece.removeprefix(" ") + ("@@" if continued else ""))
        return shown


def nfc(text: str) -> str:
    """Compose characters and their accents (Unicode NFC), so that a text has one spelling."""
    return unicodedata.normalize("NFC", text)


def moses_tokenizer(language: str, *, normalization: Normalization = "nfc") -> Callable[[str], str]:
    """Return a function that separates words and punctuation by spaces, as Moses does for `language`.

    Text is normalised first: Moses takes an accent by itself for punctuation.
    """
    require("sacremoses")
    # slow to import, and few corpora need it
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang=language)
    normalize = nfc if normalization == "nfc" else str
    return lambda text: str(tokenizer.tokenize(normalize(text), escape=False, return_str=True))


def moses_detokenizer(language: str) -> Callable[[str], str]:
    """Return a function that joins what `moses_tokenizer` has separated."""
    require("sacremoses")
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang=language)
    return lambda text: str(detokenizer.detokenize(text.split()))


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """Return the narrowest type that holds every id."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")
