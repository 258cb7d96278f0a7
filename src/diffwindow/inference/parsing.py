"""Trees that a model with learned phrases finds in texts, and how they agree with those of a treebank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from diffwindow.attention.phrases import PhraseGates
from diffwindow.data import own_files, trees
from diffwindow.data.lines import Audit
from diffwindow.inference.attention import Example
from diffwindow.models.language_model import LanguageModel
from diffwindow.models.layers import TransformerStack
from diffwindow.models.model import evaluating
from diffwindow.tasks.model_folder import ModelFolder
from diffwindow.view.trees import tree_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def draw_tree(trained: ModelFolder, example: Example) -> Figure:
    """Draw the tree that a model finds in a sentence, and below it the sentence's own, if that is known."""
    words, own = example.title.split(), {}
    if example.tree is not None:
        # a word ends at a piece that is not at distance 0 from the next
        ends = [0, *(place for place, distance in enumerate(example.tree, 1) if distance)]
        words = [trained.tokenizer.decode(example.ids[a:b]).strip() for a, b in pairwise(ends)]
        own["tree of the corpus"] = trees.phrases_of([example.tree[end - 1] for end in ends[1:-1]])
    learned = trees.phrases_of(word_distances(trained, words))
    return tree_figure(words, {trained.model.config.attention: learned, **own})


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
    for row in own_files.trees(path).read_phrases("text").reader(Audit()):
        # only ASCII spaces separate words
        words = str(row["text"]).split(" ")
        heights = [float(height) for height in str(row[trees.FIELD]).split()]
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
    if not scores:
        raise ValueError(f"{path} has no tree of three words or more to compare with")
    lengths = (num_words / num_phrases).tolist()
    return TreeScores(scores, dict(zip(phrases.levels.tolist(), lengths, strict=True)))
