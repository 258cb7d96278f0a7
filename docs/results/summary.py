"""Draw `gains.png` and `use.png`, and print the rows of the summary table, from the reports of this folder.

    python docs/results/summary.py

A gain whose report holds an interval over seeds and test examples is shown with it. Older reports hold the
accuracy of each seed and the number of test examples: their interval takes the examples of two rows as
independent, and is too wide (`interval_from_scores`). Other figures have no interval.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from diffwindow.evaluation.intervals import gain_interval, interval_from_scores, summary
from diffwindow.tasks.metrics import METRICS, load_outcomes

HERE = Path(__file__).parent
# of the picture
COLUMNS = 3
ROTARY = "+positions=rotary"
BEST = "Enc(AW)-Cr(AW,Seg)-Dec(MW)"
# windows at test time
RULES = {"soft": "as trained", "argmax": "discrete", "none": "none, M = 1"}


class Claim(NamedTuple):
    """Rows of a report whose gains are shown, over its first row or another one.

    The examples of the columns in `also` are taken with those of `column`, as one test set.
    """

    task: str
    report: str
    column: str
    rows: list[str]
    base: str | None = None
    also: tuple[str, ...] = ()


CLASSIFIERS = ["Enc(Rel)@all", "Enc(Loc)", "Enc(MW)", "Enc(AW)"]
TRANSLATORS = ["Enc(Rel)@all-Dec(Rel)@all", "Enc(Loc)", "Cr(AW,Seg)", "Enc(AW)-Dec(MW)", BEST]
CROSS = ["Cr(AW)@all", "Cr(AW)", "Cr(MW)@all", "Cr(MW)"]
LONG = "agreement, real text, 10,000 updates"
SHORT = "agreement, real text, 1,000 updates"
GENERATED = "agreement, generated"
LANGUAGE = "language model, perplexity"
TRAINED = "translation, 8,000 updates, BLEU, 2,461 sentences"
TEST_SETS = {"test 2016": "en-de", "test 2017": "en-de-test2017", "MSCOCO": "en-de-mscoco"}


def _trained(rows: list[str], base: str) -> Claim:
    return Claim(TRAINED, "translation-positions-trained", "en-de", rows, base, tuple(TEST_SETS.values())[1:])


CLAIMS = [
    Claim(LONG, "table5-paper", "sva-subset", CLASSIFIERS),
    Claim(f"{LONG}, trained again", "table5-rules-paper", "sva-subset", ["Enc(MW)", "Enc(AW)"]),
    Claim(LONG, "positions-paper", "sva-subset", [f"Global{ROTARY}"]),
    Claim(LONG, "positions-paper", "sva-subset", [f"Enc(MW){ROTARY}", f"Enc(AW){ROTARY}"], f"Global{ROTARY}"),
    Claim(SHORT, "positions-mini", "sva-subset", ["Enc(Rel)@all", "Enc(MW)", "Enc(AW)", f"Global{ROTARY}"]),
    Claim(SHORT, "positions-mini", "sva-subset", ["Enc(MW,Dist)", "Enc(AW,Dist)"], "Enc(Rel)@all"),
    Claim(SHORT, "positions-mini", "sva-subset", [f"Enc(MW){ROTARY}", f"Enc(AW){ROTARY}"], f"Global{ROTARY}"),
    Claim(SHORT, "boundaries-mini", "sva-subset", ["Enc(MW,Dim=8)", "Enc(AW,Dim=8)", "Enc(AW,Dim=2)"]),
    Claim(GENERATED, "positions-mini", "agreement-10", ["Enc(Rel)@all", "Enc(MW)", "Enc(AW)"]),
    Claim(GENERATED, "agreement-mini", "agreement-10", ["Enc(Loc)"]),
    Claim("generated, one layer", "circumstances-mini", "agreement-10-shallow", ["Enc(AW)"]),
    Claim("generated, four layers", "circumstances-mini", "agreement-10-deep", ["Enc(AW)"]),
    *(
        Claim(f"phrases, {text}", "phrases-mini", column, [row], base)
        for text, column in (("generated", "agreement-trees"), ("SST sentences", "sst-trees"))
        for row, base in (
            ("Enc(AW,Phr)", "Enc(AW,Phr)+phrase_placebo=shuffled"),
            ("Enc(AW,Phr)", "Enc(AW,Phr)+phrase_placebo=random"),
            ("Enc(AW,Phr)", "Enc(AW)"),
            ("Enc(AW,Tree)", "Enc(AW)"),
        )
    ),
    Claim("SST-2", "table5-paper", "sst", CLASSIFIERS),
    Claim("SST-2, trained again", "table5-rules-paper", "sst", ["Enc(MW)", "Enc(AW)"]),
    Claim("SST-2", "sentiment-positions-paper", "sst", [f"Global{ROTARY}"]),
    Claim("IMDB, 2,000 updates", "table5-mini", "imdb", CLASSIFIERS),
    Claim("IMDB, 10,000 updates", "table5-paper", "imdb", ["Enc(MW)", "Enc(AW)"]),
    _trained([BEST, f"Global{ROTARY}"], "Global"),
    _trained([f"{BEST}{ROTARY}", f"Global{ROTARY}+ffn_dim=512"], f"Global{ROTARY}"),
    *(
        claim
        for name, column in TEST_SETS.items()
        for claim in (
            Claim(f"translation, BLEU, {name}", "table1-mini", column, TRANSLATORS),
            Claim(f"translation, BLEU, {name}", "translation-positions-mini", column, [f"Global{ROTARY}"]),
            Claim(
                f"translation, BLEU, {name}",
                "translation-positions-mini",
                column,
                [f"{BEST}{ROTARY}"],
                f"Global{ROTARY}",
            ),
        )
    ),
    Claim("translation, BLEU, test 2016", "table2-mini", "en-de", CROSS),
    Claim("translation, BLEU, test 2016", "table3-mini", "en-de", ["Enc(AW,Seg)-Dec(MW)"]),
    Claim("translation, BLEU, test 2016", "segments-mini", "en-de", [f"Cr(AW,Seg={n})" for n in (2, 3, 8)]),
    Claim(LANGUAGE, "table6-mini", "lm", ["Dec(Rel)@all", "Dec(MW)", "Dec(AW)"]),
    Claim(
        LANGUAGE,
        "decoders-mini",
        "lm",
        [f"Global{ROTARY}", "Dec(Fox)@all+positions=none", "Dec(Stick)@all+positions=none"],
    ),
    Claim(LANGUAGE, "decoders-mini", "lm", [f"Dec(MW){ROTARY}", f"Dec(AW){ROTARY}"], f"Global{ROTARY}"),
    Claim(
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
BOTH = f"{BEST}, both kinds of positions"
# each pair is a row and the one that it is compared with
POOLED = {
    BOTH: [(BEST, "Global"), (f"{BEST}{ROTARY}", f"Global{ROTARY}")],
    "rotary, with and without windows": [(f"Global{ROTARY}", "Global"), (f"{BEST}{ROTARY}", BEST)],
}


def gains() -> list[dict[str, Any]]:
    """Return a gain per claim and row, above 0 where it is better, with its interval if there is one."""
    return [
        *(_gain(claim, key) for claim in CLAIMS for key in claim.rows),
        *(_pooled_gain(attention, pairs) for attention, pairs in POOLED.items()),
    ]


def _pooled_gain(attention: str, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Return a gain over the seeds of several pairs of translators that were trained to the end."""
    ours, theirs = [], []
    for key, base in pairs:
        claim = _trained([key], base)
        _, _, seeds, _ = _compared(claim, key)
        ours.append(_outcomes(claim, key, seeds))
        theirs.append(_outcomes(claim, base, seeds))
    interval = gain_interval(np.concatenate(ours), np.concatenate(theirs), METRICS["bleu"].gain)
    return {
        "task": TRAINED,
        "attention": attention,
        "gain": interval.gain,
        "reach": interval.reach,
        "seeds": interval.seeds,
    }


