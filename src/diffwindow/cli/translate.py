"""The verb `translate`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from typing import IO, TYPE_CHECKING, Annotated

import typer

from diffwindow.cli.options import (
    Beam,
    Device,
    LengthPenalty,
    MinLength,
    NoRepeat,
    RunFolders,
    Seed,
    TopK,
    TopP,
    chosen_search,
)
from diffwindow.cli.streams import (
    CHUNK,
    InputFile,
    OutputFile,
    Speed,
    input_lines,
    interruptible_output,
    output_stream,
    without_line_ends,
)

if TYPE_CHECKING:
    from diffwindow.decoding.translate import Search
    from diffwindow.inference.model import LoadedModel
    from diffwindow.training.distributed import World


def translate(
    runs: RunFolders,
    input: InputFile = None,
    output: OutputFile = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    nbest: Annotated[int, typer.Option(min=1, help="Outputs per line, as `line ||| text ||| score`.")] = 1,
    max_length: Annotated[
        int, typer.Option(min=1, help="Tokens; a longer line is translated in pieces, which are joined.")
    ] = 256,
    min_length: MinLength = 0,
    no_repeat_ngram: NoRepeat = 0,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Above 0, draw samples instead of a beam search.")
    ] = 0.0,
    top_k: TopK = None,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Translate each line as it is typed.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Translate text, line by line and in order; an empty line stays empty.

    Several processes share the work: torchrun --nproc-per-node 2 -m diffwindow translate …
    """
    if not temperature and (top_k, top_p, seed) != (None, 1.0, 0):
        raise ValueError("--top-k, --top-p and --seed are for samples; add a --temperature above 0")
    from diffwindow.decoding.search import Constraints
    from diffwindow.inference.model import load
    from diffwindow.processes import sharing
    from diffwindow.training.distributed import connected

    with (
        interruptible_output(output),
        connected("cpu") as world,
        sharing(),
        ExitStack() as stack,
    ):
        with world.together():
            model = load(runs, device=device)
            search = replace(
                chosen_search(model.search, beam=beam, length_penalty=length_penalty),
                n_best=nbest,
                max_length=max_length,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                seed=seed,
                constraints=Constraints(min_length, no_repeat_ngram),
            )
            # another kind of model is an error before the first line is read
            model.translations([], search)
            # the first process reads and writes; the others have no lines of their own
            lines: Iterator[str] = iter(())
            target: IO[str] | None = None
            if world.main:
                lines = stack.enter_context(input_lines(input))
                target = stack.enter_context(output_stream(output))
        _stream(_chunks(lines, world, 1 if interactive else CHUNK), target, model, search)


def _chunks(lines: Iterator[str], world: World, size: int) -> Iterator[list[str]]:
    """Yield the lines of the first process in all processes; a line that it cannot read ends all."""
    while True:
        chunk: list[str] = []
        with world.together():
            chunk = list(islice(lines, size))
        if not (chunk := world.broadcast(chunk)):
            return
        yield chunk


def _stream(chunks: Iterator[list[str]], target: IO[str] | None, model: LoadedModel, search: Search) -> None:
    """Translate chunks; the process that has a target writes them and prints how fast it is."""
    speed = Speed()
    for texts in chunks:
        # samples of a line do not depend on its chunk
        translations = model.translations(texts, replace(search, seed=search.seed + speed.done))
        if target is None:
            speed.done += len(texts)
            continue
        for number, best in enumerate(translations, speed.done + 1):
            if best[0].pieces > 1:
                print(f"line {number} is long: translated in {best[0].pieces} pieces", file=sys.stderr)
            for one in best:
                text = without_line_ends(one.text)
                target.write(
                    f"{number} ||| {text} ||| {one.score:.4f}\n" if search.n_best > 1 else f"{text}\n"
                )
        target.flush()
        if len(texts) > 1:
            speed.add(len(texts))
        else:
            speed.done += 1
