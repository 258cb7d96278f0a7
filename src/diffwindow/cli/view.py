"""The verb `view`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffwindow.cli.errors import report_interrupt, report_warnings
from diffwindow.cli.library import (
    evaluation_windows,
    files,
    inference_attention,
    inference_model,
    inference_parsing,
    inference_server,
    models_translator,
    tasks_model_folder,
    training_checkpoints,
    training_config,
    view_figures,
    view_panels,
    view_payload,
)
from diffwindow.cli.options import Device, RunFolder, check_partners
from diffwindow.cli.streams import open_input
from diffwindow.extras import require

if TYPE_CHECKING:
    from diffwindow.inference.attention import Example
    from diffwindow.tasks.model_folder import ModelFolder
    from diffwindow.view.trace import AttentionTrace, Head

PAGE = Path("windows.html")
# checkpoints on a page: enough to see a window being learned
MOST_CHECKPOINTS = 24
LIMIT, HOST, PORT = 1000, "127.0.0.1", 8000
Picture = Annotated[Path | None, typer.Option(help="Write a figure for a paper.")]


def view(
    run: RunFolder,
    text: Annotated[str | None, typer.Argument(help="A sentence.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Its translation; a translator's own by default.")
    ] = None,
    row: Annotated[
        int | None, typer.Option(min=0, help="A sentence of the corpus instead, by its row.")
    ] = None,
    split: Annotated[str, typer.Option(help="The part of the corpus that --row counts in.")] = "test",
    data: Annotated[Path | None, typer.Option(help="A prepared corpus; that of the run by default.")] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Another run, shown beside the first.")
    ] = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Add the run's checkpoints to the page, with a slider.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the page; windows.html by default, without figures or numbers."),
    ] = None,
    png: Picture = None,
    svg: Picture = None,
    pdf: Picture = None,
    tree: Annotated[
        Path | None,
        typer.Option(help="Write a figure of the tree of learned phrases, with the corpus's own below it."),
    ] = None,
    npz: Annotated[
        Path | None, typer.Option(help="Write windows, attention and tokens as NumPy arrays.")
    ] = None,
    role: Annotated[
        str | None, typer.Option(help="The attention of figures: Enc, Cr or Dec; the first with a window.")
    ] = None,
    layer: Annotated[int | None, typer.Option(min=1, help="The layer of figures.")] = None,
    head: Annotated[str, typer.Option(help="The head of figures: 1, 2, …, mean, or all in a grid.")] = "mean",
    statistics: Annotated[
        str | None,
        typer.Option(
            metavar="CORPUS", help="Width and position of windows over a split, or over a text file."
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Count keys below it as outside the window; the model's own by default."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most sentences for --statistics.")] = LIMIT,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print windows, attention and tokens as JSON, or the statistics."),
    ] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Serve a page to type sentences in.")] = False,
    host: Annotated[str, typer.Option(help="The address to serve on.")] = HOST,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to serve on.")] = PORT,
    device: Device = "auto",
) -> None:
    """Show where a model looks: a page that needs no network, figures, numbers, statistics, or a server.

    diffwindow view RUN "the keys to the cabinet" --against PLAIN --checkpoints --out windows.html
    """
    modes = {
        "a text": text is not None,
        "--row": row is not None,
        "--statistics": statistics is not None,
        "--serve": serve,
    }
    chosen = [name for name, wanted in modes.items() if wanted]
    if len(chosen) != 1:
        raise ValueError(
            f'give one of a text, --row, --statistics and --serve, as `view {run} "a text"`; '
            f"got {' and '.join(chosen) or 'nothing'}"
        )
    figures = [path for path in (png, svg, pdf) if path is not None]
    chosen_place = role is not None or layer is not None or head != "mean"
    shown = ("a text", "--row")
    check_partners(
        chosen[0],
        (
            ("--target", target is not None, ("a text",)),
            ("--split", split != "test", ("--row",)),
            ("--data", data is not None, ("--row", "--statistics")),
            ("--against", against is not None, (*shown, "--serve")),
            ("--checkpoints", checkpoints, shown),
            ("--out", out is not None, shown),
            ("--png, --svg and --pdf", bool(figures), (*shown, "--statistics")),
            ("--role, --layer and --head", chosen_place, shown),
            ("--tree", tree is not None, shown),
            ("--npz", npz is not None, shown),
            ("--json", as_json, (*shown, "--statistics")),
            ("--tolerance", tolerance is not None, ("--statistics",)),
            ("--limit", limit != LIMIT, ("--statistics",)),
            ("--host and --port", (host, port) != (HOST, PORT), ("--serve",)),
        ),
    )
    if chosen_place and not figures:
        raise ValueError("--role, --layer and --head choose what a figure shows; add --png, --svg or --pdf")
    drawn_alone = bool(figures or tree or npz or as_json) and statistics is None and out is None
    if checkpoints and drawn_alone:
        raise ValueError("--checkpoints adds to the page, which is not asked for; add --out")
    if against and drawn_alone and not figures:
        raise ValueError("--tree, --npz and --json are of one run; leave --against out, or add --out")
    endings = {".html": out, ".png": png, ".svg": svg, ".pdf": pdf, ".npz": npz}
    for ending, path in endings.items():
        if path is not None and path.suffix.lower() != ending:
            raise ValueError(f"{path} does not end in {ending}")
    trained = inference_model.open_model(run, device=device)
    other = inference_model.open_model(against, device=device) if against else None
    if serve:
        _serve(trained, other, host=host, port=port)
        return
    with report_interrupt("nothing was written"):
        if statistics is not None:
            examples = islice(_read_corpus(trained, run, data, statistics), limit)
            title = f"{run}: {statistics}"
            _statistics(trained, examples, figures, tolerance=tolerance, title=title, as_json=as_json)
            return
        if text is not None:
            given = inference_attention.text_example(trained, text, target=target)
            decoding = inference_model.configured_decoding(run)
            example = inference_attention.complete(trained, given, decoding)
        else:
            assert row is not None
            store = inference_model.open_store(run, data)
            example = inference_attention.row_example(trained, store, split, row)
        _write(
            trained,
            other,
            example,
            _find_checkpoints(run) if checkpoints else {},
            out=None if drawn_alone else out or PAGE,
            figures=figures,
            tree=tree,
            npz=npz,
            as_json=as_json,
            place=(role, layer, _parse_head(head)),
        )


def _parse_head(text: str) -> Head:
    if text == "mean":
        return "mean"
    if text == "all":
        return "all"
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--head {text} is not a number from 1, mean, or all")
    return int(text) - 1


def _check_place(trace: AttentionTrace, role: str | None, layer: int | None, head: Head) -> None:
    """Raise if the model lacks the role, layer or head; count layers and heads from 1, as the options do."""
    if role is not None and role not in trace.roles:
        raise ValueError(f"--role {role}: the model has no such attention; give {' or '.join(trace.roles)}")
    layers = max(maps.layer for maps in trace.layers if role in (None, maps.role))
    if layer is not None and layer > layers:
        raise ValueError(f"--layer {layer}: {role or 'the model'} has {_choices(layers, 'layer')}")
    heads = len(view_panels.choose_layer(trace, role, layer).weights)
    if isinstance(head, int) and head >= heads:
        raise ValueError(f"--head {head + 1}: the layer has {_choices(heads, 'head')}, mean or all")


def _choices(count: int, noun: str) -> str:
    return f"1 {noun}; give 1" if count == 1 else f"{count} {noun}s; give 1 to {count}"


def _find_checkpoints(run: Path) -> dict[str, Path]:
    """Return the folders of a run's checkpoints by name, oldest first and evenly spaced."""
    kept = training_checkpoints.Checkpoints(run / training_config.CHECKPOINTS)
    folders = {f"update {update:,}": kept.path(update) for update in kept.updates()}
    if not folders:
        raise ValueError(f"{run} has no checkpoints; keep some with train.keep_last=100")
    return {name: folders[name] for name in view_payload.spread(list(folders), MOST_CHECKPOINTS)}


