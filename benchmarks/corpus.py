"""Write a big artificial parallel corpus whose words follow Zipf's law, as those of a language do."""

from __future__ import annotations

from pathlib import Path

import numpy as np

MEAN_LENGTH = 20
SYLLABLES = [a + b for a in "bdfghjklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "in")]


def words(count: int, seed: int) -> np.ndarray:
    """Make distinct words, short ones first."""
    rng = np.random.default_rng(seed)
    draws = rng.integers(len(SYLLABLES), size=(2 * count, 6)).tolist()
    # frequent words are short: two syllables for the first hundred, up to five for the last
    sizes = np.log10(np.arange(2 * count) + 100).astype(int).tolist()
    made = ("".join(SYLLABLES[s] for s in draw[:size]) for draw, size in zip(draws, sizes, strict=True))
    return np.array(list(dict.fromkeys(made))[:count], dtype=object)


def write_pairs(folder: Path, pairs: int, *, vocabulary: int = 200_000) -> tuple[Path, Path]:
    """Write `pairs` lines of source and target, a chunk at a time."""
    paths = folder / "train.src", folder / "train.tgt"
    for seed, path in enumerate(paths):
        rng = np.random.default_rng(seed)
        lexicon = words(vocabulary, seed)
        chances = np.cumsum(1 / (np.arange(vocabulary) + 2.7))
        with path.open("w") as file:
            for start in range(0, pairs, 50_000):
                lengths = 1 + rng.poisson(rng.gamma(3, MEAN_LENGTH / 3, min(50_000, pairs - start)))
                ranks = np.searchsorted(chances, rng.random(lengths.sum()) * chances[-1])
                drawn = lexicon[np.minimum(ranks, vocabulary - 1)].tolist()
                ends = np.cumsum(lengths).tolist()
                file.writelines(
                    " ".join(drawn[begin:end]) + " .\n" for begin, end in zip([0, *ends], ends, strict=False)
                )
    return paths
