"""A model small enough to enumerate: logits drawn at random for each sentence and prefix."""

import torch

from diffwindow.decoding.search import Start

FIRST_WORD = 3  # after padding, opening and end


class Toy:
    """Give each (sentence, prefix) logits from a generator seeded by both; counts the rows it computes."""

    def __init__(self, words: int, *, spread: float = 2.0, end_bias: float = 0.0, seed: int = 0):
        self.vocabulary = FIRST_WORD + words
        self.spread, self.end_bias, self.seed = spread, end_bias, seed
        self.rows = self.steps = 0

    def logits(self, sentence: int, prefix: tuple[int, ...]) -> torch.Tensor:
        key = self.seed
        for part in (sentence, *prefix):
            key = (key * 1_000_003 + part + 1) % (2**61 - 1)
        drawn = torch.randn(
            self.vocabulary, generator=torch.Generator().manual_seed(key), dtype=torch.float64
        )
        drawn *= self.spread
        drawn[2] += self.end_bias
        return drawn

    def begin(self, sentences, limits) -> Start:
        first = torch.ones(len(sentences), dtype=torch.long)
        return Start(ToyState([[(s, ())] for s in sentences]), first, torch.tensor(limits, dtype=torch.long))

    def step(self, tokens, state):
        state.paths = [
            [(sentence, (*prefix, token)) for (sentence, prefix), token in zip(row, new, strict=True)]
            for row, new in zip(state.paths, tokens.tolist(), strict=True)
        ]
        self.steps += 1
        self.rows += tokens.numel()
        return torch.stack([torch.stack([self.logits(*path) for path in row]) for row in state.paths])


class ToyState:
    def __init__(self, paths):
        self.paths = paths

    def select(self, sentences, hypotheses):
        self.paths = [
            [self.paths[s][h] for h in row]
            for s, row in zip(sentences.tolist(), hypotheses.tolist(), strict=True)
        ]
