"""The verb `parse`."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Annotated

import typer

from diffwindow.cli.library import inference_model, inference_parsing
from diffwindow.cli.options import Device, RunFolder


def parse(
    run: RunFolder,
    text: Annotated[str | None, typer.Argument(help="Words, separated by spaces.")] = None,
    trees: Annotated[
        Path | None,
        typer.Option(
            help="Bracketed trees, or CoNLL's chunks, to compare with; prints F1 in place of a tree."
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Print the tree that a model with learned phrases finds in a text, as Enc(AW,Tree) has them.

    With --trees, print the unlabelled F1 in percent with its 95 % interval, a mean over sentences, of the
    model and of right-branching, left-branching, random and balanced trees; then the mean length of the
    phrases of each level, in words.
    """
    model = inference_model.load(run, device=device)
    if text is not None and trees is None:
        print(*model.parse([text]))
        return
    if trees is None or text is not None:
        raise ValueError("give a text to parse, or --trees FILE to compare with, and not both")
    found = inference_parsing.score_trees(model.members[0], trees)
    for name, scores in found.f1.items():
        error = statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else math.nan
        print(f"{name}\t{100 * statistics.fmean(scores):.1f} ± {196 * error:.1f}\t{len(scores):,} sentences")
    for level, length in found.phrase_lengths.items():
        print(f"level {level:.2f}\tphrases of {length:.2f} words")
