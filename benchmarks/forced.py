"""Searches of a fixed length, ours and CTranslate2's, with the same weights: tasks of `models.py`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import peers
import torch

from diffwindow.decoding import Decoding
from diffwindow.decoding.beam import beam_search
from diffwindow.decoding.search import start_translation
from diffwindow.models.int8 import round_weights

SOURCE, TARGET, PENALTY = 30, 32, 0.6
# beam and sentences
SEARCHES = {"greedy-1": (1, 1), "greedy-32": (1, 32), "beam-8": (5, 8), "beam-32": (5, 32)}


def forced(
    beam: int, sentences: int, dtype: str, name: str, batch: Any, size: dict[str, int]
) -> Callable[[], list[list[int]]]:
    """Translate sources of 30 tokens to exactly 32 tokens; ours scores the end after them as well."""
    model = peers.sharpened(**size)
    generator = torch.Generator().manual_seed(3)
    source = torch.randint(4, size["vocab_size"], (sentences, SOURCE), generator=generator)
    if name == "ctranslate2":
        return ctranslate2_search(peers.ctranslate2(model, dtype), source.tolist(), beam)
    if dtype == "int8":
        round_weights(model)
    decoding = Decoding(beam=beam, length_penalty=PENALTY, min_new_tokens=TARGET)

    def run() -> list[list[int]]:
        start = start_translation(model, source, limit=TARGET)
        return [list(best.tokens) for (best,) in beam_search(model, start, decoding)]

    return run


def ctranslate2_search(model: Any, source: list[list[int]], beam: int) -> Callable[[], list[list[int]]]:
    texts = [[str(token) for token in row] for row in source]

    def run() -> list[list[int]]:
        results = model.translate_batch(
            texts,
            beam_size=beam,
            length_penalty=PENALTY,
            min_decoding_length=TARGET,
            max_decoding_length=TARGET,
        )
        return [[int(token) for token in result.hypotheses[0]] for result in results]

    return run


TASKS = {
    f"{search}-{label}": (("ours", "ctranslate2"), partial(forced, *shape, dtype))
    for label, dtype in (("fp32", "float32"), ("int8", "int8"))
    for search, shape in SEARCHES.items()
}
