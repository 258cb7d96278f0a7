"""The verbs `translate` and `generate`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from diffwindow.cli.evaluate import Beam, Device, LengthPenalty, RunFolder

if TYPE_CHECKING:
    from diffwindow.decoding.translate import Output
    from diffwindow.training.distributed import World

# lines sorted by length together; their translations appear when all are done
CHUNK = 1000
Speak = Callable[[list[str]], list[list["Output"]]]


def translate(
    run: RunFolder,
    input: Annotated[Path | None, typer.Option(help="Text, a sentence a line; stdin by default.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where to write, whole or not at all; stdout by default.")
    ] = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    nbest: Annotated[int, typer.Option(min=1, help="Translations a line, as `line ||| text ||| score`.")] = 1,
    max_length: Annotated[
        int, typer.Option(min=1, help="Tokens; a longer line is translated in pieces, which are joined.")
    ] = 256,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Translate each line as it is typed.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Translate text, line by line and in order; an empty line stays empty.

    Several processes share the work: torchrun --nproc-per-node 2 -m diffwindow translate …
    """
    from diffwindow.cli.errors import interruptible
    from diffwindow.cli.evaluate import open_trained, search_of
    from diffwindow.decoding.translate import text_translator
    from diffwindow.files import replacing
    from diffwindow.models.translator import Translator
    from diffwindow.sharing import sharing
    from diffwindow.training.distributed import connected

    with (
        interruptible(f"{output} was not written" if output else "the lines above are done"),
        connected("cpu") as world,
        sharing(),
        ExitStack() as stack,
    ):
        with world.together():
            trained = open_trained(run, device)
            if not isinstance(trained.model, Translator):
                raise ValueError(f"{run} holds a {trained.model.config.model}, which does not translate")
            search = search_of(
                run, beam=beam, length_penalty=length_penalty, n_best=nbest, max_length=max_length
            )
            speak = text_translator(trained.model, trained.tokenizer, search, trained.moses)
            # the first process reads and writes; the others have no lines of their own
            lines: Iterator[str] = iter(())
            target: IO[str] | None = None
            if world.main:
                source = stack.enter_context(input.open("rb")) if input else _stdin()
                lines = _decoded(source, str(input or "stdin"))
                if output:
                    temporary = stack.enter_context(replacing(output, follow_link=True))
                    target = stack.enter_context(temporary.open("w", encoding="utf-8"))
                else:
                    target = _stdout()
        _stream(_chunks(lines, world, 1 if interactive else CHUNK), target, speak, nbest)


def _stdin() -> IO[bytes]:
    if sys.stdin is None:
        raise ValueError("stdin is closed; give a file with --input")
    return sys.stdin.buffer


def _stdout() -> IO[str]:
    if sys.stdout is None:
        raise ValueError("stdout is closed; give a file with --output")
    return sys.stdout


def _decoded(source: IO[bytes], name: str) -> Iterator[str]:
    from diffwindow.data.lines import bounded_lines, too_long, without_mark

    for number, line in enumerate(bounded_lines(source), 1):
        if problem := too_long(line):
            raise ValueError(f"{name}, line {number}: {problem}; cut it into sentences")
        try:
            yield without_mark(line, number).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}, line {number}: not UTF-8 at byte {error.start}") from None


def _chunks(lines: Iterator[str], world: World, size: int) -> Iterator[list[str]]:
    """Yield the lines of the first process in all processes; a line that it cannot read ends all."""
    while True:
        chunk: list[str] = []
        with world.together():
            chunk = list(islice(lines, size))
        if not (chunk := world.broadcast(chunk)):
            return
        yield chunk


def _stream(chunks: Iterator[list[str]], target: IO[str] | None, speak: Speak, nbest: int) -> None:
    """Translate chunks; the process that has a target writes them and says how fast it goes."""
    started, done = time.monotonic(), 0
    for texts in chunks:
        translations = speak(texts)
        if target is None:
            continue
        for number, best in enumerate(translations, done + 1):
            if best[0].pieces > 1:
                print(f"line {number} is long: translated in {best[0].pieces} pieces", file=sys.stderr)
            for one in best:
                target.write(
                    f"{number} ||| {one.text} ||| {one.score:.4f}\n" if nbest > 1 else f"{one.text}\n"
                )
        target.flush()
        done += len(texts)
        if len(texts) > 1:
            speed = done / max(time.monotonic() - started, 1e-9)
            print(f"{done:,} lines, {speed:,.1f} lines/s", file=sys.stderr, flush=True)


def generate(
    run: RunFolder,
    prompt: Annotated[str, typer.Option(help="Text to go on from; none begins anew.")] = "",
    samples: Annotated[int, typer.Option(min=1, help="How many continuations.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest continuation.")] = 50,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Below 1 favours likely tokens; 0 is greedy.")
    ] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from the k likeliest tokens.")] = None,
    top_p: Annotated[
        float, typer.Option(help="Draw from the fewest tokens that hold this probability.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="The same seed gives the same text.")] = 0,
    device: Device = "auto",
) -> None:
    """Continue a text with a language model, a sample a line."""
    from diffwindow.cli.evaluate import open_trained
    from diffwindow.decoding.generate import Sampling, continuations
    from diffwindow.models.language_model import LanguageModel

    trained = open_trained(run, device)
    if not isinstance(trained.model, LanguageModel):
        raise ValueError(f"{run} holds a {trained.model.config.model}, not a language model")
    sampling = Sampling(samples, max_tokens, temperature, top_k, top_p, seed)
    found = continuations(
        trained.model,
        trained.tokenizer,
        prompt,
        sampling,
        moses=trained.moses.get("text"),
        running_text=trained.options.block_size is not None,
    )
    print("\n".join(found))