def _write(
    trained: ModelFolder,
    other: ModelFolder | None,
    example: Example,
    checkpoints: dict[str, Path],
    *,
    out: Path | None,
    figures: list[Path],
    tree: Path | None,
    npz: Path | None,
    as_json: bool,
    place: tuple[str | None, int | None, Head],
) -> None:
    trace = inference_attention.trace_example(trained, example)
    against = None
    if other is not None:
        theirs = inference_attention.for_other(example, trained, other)
        against = inference_attention.trace_example(other, theirs)
    if figures:
        _check_place(trace, *place)
    with report_warnings():
        for path in figures:
            trace.draw(path, *place, against=against)
        if tree:
            view_figures.save_figure(inference_parsing.draw_tree(trained, example), tree)
    if npz:
        trace.save(npz)
    # with --json, stdout holds the JSON alone
    note = sys.stderr if as_json else sys.stdout
    for written in (*figures, *(path for path in (tree, npz) if path)):
        print(written, file=note)
    if as_json:
        print(files.to_json(trace.to_dict()))
    if out is None:
        return
    earlier = {
        name: inference_attention.trace_example(tasks_model_folder.ModelFolder.read(folder), example)
        for name, folder in checkpoints.items()
    }
    rules = inference_attention.trace_rules(trained, example)
    page = trace.to_html(against=against, checkpoints=earlier, rules=rules).encode("utf-8")
    files.write_atomically(out, page, follow_link=True)
    print(f"{out}  {len(page) / 1e6:.2f} MB; open it in a browser", file=note)


