"""Trees that a model with learned phrases finds in texts, and how they agree with those of a treebank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diffwindow.data import trees
from diffwindow.data.lines import Audit
from diffwindow.models.language_model import LanguageModel
from diffwindow.models.layers import TransformerStack
from diffwindow.models.model import evaluating
from diffwindow.tasks.model_folder import ModelFolder


def word_distances(trained: ModelFolder, words: Sequence[str]) -> list[float]:
    """Return the learned distance of each word from the next."""
    model: Any = trained.model
    causal = isinstance(model, LanguageModel)
    stack: TransformerStack = model.decoder if causal else model.encoder
    if stack.phrases is None:
        side = "Dec" if causal else "Enc"
        raise ValueError(
            f"{trained.path} has {model.config.attention}, which learns no phrases; train a model with "
            f"{side}(AW,Tree)"
        )
    pieces = [trained.tokenizer.encode(f" {word}" if index else word) for index, word in enumerate(words)]
    # the place of the last piece of each word
    before = [trained.opening] if causal else []
    ends = list(accumulate(map(len, pieces), initial=len(before) - 1))[1:-1]
    with evaluating(model) as device:
        tokens = torch.tensor([[*before, *(piece for word in pieces for piece in word)]], device=device)
        distances = stack.phrases.distances(model.embedding(tokens))[0].tolist()
    return [distances[end] for end in ends]


def parse_text(trained: ModelFolder, text: str) -> str:
    """Return the tree of a text, bracketed, split top down at the largest distance; empty if the text is."""
    words = text.split()
    return trees.tree_of(words, word_distances(trained, words)) if words else ""


def score_trees(trained: ModelFolder, path: Path) -> dict[str, list[float]]:
    """Return the unlabelled F1 of each tree of a file, of the model and of trees that know no words.

    The model reads all words; punctuation, the whole sentence, and sentences of fewer than three words then
    do not count.
    """
    scores: dict[str, list[float]] = {}
    generator = np.random.default_rng(0)
    for row in trees.read_trees(path, Audit()):
        words, heights = trees.distances_of(str(row["text"]))
        gold = trees.without_punctuation(words, heights[:-1])
        if len(gold) < 2:
            continue
        said = trees.without_punctuation(words, word_distances(trained, words))
        for name, one in {"model": said, **trees.baseline_trees(len(gold), generator)}.items():
            scores.setdefault(name, []).append(trees.tree_f1(gold, one))
    return scores
