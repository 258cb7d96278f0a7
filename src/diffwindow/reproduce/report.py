"""Report: the findings as Markdown, JSON and pictures, with the paper's figures in their own column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from diffwindow.files import make_folder, write_atomically, write_json
from diffwindow.reproduce.figures import draw_gains, draw_learning
from diffwindow.reproduce.findings import FITS, GROUPS, Finding
from diffwindow.reproduce.tables import PAPER_SPEED, TABLE_4
from diffwindow.tasks.metrics import METRICS, Terms, save_outcomes

REPORT, JSON, FIGURE = "report.md", "report.json", "figure3.png"
# each picture: what it shows, and the function that draws it
PICTURES: dict[str, tuple[str, Callable[[Finding, Path], bool]]] = {
    # drawn from the models, before the report is written
    FIGURE: ("window, our attention, plain attention", lambda _, path: path.is_file()),
    "gains.png": ("gains over the first row, with 95 % intervals", draw_gains),
    "learning.png": ("validation by update", draw_learning),
}
# with more columns than this, a first table shows all of them
MANY = 3
WINDOWS_AS = {"soft": "as trained", "argmax": "discrete, by argmax", "none": "none, M = 1"}
SETS = {"test": "test set", "valid": "validation set"}


def write_report(
    finding: Finding, folder: Path, terms: Mapping[str, Mapping[str, Terms]] | None = None
) -> None:
    """Write the report of a table atomically, and the outcomes of each column beside it."""
    make_folder(folder)
    for column, by_run in (terms or {}).items():
        save_outcomes(folder / f"outcomes-{column}.npz", by_run)
    write_json(folder / JSON, finding)
    drawn = [name for name, (_, draw) in PICTURES.items() if draw(finding, folder / name)]
    write_atomically(folder / REPORT, markdown(finding, pictures=drawn).encode("utf-8"))


def markdown(finding: Finding, *, pictures: Sequence[str] = ()) -> str:
    """Return the report's text, with these pictures."""
    parts = [
        f"# {finding['title']}, scale {finding['scale']}",
        finding["about"],
        f"```sh\n{finding['command']}\n```",
        *([_overview(finding["columns"])] if len(finding["columns"]) > MANY else []),
        *(text for column in finding["columns"] for text in _column(column, finding["scale"])),
    ]
    if finding["speeds"]:
        parts.append(_speeds(finding["speeds"]))
    parts += [f"![{PICTURES[name][0]}]({name})" for name in pictures]
    if finding["problems"]:
        parts.append("Runs that failed:\n" + "\n".join(f"- {text}" for text in finding["problems"]))
    return "\n\n".join(parts) + "\n"


def _overview(columns: Sequence[Finding]) -> str:
    heads = ["mean, and gain over the first model", *(row["label"] for row in columns[0]["rows"])]
    return _table(heads, [[column["title"], *map(_short, column["rows"])] for column in columns])


def _short(row: Finding) -> str:
    if row["ours"] is None:
        return "not run"
    return f"{row['ours']['mean']:.2f}" + (f" ({_our_gain(row)})" if row.get("gain") else "")


def _column(column: Finding, scale: str) -> list[str]:
    metric = METRICS[column["metric"]]
    published = any(row["paper"] is not None for row in column["rows"])
    sized = published and all(row["paper_size"] for row in column["rows"])
    tested = column["split"] != "valid"
    enough = any(row["gain"] and row["gain"]["reach"] is not None for row in column["rows"])
    shown = {"sized": sized, "published": published, "tested": tested, "enough": enough}
    lines = [_cells(row, scale, **shown) for row in column["rows"]]
    texts = [
        f"## {column['title']}: {metric.title}, {'more' if metric.more_is_better else 'less'} is better",
        f"Corpus `{column['corpus']}`; {_evaluated(column)}; {column['model']}; gains are over "
        f"{column['base']}, means of the differences by seed, over the seeds that both have; a gain above 0 "
        f"is better. {_about_intervals(column)}",
        f"Settings: `{' '.join(column['settings'])}`",
        _table(list(lines[0]), [list(cells.values()) for cells in lines]),
    ]
    if column["pairs"] and column["pairs"][1]:
        texts.append(
            "In the paper's order: {} of {} pairs of rows, by their means over the seeds that both "
            "have.".format(*column["pairs"])
        )
    texts += [_groups(column, by) for by in GROUPS if any(row["groups"][by] for row in column["rows"])]
    if any(row["windows"] for row in column["rows"]):
        texts.append(_windows(column))
    if any(row.get("rules") for row in column["rows"]):
        texts.append(_rules(column))
    if any(row.get("outside") for row in column["rows"]):
        texts.append(_outside(column))
    return texts


def _evaluated(column: Finding) -> str:
    """Name the examples of a column."""
    name = SETS.get(column["split"], f"test set `{column['split']}`")
    if column["further"]:
        return f"the same models on the {name}"
    return f"{name}, the test set not read" if column["split"] == "valid" else name