def savings() -> list[str]:
    """Say by how much windows lower the perplexity of translation that is trained to the end.

    Intervals are Student's over pairs of runs, of the logarithms of their ratios.
    """
    ratios = []
    for key, base in POOLED[BOTH]:
        ours, theirs = _log_perplexities(key), _log_perplexities(base)
        ratios += [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    texts = []
    for found in map(summary, np.transpose(ratios).tolist()):
        ends = [found.mean, found.mean + found.reach, found.mean - found.reach]
        less, low, high = -100.0 * np.expm1(ends)
        texts.append(f"{less:.1f} % ({low:.1f} to {high:.1f})")
    return texts


def _log_perplexities(key: str) -> dict[str, NDArray[np.float64]]:
    """Read the logarithms of a row's perplexities by seed, in the order of `TEST_SETS`."""
    found = {}
    for path in (HERE / "runs/trained/en-de" / key).glob("seed*/result.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        parts = [result, *result["also"].values()]
        found[path.parent.name] = np.log([part["metrics"]["perplexity_by_token"] for part in parts])
    return found


def _gain(claim: Claim, key: str) -> dict[str, Any]:
    row, base, seeds, column = _compared(claim, key)
    values, others = ([one["by_seed"][seed] for seed in seeds] for one in (row, base))
    metric = METRICS[column["metric"]]
    gain, reach = metric.sign * float(np.mean(values) - np.mean(others)), None
    if claim.base is not None:
        terms = (_outcomes(claim, one["key"], seeds) for one in (row, base))
        interval = gain_interval(*terms, metric.gain)
        gain, reach = interval.gain, interval.reach
    elif row.get("interval"):
        reach = row["interval"]["reach"]
    elif column["metric"] == "accuracy":
        examples = sum(size for _, size in row["groups"]["by_length"].values())
        reach = interval_from_scores(values, others, examples).reach
    return {
        "task": claim.task,
        "attention": _name(row) + (f" over {_name(base)}" if base is not column["rows"][0] else ""),
        "gain": gain,
        "reach": reach,
        "seeds": len(seeds),
    }


def _compared(claim: Claim, key: str) -> tuple[dict[str, Any], dict[str, Any], list[str], dict[str, Any]]:
    """Return a row, the one that it is compared with, the seeds that both have, and their column."""
    report = json.loads((HERE / claim.report / "report.json").read_text(encoding="utf-8"))
    column = next(column for column in report["columns"] if column["column"] == claim.column)
    rows = {row["key"]: row for row in column["rows"]}
    row, base = rows[key], column["rows"][0] if claim.base is None else rows[claim.base]
    return row, base, sorted(row["by_seed"].keys() & base["by_seed"].keys()), column


def _outcomes(claim: Claim, key: str, seeds: list[str]) -> NDArray[np.number]:
    """Read the outcomes of a row, `[seeds, examples, terms]`."""
    by_column = [
        load_outcomes(HERE / claim.report / f"outcomes-{column}.npz")
        for column in (claim.column, *claim.also)
    ]
    return np.stack([np.concatenate([one[f"{key}/{seed}"] for one in by_column]) for seed in seeds])


def _name(row: dict[str, Any]) -> str:
    """Name a row by its attention, or by its label if settings of the model are overridden."""
    return str(row["label"] if "+" in row["key"] else row["key"])


def verdict(gain: dict[str, Any]) -> str:
    """Say what a gain shows: two seeds and an interval without zero are needed to say that it helps."""
    if gain["seeds"] < 2:
        return "a hint: one seed"
    if gain["reach"] is None:
        return "a hint: no interval"
    if abs(gain["gain"]) <= gain["reach"]:
        return "not significant"
    return "better" if gain["gain"] > 0 else "worse"


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draw all gains in one picture that fits a screen: a panel per task, in columns of similar length."""
    panels: dict[str, list[dict[str, Any]]] = {}
    for gain in found:
        panels.setdefault(gain["task"], []).append(gain)
    columns: list[list[str]] = [[] for _ in range(COLUMNS)]
    placed = 0
    for task, some in panels.items():
        columns[min(placed * COLUMNS // len(found), COLUMNS - 1)].append(task)
        placed += len(some)
    figure = Figure(figsize=(16.0, 8.5), layout="constrained")
    for part, tasks in zip(figure.subfigures(1, COLUMNS), columns, strict=True):
        heights = [len(panels[task]) + 1.5 for task in tasks]
        axes = part.subplots(len(tasks), 1, squeeze=False, height_ratios=heights)
        for ax, task in zip(axes[:, 0], tasks, strict=True):
            _draw_task(ax, task, panels[task])
    figure.supxlabel(
        "gain over the plain model, or the named one: points of accuracy, BLEU, fall of the perplexity; "
        "lines: 95 % intervals; white: one seed, interval of the test examples alone",
        fontsize=8,
    )
    figure.savefig(path, dpi=90)


def _draw_task(ax: Axes, task: str, found: list[dict[str, Any]]) -> None:
    for place, gain in enumerate(found):
        fill = "white" if gain["seeds"] == 1 else "tab:blue"
        ax.errorbar(
            *(gain["gain"], place),
            xerr=gain["reach"] or 0.0,
            **{"fmt": "o", "markersize": 4, "mfc": fill, "color": "tab:blue", "capsize": 2},
        )
    ax.axvline(0.0, color="grey", linewidth=0.8)
    ax.set_yticks(range(len(found)), [gain["attention"] for gain in found], fontsize=7)
    ax.set_ylim(len(found) - 0.5, -0.5)
    ax.tick_params(axis="x", labelsize=7)
    # to the left there is room, above the labels
    ax.set_title(task, fontsize=8, loc="right", fontweight="bold")


def draw_use(report: Path, path: Path) -> None:
    """Draw what windows do in classifiers: accuracy by length, and with other windows at test time."""
    columns = [one for one in json.loads(report.read_text(encoding="utf-8"))["columns"] if not one["further"]]
    figure = Figure(figsize=(11.0, 3.0 * len(columns)), layout="constrained")
    for (left, right), column in zip(figure.subplots(len(columns), 2, squeeze=False), columns, strict=True):
        plain, *windows = (row for row in column["rows"] if row["by_seed"])
        for number, row in enumerate((plain, *windows)):
            lengths = row["groups"]["by_length"]
            left.plot(lengths.keys(), [value for value, _ in lengths.values()], "o-", label=row["label"])
            if row is plain:
                right.axhline(row["ours"]["mean"], linestyle="--")
                continue
            places = np.arange(len(RULES)) + 0.3 * (number - (len(windows) + 1) / 2)
            values = [row["rules"][rule]["ours"]["mean"] for rule in RULES]
            right.bar_label(right.bar(places, values, 0.3, color=f"C{number}"), fmt="%.1f", padding=2)
        title, _, _ = column["title"].partition(",")
        left.set_title(f"{title}: accuracy by length in tokens, %", fontsize=10)
        right.set_title("with other windows at test time; dashed: the plain model", fontsize=10)
        right.set_xticks(range(len(RULES)), list(RULES.values()))
        right.set_ylim(40, 105)
        left.legend(loc="lower left")
    figure.savefig(path, dpi=90)


def row(gain: dict[str, Any]) -> str:
    """Return a row of the summary table in Markdown."""
    shown = f"{gain['gain']:+.2f}" + ("" if gain["reach"] is None else f" ± {gain['reach']:.2f}")
    return f"| {gain['task']} | `{gain['attention']}` | {shown} | {gain['seeds']} | {verdict(gain)} |"


if __name__ == "__main__":
    everything = gains()
    draw(everything, HERE / "gains.png")
    draw_use(HERE / "table5-rules-paper/report.json", HERE / "use.png")
    print("\n".join(map(row, everything)))
    print(f"perplexity that windows save, {', '.join(TEST_SETS)}: {', '.join(savings())}")
