"""The words of the generated corpora."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

# (singular, plural)
PEOPLE = [
    ("doctor", "doctors"), ("baker", "bakers"), ("sailor", "sailors"), ("teacher", "teachers"),
    ("painter", "painters"), ("farmer", "farmers"), ("child", "children"), ("woman", "women"), ("man", "men"),
    ("guest", "guests"), ("singer", "singers"), ("captain", "captains"), ("neighbour", "neighbours"),
    ("student", "students"), ("driver", "drivers"), ("judge", "judges"), ("nurse", "nurses"),
    ("cook", "cooks"), ("gardener", "gardeners"), ("writer", "writers"),
    ("soldier", "soldiers"), ("friend", "friends"),
]  # fmt: skip
THINGS = [
    ("key", "keys"), ("cabinet", "cabinets"), ("letter", "letters"), ("lamp", "lamps"), ("box", "boxes"),
    ("boat", "boats"), ("bridge", "bridges"), ("window", "windows"), ("picture", "pictures"),
    ("book", "books"), ("chair", "chairs"), ("house", "houses"), ("garden", "gardens"), ("knife", "knives"),
    ("bell", "bells"), ("tower", "towers"), ("road", "roads"), ("coat", "coats"), ("clock", "clocks"),
    ("basket", "baskets"), ("mirror", "mirrors"), ("ladder", "ladders"),
]  # fmt: skip
ADJECTIVES = [
    "old", "young", "tall", "small", "quiet", "famous", "tired", "green", "red", "heavy", "strange", "new",
    "broken", "bright", "clever", "kind", "dark", "simple",
]  # fmt: skip
DETERMINERS = ["the", "the", "the", "my", "our", "their", "her", "his"]
PREPOSITIONS = ["near", "behind", "beside", "with", "without", "under", "above", "opposite", "from", "around"]
# the past tense shows no number, so a verb inside the subject phrase gives nothing away
PAST_TRANSITIVE = [
    "admired", "found", "painted", "visited", "carried", "remembered", "sold", "bought", "followed", "forgot",
    "noticed", "described", "repaired", "wanted",
]  # fmt: skip
PAST_INTRANSITIVE = ["left", "arrived", "slept", "waited", "laughed", "vanished", "returned", "fell"]
PAST_SAYING = ["said", "thought", "believed", "knew", "heard", "hoped", "claimed"]
# (third person singular, plural)
PERSON_VERBS = [
    ("laughs", "laugh"), ("waits", "wait"), ("sleeps", "sleep"), ("sings", "sing"), ("works", "work"),
    ("walks", "walk"), ("smiles", "smile"), ("travels", "travel"), ("is", "are"), ("has", "have"),
]  # fmt: skip
THING_VERBS = [
    ("falls", "fall"), ("shines", "shine"), ("stands", "stand"), ("breaks", "break"), ("costs", "cost"),
    ("moves", "move"), ("lies", "lie"), ("is", "are"), ("has", "have"), ("looks", "look"),
]  # fmt: skip
TAILS = {
    "is": ["here .", "old .", "not far away .", "known to everyone ."],
    "are": ["here .", "old .", "not far away .", "known to everyone ."],
    "has": ["a long story .", "no name .", "a new owner ."],
    "have": ["a long story .", "no name .", "a new owner ."],
    "looks": ["strange .", "new ."],
    "look": ["strange .", "new ."],
    "costs": ["too much .", "very little ."],
    "cost": ["too much .", "very little ."],
}
PLAIN_TAILS = ["every morning .", "in the evening .", "again .", "by the river .", "."]
ADVERBS = ["often", "always", "never", "usually", "still", "really"]
PLACES = ["harbour", "market", "station", "village", "castle", "church", "forest", "square"]
CONJUNCTIONS = ["although", "because", "when", "after", "before", "while"]

Part = Literal["all", "train", "valid", "test"]
# out of ten sentences: identical ones always land in the same part
_SHARES: dict[Part, range] = {"all": range(10), "train": range(8), "valid": range(8, 9), "test": range(9, 10)}
Example = TypeVar("Example")


def take(
    make: Callable[[random.Random], Example],
    text_of: Callable[[Example], str],
    num_examples: int,
    *,
    seed: int,
    part: Part,
) -> Iterator[Example]:
    """Make examples until `num_examples` of them belong to the part."""
    rng = random.Random(f"{make.__module__} {seed} {part}")
    share = _SHARES[part]
    made = 0
    while made < num_examples:
        example = make(rng)
        if zlib.crc32(text_of(example).encode()) % 10 in share:
            made += 1
            yield example
