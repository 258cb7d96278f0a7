"""Draw `gains.png` and print the rows of the summary table, from the reports of this folder.

    python docs/results/summary.py

A gain whose report holds an interval over seeds and test examples is shown with it. Older reports hold the
accuracy of each seed and the number of test examples: their interval takes the examples of two rows as
independent, and is too wide (`interval_from_figures`). Other figures have no interval.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from diffwindow.reproduce.bootstrap import interval_from_figures

HERE = Path(__file__).parent
# (task, report, column, rows by their keys)
CLAIMS = [
    (
        "agreement, real text",
        "table5-paper",
        "sva-subset",
        ["Enc(Rel)@all", "Enc(Loc)", "Enc(MW)", "Enc(AW)"],
    ),
    (
        "agreement, real text, 1,000 updates",
        "boundaries-mini",
        "sva-subset",
        ["Enc(MW)", "Enc(MW,Dim=8)", "Enc(AW)", "Enc(AW,Dim=8)", "Enc(AW,Dim=2)"],
    ),
    (
        "agreement, real text, 1,000 updates",
        "positions-mini",
        "sva-subset",
        [
            *("Enc(Rel)@all", "Enc(MW,Dist)", "Enc(AW,Dist)", "Global+positions=rotary"),
            *("Enc(MW)+positions=rotary", "Enc(AW)+positions=rotary"),
        ],
    ),
    (
        "agreement, generated",
        "agreement-mini",
        "agreement-10",
        ["Enc(Rel)@all", "Enc(Loc)", "Enc(MW)", "Enc(AW)"],
    ),
    ("generated, one layer", "circumstances-mini", "agreement-10-shallow", ["Enc(AW)"]),
    ("generated, four layers", "circumstances-mini", "agreement-10-deep", ["Enc(AW)"]),
    ("SST-2", "table5-paper", "sst", ["Enc(Rel)@all", "Enc(Loc)", "Enc(MW)", "Enc(AW)"]),
    ("IMDB", "table5-paper", "imdb", ["Enc(MW)", "Enc(AW)"]),
    *(
        (
            f"translation, BLEU{shown}",
            "table1-mini",
            column,
            [
                *("Enc(Rel)@all-Dec(Rel)@all", "Enc(Loc)", "Cr(AW,Seg)", "Enc(AW)-Dec(MW)"),
                "Enc(AW)-Cr(AW,Seg)-Dec(MW)",
            ],
        )
        for shown, column in (("", "en-de"), (", test 2017", "en-de-test2017"), (", MSCOCO", "en-de-mscoco"))
    ),
    ("language model, perplexity", "table6-mini", "lm", ["Dec(Rel)@all", "Dec(MW)", "Dec(AW)"]),
    (
        "1,024 words, perplexity",
        "long-text-mini",
        "lm-long",
        [
            f"Dec({window},Dim=8)@all+window_tolerance=1e-3{penalty}"
            for window in ("MW", "MW,Norm")
            for penalty in ("", "+window_penalty=0.1", "+window_penalty=1")
        ],
    ),
]


def gains() -> list[dict[str, Any]]:
    """Return a gain per task and attention, above 0 where it is better, with its interval if there is one."""
    found = []
    for task, report, column_name, keys in CLAIMS:
        columns = json.loads((HERE / report / "report.json").read_text(encoding="utf-8"))["columns"]
        column = next(column for column in columns if column["column"] == column_name)
        rows = {row["key"]: row for row in column["rows"]}
        base = column["rows"][0]
        for key in keys:
            gain = _gain(rows[key], base, column["metric"])
            # overrides of a model are said in its label
            name = rows[key]["label"] if "+" in key else key
            found.append({"task": task, "attention": name, "report": report, **gain})
    return found


def _gain(row: dict[str, Any], base: dict[str, Any], metric: str) -> dict[str, Any]:
    seeds = sorted(row["by_seed"].keys() & base["by_seed"].keys())
    values, others = ([one["by_seed"][seed] for seed in seeds] for one in (row, base))
    sign = -1.0 if metric == "perplexity" else 1.0
    gain = sign * float(np.mean(values) - np.mean(others))
    interval = row.get("interval")
    reach = interval["reach"] if interval else None
    if reach is None and metric == "accuracy":
        examples = sum(size for _, size in row["groups"]["by_length"].values())
        reach = interval_from_figures(values, others, examples).reach
    return {"gain": gain, "reach": reach, "seeds": len(seeds)}


def verdict(gain: dict[str, Any]) -> str:
    """Say what a gain shows: two seeds and an interval without zero are needed to say that it helps."""
    if gain["seeds"] < 2:
        return "a hint: one seed"
    if gain["reach"] is None:
        return "a hint: no interval"
    if abs(gain["gain"]) <= gain["reach"]:
        return "cannot be told from chance"
    return "better" if gain["gain"] > 0 else "worse"


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draw all gains in one picture."""
    figure = Figure(figsize=(7.5, 0.27 * len(found) + 1.2), layout="constrained")
    axes = figure.subplots()
    for place, gain in enumerate(found):
        fill = "white" if gain["seeds"] == 1 else "tab:blue"
        axes.errorbar(
            gain["gain"], place, xerr=gain["reach"] or 0.0, fmt="o", mfc=fill, color="tab:blue", capsize=3
        )
    axes.axvline(0.0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(found)), [f"{gain['task']}: {gain['attention']}" for gain in found], fontsize=8)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.tick_params(axis="x", labelsize=8)
    figure.supxlabel(
        "gain over the plain model: points of accuracy, BLEU, fall of the perplexity\n"
        "lines: 95 % intervals; white: one seed, interval of the test examples alone",
        fontsize=7,
    )
    figure.savefig(path, dpi=150)


def row(gain: dict[str, Any]) -> str:
    """Return a row of the summary table in Markdown."""
    shown = f"{gain['gain']:+.2f}" + ("" if gain["reach"] is None else f" ± {gain['reach']:.2f}")
    return f"| {gain['task']} | `{gain['attention']}` | {shown} | {gain['seeds']} | {verdict(gain)} |"


if __name__ == "__main__":
    everything = gains()
    draw(everything, HERE / "gains.png")
    print("\n".join(map(row, everything)))