def _about_intervals(column: Finding) -> str:
    if any(row.get("interval") for row in column["rows"]):
        return "Intervals are over seeds and test examples; over the examples alone where there is one seed."
    if any(row["gain"] for row in column["rows"]):
        return "The outcomes of single test examples were not kept, so there are no intervals over them."
    return "There are no gains yet."


def _cells(
    row: Finding, scale: str, *, sized: bool, published: bool, tested: bool, enough: bool
) -> dict[str, str]:
    """Return the cells of a row by the heads of their columns."""
    ours, gain = row["ours"], row["gain"]
    cells = {"model": row["label"], "parameters": f"{row['parameters']:,}" if row["parameters"] else ""}
    if sized:
        cells["paper's parameters"] = f"{row['paper_size']} M"
    if published:
        cells["paper"] = _number(row["paper"])
    cells[f"ours ({scale})"] = _number(ours["mean"]) if ours else "not run"
    cells["deviation"] = _number(ours["deviation"]) if ours else ""
    cells["seeds"] = str(ours["count"]) if ours else "0"
    cells |= {_beside(name): _number(value) for name, value in row["beside"].items()}
    if tested:
        cells["validation"] = _number(row["valid"] and row["valid"]["mean"])
    if published:
        cells["paper's gain"] = _gain(row["paper_gain"], None)
    one_seed = " (one seed)" if gain and gain["count"] == 1 else ""
    cells["our gain, 95 % interval"] = _our_gain(row) + one_seed
    if enough:
        cells["over seeds alone"] = f"± {gain['reach']:.2f}" if gain and gain["reach"] is not None else ""
    if published:
        cells["the paper's sign"] = row["verdict"] or ""
    return cells


def _beside(name: str) -> str:
    """Name a metric that stands beside that of the column; `bleu` alone would say little there."""
    return "sacreBLEU" if name == "bleu" else METRICS[name].title


def _groups(column: Finding, by: str) -> str:
    """Show the accuracy by group; -1 in the data stands for a number of attractors that is not known."""
    rows = {row["label"]: row["groups"][by] for row in column["rows"] if row["groups"][by]}
    sizes = {name: size for groups in rows.values() for name, (_, size) in groups.items()}
    heads = [GROUPS[by], *("unknown" if name == "-1" else name for name in sizes)]
    lines = [["examples", *(f"{size:,}" for size in sizes.values())]]
    lines += [[label, *(f"{groups[name][0]:.2f}" for name in sizes)] for label, groups in rows.items()]
    return _table(heads, lines)


def _windows(column: Finding) -> str:
    """Show how well the query at the verb's place looks at the subject phrase, in the first layer."""
    heads = ["first layer, at the verb's place", "window's overlap with the right one", "the best head's"]
    heads += ["share of attention inside", "uniform attention"]
    lines = [
        [row["label"], *(_number(row["windows"].get(name)) for name in FITS)]
        for row in column["rows"]
        if row["windows"]
    ]
    return _table(heads, lines)


def _rules(column: Finding) -> str:
    """Show each model with other windows at test time; runs that were evaluated without them are left out."""
    rows = {row["label"]: row["rules"] for row in column["rows"] if row.get("rules")}
    names = list(next(iter(rows.values())))
    heads = ["windows at test time, and gain over the trained ones", *(WINDOWS_AS[name] for name in names)]
    return _table(heads, [[label, *(_short(rules[name]) for name in names)] for label, rules in rows.items()])


def _outside(column: Finding) -> str:
    """Show how much lay outside of the windows at each validation; older reports did not keep it."""
    rows = {row["label"]: row["outside"] for row in column["rows"] if row.get("outside")}
    updates = sorted({update for shares in rows.values() for update, *_ in shares})
    heads = ["keys and tiles outside of windows, %", *(f"after {update:,} updates" for update in updates)]
    lines = []
    for label, shares in rows.items():
        cells = {update: f"{100 * keys:.1f} and {100 * tiles:.1f}" for update, keys, tiles in shares}
        lines.append([label, *(cells.get(update, "") for update in updates)])
    return _table(heads, lines)


def _speeds(speeds: Mapping[str, float]) -> str:
    published = dict(zip((row.label for row in TABLE_4.rows), PAPER_SPEED, strict=True))
    lines = [
        [label, f"{published[label] / PAPER_SPEED[0]:.2f}", f"{ratio:.2f}"] for label, ratio in speeds.items()
    ]
    measured = "updates per second, relative to the first row"
    return _table([measured, "paper, on its machine", "ours, measured in turns"], lines)


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(heads)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *lines))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _our_gain(row: Finding) -> str:
    if row["gain"] is None:
        return ""
    return _gain(row["gain"]["mean"], row["interval"] and row["interval"]["reach"])


def _gain(mean: float | None, reach: float | None) -> str:
    if mean is None:
        return ""
    return f"{mean:+.2f}" + (f" ± {reach:.2f}" if reach is not None else "")
