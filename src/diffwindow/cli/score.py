"""The verb `score`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffwindow.cli.library import files, inference_model, models_translator
from diffwindow.cli.options import AsJsonLines, Device, RunFolders
from diffwindow.cli.streams import (
    InputFile,
    OutputFile,
    Speed,
    collapse_spaces,
    input_name,
    open_input,
    parse_path,
    read_chunks,
    report_interrupted_output,
    split_columns,
    stream,
)

if TYPE_CHECKING:
    from diffwindow.inference.model import LoadedModel, Score


def score(
    runs: RunFolders,
    input: InputFile = None,
    output: OutputFile = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            parser=parse_path,
            metavar="TSV",
            help="Good and bad sentence per line, - is stdin: how often is the good likelier?",
        ),
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Add a column with log p of each token.")] = False,
    as_json: AsJsonLines = False,
    device: Device = "auto",
) -> None:
    """Print log p of each line and its number of tokens, the end included, with a tab between.

    A language model reads sentences. A translator reads source and target with a tab between, and scores the
    target; in --pairs the source comes first. Several translators score as an ensemble.
    """
    model = inference_model.load(runs, device=device)
    # another kind of model is an error before the first line is read
    model.score([])
    translates = isinstance(model.members[0].model, models_translator.Translator)

    def shown(result: Score) -> str:
        if as_json:
            return files.to_json(asdict(result))
        by_token = zip(result.tokens, result.token_log_probs, strict=True)
        each = (f"{collapse_spaces(token)}:{log_prob:.4f}" for token, log_prob in by_token)
        cells = [f"{result.log_prob:.4f}", str(len(result.tokens)), *([" ".join(each)] if tokens else [])]
        return "\t".join(cells)

    # line numbers, across chunks
    numbers = count(1)

    def work(lines: list[str]) -> Iterator[str]:
        items = [_item(line, number, translates=translates) for line, number in zip(lines, numbers)]  # noqa: B905
        return map(shown, model.score(items))

    with report_interrupted_output(output):
        if pairs is None:
            stream(input, output, work)
            return
        if input or output or tokens:
            raise ValueError("--pairs prints one number; leave --input, --output and --tokens out")
        right, total = _compare(model, pairs, translates=translates)
        report = {"accuracy": right / total, "correct": right, "total": total}
        line = f"{100 * right / total:.2f} % ({right:,} of {total:,} pairs)"
        print(files.to_json(report) if as_json else line)


def _item(line: str, number: int, *, translates: bool) -> str | tuple[str, str]:
    if not translates:
        return line
    source, target = split_columns(line, number, 2, "source and target")
    return source, target


def _compare(model: LoadedModel, pairs: Path, *, translates: bool) -> tuple[int, int]:
    """Count the pairs whose good sentence is likelier than the bad one, and all pairs."""
    speed, right = Speed(), 0
    with open_input(pairs) as lines:
        for chunk in read_chunks(lines):
            items: list[str | tuple[str, str]] = []
            for number, line in enumerate(chunk, speed.done + 1):
                if translates:
                    source, good, bad = split_columns(line, number, 3, "source, good and bad target")
                    items += [(source, good), (source, bad)]
                else:
                    items += split_columns(line, number, 2, "good and bad sentence")
            log_probs = [result.log_prob for result in model.score(items)]
            right += sum(good > bad for good, bad in zip(log_probs[::2], log_probs[1::2], strict=True))
            speed.add(len(chunk))
    if not speed.done:
        raise ValueError(f"{input_name(pairs)} is empty; it needs a good and a bad sentence per line")
    return right, speed.done
