"""Moses pre-tokenisation, for scores on tokenised text."""

from __future__ import annotations

from collections.abc import Callable

from diffwindow.extras import require


def moses_tokenizer(language: str) -> Callable[[str], str]:
    """Give a function that separates words and punctuation by spaces, as Moses does for `language`."""
    require("sacremoses")
    # slow to import, and few corpora need it
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang=language)
    return lambda text: str(tokenizer.tokenize(text, escape=False, return_str=True))


def moses_detokenizer(language: str) -> Callable[[str], str]:
    """Give a function that joins what `moses_tokenizer` has separated."""
    require("sacremoses")
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang=language)
    return lambda text: str(detokenizer.detokenize(text.split()))


def pretokenizers(languages: dict[str, str]) -> dict[str, Callable[[str], str]]:
    """Give the pre-tokeniser of each field that has a language."""
    return {field: moses_tokenizer(language) for field, language in languages.items()}
