"""Words of error messages: hints for misspelled names, quoted values."""

import difflib
from collections.abc import Iterable, Sequence


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return the name that is spelled most like a word, in any case; None if none is like it.

    >>> nearest("enc", ["Enc", "Dec"]), nearest("window", ["Enc", "Dec"])
    ('Enc', None)
    """
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[near[0]] if near else None


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return a hint that names the nearest name or, if none is near, all of them.

    >>> did_you_mean("Sge", ["Seg", "Dim"]), did_you_mean("x", ["Seg", "Dim"])
    ("did you mean 'Seg'?", 'choose from Seg, Dim')
    """
    names = list(names)
    near = nearest(word, names)
    return f"choose from {', '.join(names)}" if near is None else f"did you mean {near!r}?"


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise a ValueError that names the nearest choice unless `value` is one of `choices`."""
    if isinstance(value, str) and value in choices:
        return
    near = nearest(str(value), choices)
    hint = "" if near is None else f"; did you mean {near!r}?"
    raise ValueError(f"{name}={quote(value)} is not one of {', '.join(map(repr, choices))}{hint}")


def quote(value: object, limit: int = 80) -> str:
    """Return a value as it is quoted in a message: on one line, and cut short if it is long."""
    text = " ".join(line.strip() for line in repr(value).splitlines())
    return text if len(text) <= limit else f"{text[:limit]}…"
