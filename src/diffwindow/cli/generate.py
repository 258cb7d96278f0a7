"""The verb `generate`."""

from __future__ import annotations

from typing import Annotated

import typer

from diffwindow.cli.options import Device, MinLength, NoRepeat, RunFolder, Seed, TopK, TopP
from diffwindow.cli.streams import without_line_ends


def generate(
    run: RunFolder,
    prompt: Annotated[str, typer.Option(help="Text to continue; empty starts a new one.")] = "",
    samples: Annotated[int, typer.Option(min=1, help="How many continuations.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest continuation.")] = 50,
    min_length: MinLength = 0,
    no_repeat_ngram: NoRepeat = 0,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Below 1 favours likely tokens; 0 is greedy.")
    ] = 1.0,
    top_k: TopK = None,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Continue a text with a language model, one line per sample."""
    from diffwindow.cli.errors import interruptible
    from diffwindow.decoding.generate import Sampling
    from diffwindow.decoding.search import Constraints
    from diffwindow.inference.model import load

    constraints = Constraints(min_length, no_repeat_ngram)
    sampling = Sampling(samples, max_tokens, temperature, top_k, top_p, seed, constraints)
    with interruptible("nothing was generated"):
        print("\n".join(map(without_line_ends, load(run, device=device).generate(prompt, sampling))))
