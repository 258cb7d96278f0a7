"""Trees that a model with learned phrases finds in texts, and how they agree with those of a treebank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diffwindow.attention.phrases import PhraseGates
from diffwindow.data import trees
from diffwindow.data.lines import Audit
from diffwindow.models.language_model import LanguageModel
from diffwindow.models.layers import TransformerStack
from diffwindow.models.model import evaluating
from diffwindow.tasks.model_folder import ModelFolder


def learned_phrases(trained: ModelFolder) -> PhraseGates:
    """Return what makes the gates of a model; raise if it learns no phrases."""
    model: Any = trained.model
    causal = isinstance(model, LanguageModel)
    stack: TransformerStack = model.decoder if causal else model.encoder
    if stack.phrases is None:
        side = "Dec" if causal else "Enc"
        raise ValueError(
            f"{trained.path} has {model.config.attention}, which learns no phrases; train a model with "
            f"{side}(AW,Tree)"
        )
    return stack.phrases


def word_distances(trained: ModelFolder, words: Sequence[str]) -> list[float]:
    """Return the learned distance of each word from the next."""
    model: Any = trained.model
    phrases = learned_phrases(trained)
    pieces = [trained.tokenizer.encode(f" {word}" if index else word) for index, word in enumerate(words)]
    # the place of the last piece of each word
    before = [trained.opening] if isinstance(model, LanguageModel) else []
    ends = list(accumulate(map(len, pieces), initial=len(before) - 1))[1:-1]
    with evaluating(model) as device:
        tokens = torch.tensor([[*before, *(piece for word in pieces for piece in word)]], device=device)
        distances = phrases.distances(model.embedding(tokens))[0].tolist()
    return [distances[end] for end in ends]


def parse_text(trained: ModelFolder, text: str) -> str:
    """Return the tree of a text, bracketed, split top down at the largest distance; empty if the text is."""
    words = text.split()
    return trees.tree_of(words, word_distances(trained, words)) if words else ""


@dataclass(frozen=True)
class TreeScores:
    """The unlabelled F1 of each tree, by what made it, and the mean phrase of each level, in words."""

    f1: dict[str, list[float]]
    phrase_lengths: dict[float, float]


def score_trees(trained: ModelFolder, path: Path) -> TreeScores:
    """Compare the trees of a file with those of the model, and with trees that know no words.

    The model reads all words; punctuation, the whole sentence, and sentences of fewer than three words then
    do not count.
    """
    scores: dict[str, list[float]] = {}
    generator, phrases = np.random.default_rng(0), learned_phrases(trained)
    num_words, num_phrases = 0, torch.zeros(len(phrases.levels))
    for row in trees.read_trees(path, Audit()):
        words, heights = trees.distances_of(str(row["text"]))
        gold = trees.without_punctuation(words, heights[:-1])
        if len(gold) < 2:
            continue
        distances = word_distances(trained, words)
        with torch.no_grad():
            num_phrases += 1 + phrases(torch.tensor([distances]).to(phrases.levels))[0].sum(-1).cpu()
        num_words += len(words)
        said = trees.without_punctuation(words, distances)
        for name, one in {"model": said, **trees.baseline_trees(len(gold), generator)}.items():
            scores.setdefault(name, []).append(trees.tree_f1(gold, one))
    lengths = (num_words / num_phrases).tolist()
    return TreeScores(scores, dict(zip(phrases.levels.tolist(), lengths, strict=True)))
