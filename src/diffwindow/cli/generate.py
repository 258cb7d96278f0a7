"""The verb `generate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from diffwindow.cli.errors import report_interrupt
from diffwindow.cli.library import decoding_generate, inference_model
from diffwindow.cli.options import DECODING_OPTIONS, Device, RunFolder, change_decoding, takes_decoding
from diffwindow.cli.streams import remove_line_ends


@takes_decoding(*DECODING_OPTIONS)
def generate(
    run: RunFolder,
    changes: Mapping[str, Any],
    prompt: Annotated[str, typer.Option(help="Text to continue; empty starts a new one.")] = "",
    device: Device = "auto",
) -> None:
    """Continue a text with a language model, one line per sample, likeliest first."""
    decoding = change_decoding(decoding_generate.GENERATION, changes)
    with report_interrupt("nothing was generated"):
        texts = inference_model.load(run, device=device).generate(prompt, decoding)
        print("\n".join(map(remove_line_ends, texts)))