def _read_corpus(trained: ModelFolder, run: Path, data: Path | None, corpus: str) -> Iterator[Example]:
    """Read the sentences of a split of the run's corpus, or the lines of a text file."""
    if Path(corpus).is_file():
        with open_input(Path(corpus)) as lines:
            yield from (inference_attention.text_example(trained, line) for line in lines if line.strip())
        return
    store = inference_model.open_store(run, data)
    for row in range(len(store.split(corpus))):
        yield inference_attention.row_example(trained, store, corpus, row)


def _statistics(
    trained: ModelFolder,
    examples: Iterator[Example],
    figures: list[Path],
    *,
    tolerance: float | None,
    title: str,
    as_json: bool,
) -> None:
    traces = (inference_attention.trace_example(trained, example) for example in examples)
    rows = evaluation_windows.window_statistics(traces, tolerance=tolerance)
    spans = [view_figures.Span(row.role, row.layer, row.head + 1, row.start, row.end) for row in rows]
    with report_warnings():
        for path in figures:
            view_figures.save_figure(view_figures.span_figure(spans, title=title), path)
    if as_json:
        print(files.to_json([asdict(row) for row in rows], indent=2))
    else:
        print("\n".join(evaluation_windows.as_table(rows)))


def _serve(trained: ModelFolder, other: ModelFolder | None, *, host: str, port: int) -> None:
    require("starlette", "uvicorn")
    limits = inference_server.Limits()
    translates = isinstance(trained.model, models_translator.Translator)
    app = inference_server.create_app(
        inference_attention.live_events(trained, other, most_tokens=limits.tokens),
        label="A sentence to translate" if translates else "A sentence",
        title=trained.model.config.attention,
        hosts=inference_server.allowed_hosts(host),
        limits=limits,
    )
    listening = inference_server.bound_socket(host, port)
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{listening.getsockname()[1]}  Ctrl-C ends it", flush=True)
    inference_server.serve(app, listening, limits=limits)
