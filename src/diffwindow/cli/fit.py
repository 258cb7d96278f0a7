"""The verb `fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from diffwindow.cli.errors import report_interrupt
from diffwindow.cli.library import files, hf_checkpoint, hf_fit
from diffwindow.cli.options import check_picture
from diffwindow.cli.streams import open_input
from diffwindow.extras import require
from diffwindow.progress import show_progress


def fit(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder of a causal model that transformers wrote, or its name on the hub.",
        ),
    ],
    text: Annotated[Path, typer.Option(metavar="FILE", help="Text like that which the model will read.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to save the windows.")],
    share: Annotated[
        float, typer.Option(help="The mean share of the keys before a query that it may read, up to 1.")
    ] = 0.4,
    spans: Annotated[
        Literal["query", "query-mlp", "head"],
        typer.Option(
            help="query: a span for each query; query-mlp: chosen by all heads; head: one for all queries."
        ),
    ] = "query",
    per: Annotated[
        Literal["head", "kv_group"],
        typer.Option(help="head, or kv_group: one window for all heads that share keys."),
    ] = "head",
    sinks: Annotated[int, typer.Option(help="How many first keys every window has.")] = 4,
    tokens: Annotated[int, typer.Option(help="How much of the text to use; an eighth is held out.")] = 16_384,
    block: Annotated[
        int, typer.Option(help="The length of the contexts that it is cut into: take that of your own.")
    ] = 1024,
    seed: Annotated[int, typer.Option(help="Of the fit.")] = 0,
    picture: Annotated[Path | None, typer.Option(help="Draw the share of each window.")] = None,
) -> None:
    """Fit windows to a pretrained causal model, so that it reads a share of the keys and loses little.

    The model stays as it is; `diffwindow.hf.load_windows(model, DIR)` adds the windows to it.
    """
    require("transformers", "huggingface_hub")
    hf_fit.check_arguments(share, spans, per, sinks, tokens, block, seed)
    # a fit takes minutes
    files.check_folder_place(out)
    if picture is not None:
        check_picture("--picture", picture)
    with open_input(text) as lines:
        read = "".join(lines)
    with report_interrupt("no windows were saved"), show_progress() as progress:
        loaded = _load("AutoModelForCausalLM", model)
        fitted = hf_fit.fit_windows(
            loaded, read, share, tokenizer=_load("AutoTokenizer", model), spans=spans, per=per, sinks=sinks,
            tokens=tokens, block=block, seed=seed, progress=progress,
        )  # fmt: skip
        hf_checkpoint.save_windows(loaded, out)
    if picture is not None:
        fitted.draw(picture)
    print(f"{fitted}\nsaved in {out}")


def _load(kind: str, name: str) -> Any:
    """Load a model or a tokenizer with transformers; raise one sentence if there is none."""
    import transformers

    try:
        return getattr(transformers, kind).from_pretrained(name)
    # a damaged folder can make transformers raise anything
    except Exception as error:
        what = "tokenizer" if kind == "AutoTokenizer" else "causal language model"
        # the rest of what transformers says is advice about its own arguments
        reason = str(error).strip().partition("\n")[0]
        if not isinstance(error, (OSError, ValueError)):
            reason = f"{type(error).__name__}: {reason}"
        raise ValueError(f"{name} has no {what} that transformers can load: {reason}") from None
