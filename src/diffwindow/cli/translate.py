"""The verb `translate`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from diffwindow.cli.library import inference_alignment, inference_model, processes, training_distributed
from diffwindow.cli.options import DECODING_OPTIONS, Device, RunFolders, change_decoding, takes_decoding
from diffwindow.cli.streams import (
    CHUNK,
    InputFile,
    OutputFile,
    Speed,
    open_input,
    open_output,
    remove_line_ends,
    report_interrupted_output,
)

if TYPE_CHECKING:
    from diffwindow.decoding import Decoding
    from diffwindow.inference.model import LoadedModel
    from diffwindow.training.distributed import World


@takes_decoding(*DECODING_OPTIONS)
def translate(
    runs: RunFolders,
    changes: Mapping[str, Any],
    input: InputFile = None,
    output: OutputFile = None,
    max_source_tokens: Annotated[
        int, typer.Option(min=1, help="Translate a longer line in pieces, which are joined.")
    ] = 256,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Translate each line as it is typed.")
    ] = False,
    alignments: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write which source word each word translates, as 0-1 2-0 per line (Pharaoh).",
        ),
    ] = None,
    align_by: Annotated[
        Literal["attention", "window"] | None,
        typer.Option(
            help="Align by attention (default) or by window, of the last layer that has it.",
        ),
    ] = None,
    device: Device = "auto",
    int8: Annotated[
        bool,
        typer.Option("--int8", help="Round weights to eight bits: faster on CPUs, a quarter of the memory."),
    ] = False,
) -> None:
    """Translate text, line by line and in order; an empty line stays empty.

    Several outputs per line are printed as `line ||| text ||| score`.

    Several processes share the work: torchrun --nproc-per-node 2 -m diffwindow translate …
    """
    with (
        report_interrupted_output(output),
        # ranks exchange texts and numbers here, never tensors on a GPU
        training_distributed.connected("cpu") as world,
        processes.sharing(world),
        ExitStack() as stack,
    ):
        with world.together():
            model = inference_model.load(runs, device=device, dtype="int8" if int8 else None)
            own = replace(model.decoding, max_source_tokens=max_source_tokens)
            decoding = change_decoding(own, changes)
            # another kind of model is an error before the first line is read
            model.translations([], decoding)
            # the first process reads and writes; the others have no lines of their own
            lines: Iterator[str] = iter(())
            target: IO[str] | None = None
            links: IO[str] | None = None
            if align_by and not alignments:
                raise ValueError(f"--align-by {align_by} needs a file to write to; add --alignments FILE")
            if alignments and decoding.n_best > 1:
                raise ValueError("--alignments is for one translation per line; leave --n-best out")
            if alignments:
                # a model that has none is an error before the first line is read
                model.align([("a", "a")], by=align_by or "attention")
            if world.main:
                lines = stack.enter_context(open_input(input))
                target = stack.enter_context(open_output(output))
                links = stack.enter_context(open_output(alignments)) if alignments else None
        for texts, best in _stream(
            _chunks(lines, world, 1 if interactive else CHUNK), target, model, decoding
        ):
            if links:
                pairs = list(zip(texts, best, strict=True))
                for one in model.align(pairs, by=align_by or "attention"):
                    links.write(f"{inference_alignment.format_pharaoh(one)}\n")


def _chunks(lines: Iterator[str], world: World, size: int) -> Iterator[list[str]]:
    """Yield the lines of the first process in all processes; a line that it cannot read ends all."""
    while True:
        chunk: list[str] = []
        with world.together():
            chunk = list(islice(lines, size))
        if not (chunk := world.broadcast(chunk)):
            return
        yield chunk


def _stream(
    chunks: Iterator[list[str]], target: IO[str] | None, model: LoadedModel, decoding: Decoding
) -> Iterator[tuple[list[str], list[str]]]:
    """Translate chunks and yield them with their best translations.

    The process that has a target writes them and prints how fast it is.
    """
    speed = Speed()
    for texts in chunks:
        # samples of a line do not depend on its chunk
        translations = model.translations(texts, replace(decoding, seed=decoding.seed + speed.done))
        yield texts, [best[0].text for best in translations]
        if target is None:
            speed.done += len(texts)
            continue
        for number, best in enumerate(translations, speed.done + 1):
            if best[0].pieces > 1:
                print(f"line {number} is long: translated in {best[0].pieces} pieces", file=sys.stderr)
            for one in best:
                text = remove_line_ends(one.text)
                line = f"{number} ||| {text} ||| {one.score:.4f}" if decoding.n_best > 1 else text
                target.write(f"{line}\n")
        target.flush()
        if len(texts) > 1:
            speed.add(len(texts))
        else:
            speed.done += 1
