"""Fit windows to a pretrained model and measure what they lose: perplexity, BLiMP, recall, another domain.

    python benchmarks/pretrained.py MODEL --data DIR --out OUT [--only perplexity-1024 …]
    python benchmarks/pretrained.py --out OUT --report

Each cell is a JSON file in OUT; the same command resumes. DIR holds `wikitext2/wiki.{train,test}.tokens.xz`,
`enwik8/enwik8_first20m.xz` and `blimp/BLiMP.zip`. Windows are fitted to the start of the training text alone.
"""

import argparse
import copy
import json
import lzma
import math
import re
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from diffwindow.evaluation.intervals import accuracy, mcnemar, summary
from diffwindow.files import write_json
from diffwindow.hf import load_windows, remove_windows, save_windows
from diffwindow.hf.fit import fit_recorded, measure, span_adapters
from diffwindow.hf.span_costs import record_costs, span_shares
from diffwindow.hf.windows import add_spans, causal_places
from diffwindow.models.span_adapter import SpanSettings
from diffwindow.progress import show_progress

# WikiText's marks of joined words, and its spaces before commas and stops.
DETOKENISE = ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), (" ,", ","), (" .", "."))
SHARES = (0.52, 0.40, 0.34, 0.30)
BLOCK, HELD_OUT, SINKS = 1024, 2, 4
# How many blocks windows are fitted to, by their length; HELD_OUT blocks of BLOCK tokens follow.
FITTED_TO = {1024: 14, 2048: 7, 8192: 1}
# (length of a block, how many blocks), and the cells that are measured there, the most telling first; cells
# that end in @8192 are windows that were fitted to blocks of that length, in @1024-28 to 28 of them, and in
# @8192-asks to one more that asks for what it told far back
MAIN = [
    f"{kind}-{share:.2f}"
    for share in (0.40, 0.30, 0.34, 0.52)
    for kind in ("query-head", "head-head", "sliding")
]
GROUPS = [f"{kind}-kv_group-{share:.2f}" for share in (0.40, 0.30, 0.34, 0.52) for kind in ("query", "head")]
MLP = [f"query-mlp-head-{share:.2f}" for share in (0.30, 0.40, 0.34, 0.52)]
SPANS = [cell for cell in (*MAIN, *GROUPS) if "sliding" not in cell]
# 0.17 is to compare with windows fitted to 1,024 tokens, which read 0.15 to 0.24 of 8,192
LONG = ["query-head-0.40@8192", "query-head-0.17@8192", *(f"{cell}@8192" for cell in SPANS[1:])]
MORE = ["query-head-0.40@1024-28", "head-head-0.40@1024-28"]
ASKS = "query-head-0.40@8192-asks"
PARTS = {
    "perplexity-1024-2": ("wiki", 1024, 2, ["full", *MAIN, *MLP, *GROUPS]),
    "perplexity-1024": ("wiki", 1024, 20, ["full", *MAIN, *GROUPS, *MLP, *LONG[:1], *MORE]),
    "perplexity-2048": ("wiki", 2048, 10, ["full", *MAIN, *GROUPS[:2], *(f"{cell}@2048" for cell in SPANS)]),
    "perplexity-8192": ("wiki", 8192, 2, ["full", *MAIN, "sliding-0.17", *LONG, ASKS]),
    "enwik8-1024": ("enwik8", 1024, 10, ["full", *MAIN[:3]]),
}
# The cells in which the rest is measured.
PROBED = ["full", *MAIN[:3], *LONG[:1], ASKS]
# BLiMP: the pairs of each paradigm, and the tokens of other text that stand before each sentence
PAIRS = 20
BLIMP = {"blimp": 0, "blimp-512": 512}
# contexts of the recall probe: how many, their length, how far back the facts may be, facts of each
RECALL = {"recall-1024": (20, 1024, 200, 900, 1), "recall-8192": (4, 8192, 4000, 7900, 10)}
NAMES = ["Anna", "Boris", "Clara", "David", "Elena", "Frank", "Greta", "Henry", "Irene", "Jonas"]
# What the probe asks, and what is asked in the text that windows are fitted to.
QUESTION = " The secret number of {} is"
FITTED_QUESTIONS = (
    " The telephone extension of {} is",
    " {} lives in room",
    " The badge of {} has the number",
    " The locker that belongs to {} is",
)
EVERYTHING = [*PARTS, *RECALL, *BLIMP]


class Bench:
    """The model, its text and the folder of results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.out, self.data = options.out, options.data
        self.model = AutoModelForCausalLM.from_pretrained(options.model).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(options.model)
        self.installed = "full"

    def tokens(self, name: str, count: int) -> torch.Tensor:
        """Return the first tokens of a text."""
        if name == "enwik8":
            raw = lzma.decompress((self.data / "enwik8/enwik8_first20m.xz").read_bytes())[10_000_000:]
            text = raw.decode(errors="ignore")
        else:
            text = lzma.decompress((self.data / f"wikitext2/wiki.{name}.tokens.xz").read_bytes()).decode()
            text = detokenise(text)
        # a token has at most a few dozen characters, on average four
        ids = self.tokenizer(text[: count * 12], add_special_tokens=False)["input_ids"]
        return torch.tensor(ids[:count])

    def use(self, cell: str, length: int) -> None:
        """Give the model the windows of a cell, which are fitted first if they are not there yet."""
        if self.installed == (wanted := f"{cell} {length}" if cell.startswith("sliding") else cell):
            return
        if self.installed != "full":
            remove_windows(self.model)
        self.installed = "full"
        if cell.startswith("sliding"):
            slide(self.model, float(cell.rpartition("-")[2]), length)
        elif cell != "full":
            folder = self.out / "windows" / cell
            if (folder / "windows.json").is_file():
                load_windows(self.model, folder, check_base=False)
            else:
                self.fit(cell)
        self.installed = wanted

    def fit(self, cell: str) -> None:
        """Fit the windows of a cell, keep them and say how it went."""
        name, _, text = cell.partition("@")
        length, _, more = text.partition("-")
        spans, per, share = re.fullmatch(r"(query-mlp|query|head)-(head|kv_group)-(\S+)", name).groups()
        begun = time.process_time()
        block = int(length or BLOCK)
        count = int(more) if more.isdigit() else FITTED_TO[block] + (more == "asks")
        used = block * count
        ids = self.tokens("train", used + HELD_OUT * BLOCK)
        if more == "asks":
            ids[used - block : used] = self.asking(ids[used - block : used])
        # a probe may have switched gradients off
        with torch.enable_grad(), show_progress() as progress:
            recorded = self.recorded(
                ids[:used].view(-1, block), self.out / f"costs-{text or BLOCK}.pt", progress
            )
            fitted = fit_recorded(
                self.model, recorded, ids[used:].view(-1, BLOCK), float(share), spans=spans, per=per,
                progress=progress,
            )  # fmt: skip
        save_windows(self.model, self.out / "windows" / cell)
        report = {
            "cell": cell,
            "asked": fitted.asked,
            "share": fitted.share,
            "before": fitted.before.loss,
            "after": fitted.after.loss,
            "predicted": fitted.predicted,
            "seconds": time.process_time() - begun,
        }
        write_json(self.out / "results" / f"fit {cell}.json", report)
        print(fitted, flush=True)

    def asking(self, text: torch.Tensor) -> torch.Tensor:
        """Return a block of text that asks, at its end, for a number that each question's name has."""
        generator = torch.Generator().manual_seed(1)
        questions = [question.format(name) for question in FITTED_QUESTIONS for name in NAMES]
        told = draw_facts(questions, len(text) // 16, len(text) * 7 // 8, generator)
        return self.tell_and_ask(text, told)[0]

    def recorded(self, blocks, path, progress):
        """Return the recorded costs, kept on disk."""
        if not path.is_file():
            places = causal_places(self.model)
            torch.save(record_costs(self.model, places, blocks, sinks=SINKS, progress=progress), path)
        # our own file
        return torch.load(path, weights_only=False)

    def perplexity(self, part: str, chosen: list[str] | None) -> None:
        """Measure the loss of each block in each cell of a part; blocks that were measured stay."""
        text, length, count, cells = PARTS[part]
        cells = chosen or cells
        blocks = self.tokens("test" if text == "wiki" else text, length * count).view(-1, length)
        for cell in cells:
            path = self.out / "results" / f"{text}-{length} {cell}.json"
            rows = json.loads(path.read_text())["blocks"] if path.is_file() else []
            for number in range(len(rows), count):
                self.use(cell, length)
                measured = measure(self.model, blocks[number : number + 1])
                rows.append({"loss": measured.loss, "share": measured.share})
                write_json(path, {"cell": cell, "text": text, "length": length, "blocks": rows})
            mean = sum(row["loss"] for row in rows[:count]) / count
            share = sum(row["share"] for row in rows[:count]) / count
            print(f"{part}  {cell:<20} share {share:.3f}  perplexity {math.exp(mean):.3f}", flush=True)

    @torch.no_grad()
    def recall(self, part: str, chosen: list[str] | None) -> None:
        """Ask for numbers that were told some way back in a text, and count how often they come first."""
        count, length, nearest, farthest, facts = RECALL[part]
        text = self.tokens("test", length * count).view(-1, length)
        for cell in chosen or PROBED:
            generator = torch.Generator().manual_seed(0)
            path = self.out / "results" / f"{part} {cell}.json"
            rows = json.loads(path.read_text())["rows"] if path.is_file() else []
            for number in range(count):
                questions = [QUESTION.format(NAMES[(number + fact) % len(NAMES)]) for fact in range(facts)]
                told = draw_facts(questions, nearest, farthest, generator)
                if number * facts < len(rows):
                    continue
                ids, end, answers = self.tell_and_ask(text[number], told)
                self.use(cell, length)
                logits = self.model(ids[None], use_cache=False, logits_to_keep=len(end) + 1).logits[0]
                for (back, _), place in zip(told.values(), answers, strict=True):
                    losses = nn.functional.cross_entropy(logits[place].float(), end[place], reduction="none")
                    right = bool((logits[place].argmax(-1) == end[place]).all())
                    rows.append({"back": back, "right": right, "loss": float(losses.sum())})
                write_json(path, {"cell": cell, "part": part, "rows": rows})
            right = sum(row["right"] for row in rows)
            print(f"{part}  {cell:<20} {right} of {len(rows)} right", flush=True)

    def tell_and_ask(
        self, text: torch.Tensor, told: dict[str, tuple[int, str]]
    ) -> tuple[torch.Tensor, torch.Tensor, list[slice]]:
        """Tell the answer to each question some tokens before the end of a text, and ask them all there.

        Return the tokens, those of the questions and answers, and where the answers are among these.
        """
        facts, end, answers = [], [], []
        for question, (back, code) in told.items():
            facts.append((back, self.ids(f"{question}{code}.")))
            end += [*(self.ids(".") if end else ()), *self.ids(question)]
            answers.append(slice(len(end), len(end) + len(self.ids(code))))
            end += self.ids(code)
        kept = text[: len(text) - len(end) - sum(len(fact) for _, fact in facts)].tolist()
        length = len(kept)
        # the nearest first, so that the places of the others stay as they are
        for back, fact in sorted(facts):
            kept[length - back : length - back] = fact
        return torch.tensor(kept + end), torch.tensor(end), answers

    def ids(self, words: str) -> list[int]:
        """Return the tokens of words."""
        found: list[int] = self.tokenizer(words, add_special_tokens=False)["input_ids"]
        return found

    @torch.no_grad()
    def blimp(self, part: str, chosen: list[str] | None) -> None:
        """Compare the likelihoods of the sentences of each pair, the first pairs of each paradigm."""
        archive = zipfile.ZipFile(self.data / "blimp/BLiMP.zip")
        files = sorted(
            name for name in archive.namelist() if name.endswith(".jsonl") and "MACOSX" not in name
        )
        # the text before a sentence ends with a full stop
        before = self.tokens("test", BLIMP[part]).tolist()
        while before and before[-1] != self.ids(".")[0]:
            before.pop()
        for cell in chosen or PROBED:
            path = self.out / "results" / f"{part} {cell}.json"
            rows = json.loads(path.read_text())["paradigms"] if path.is_file() else []
            context: DynamicCache | None = None
            for name in files[len(rows) :]:
                pairs = [json.loads(line) for line in archive.read(name).decode().splitlines()[:PAIRS]]
                self.use(cell, BLOCK)
                if before and context is None:
                    start = torch.tensor([[self.model.config.bos_token_id, *before[:-1]]])
                    context = self.model(start, use_cache=True, logits_to_keep=1).past_key_values
                sentences = [pair[key] for key in ("sentence_good", "sentence_bad") for pair in pairs]
                good, bad = self.likelihoods(sentences, before, context).chunk(2)
                rows.append(
                    {
                        "paradigm": pairs[0]["UID"],
                        "field": pairs[0]["field"].replace("/", "_"),
                        "right": (good > bad).tolist(),
                    }
                )
                write_json(path, {"cell": cell, "part": part, "paradigms": rows})
            right = [one for row in rows for one in row["right"]]
            print(f"{part}  {cell:<20} {sum(right) / len(right):.4f}", flush=True)

    def likelihoods(
        self, sentences: list[str], before: list[int], context: DynamicCache | None
    ) -> torch.Tensor:
        """Return the log-likelihood of each sentence after the model's opening token and a text."""
        first = before[-1] if before else self.model.config.bos_token_id
        rows = [[first, *self.ids(f" {one}" if before else one)] for one in sentences]
        width = max(map(len, rows))
        # no mask: what fills a row stands behind its sentence
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        real = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
        if context is not None:
            context = copy.deepcopy(context)
            context.batch_repeat_interleave(len(rows))
        logits = self.model(ids, past_key_values=context, use_cache=context is not None).logits[:, :-1]
        losses = nn.functional.cross_entropy(logits.transpose(1, 2).float(), ids[:, 1:], reduction="none")
        return -(losses * real[:, 1:]).sum(1)


def detokenise(text: str) -> str:
    """Return WikiText as people write it."""
    for mark, plain in DETOKENISE:
        text = text.replace(mark, plain)
    return text


def draw_facts(
    questions: list[str], nearest: int, farthest: int, generator: torch.Generator
) -> dict[str, tuple[int, str]]:
    """Draw for each question how many tokens before the end it is answered, and the number."""
    told = {}
    for question in questions:
        back = int(torch.randint(nearest, farthest, (1,), generator=generator))
        code = int(torch.randint(100, 1000, (1,), generator=generator))
        told[question] = (back, f" {code}")
    return told


def slide(model: nn.Module, share: float, length: int) -> None:
    """Give all heads one sliding window with a mean share of the keys in contexts of a length."""
    position = torch.arange(length)
    low, high = 1, length
    while low < high:
        middle = (low + high + 1) // 2
        fits = float(span_shares(position, (middle,), SINKS)[:, 0].mean()) <= share
        low, high = (middle, high) if fits else (low, middle - 1)
    settings = SpanSettings(spans="head", per="head", sinks=SINKS, choices=(low,), block=length)
    add_spans(model, settings)
    for window in span_adapters(model):
        window.bias.copy_(torch.tensor([1.0, 0.0]).expand_as(window.bias))


def draw(cells: dict[str, Any], path: Path) -> None:
    """Draw how many times the full model's perplexity each share of the keys costs, in blocks of 1,024."""
    full = [row["loss"] for row in cells["wiki-1024 full"]["blocks"]]
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.subplots()
    kinds = (
        ("sliding", "one sliding window"),
        ("head-head", "a span per head"),
        ("query-head", "a span per query"),
        ("head-kv_group", "a span per group of heads"),
        ("query-kv_group", "a span per query and group"),
    )
    for marker, (kind, label) in zip("sov^D", kinds, strict=True):
        points = []
        for name in (f"wiki-1024 {kind}-{share:.2f}" for share in SHARES):
            if name not in cells:
                continue
            rows = cells[name]["blocks"]
            change = summary([row["loss"] - base for row, base in zip(rows, full, strict=True)])
            middle, reach = change.mean, change.reach or 0.0
            times = math.exp(middle)
            share = sum(row["share"] for row in rows) / len(rows)
            points.append((share, times, times - math.exp(middle - reach), math.exp(middle + reach) - times))
        if not points:
            continue
        shares, times, below, above = zip(*points, strict=True)
        axes.errorbar(shares, times, (below, above), marker=marker, capsize=3, label=label)
    axes.set_xlabel("share of the visible keys that a query reads")
    axes.set_ylabel("times the perplexity of the full model")
    axes.legend()
    figure.savefig(path, dpi=100)


def report(cells: dict[str, Any]) -> str:
    """Write what was measured as Markdown tables; intervals are over blocks, paired with the full model."""
    lines = [
        "| windows | asked | predicted | measured on held-out text | seconds |",
        "|---|---|---|---|---|",
    ]
    for name, one in cells.items():
        if name.startswith("fit "):
            rise = one["after"] - one["before"]
            lines.append(
                f"| {one['cell']} | {one['asked']} | {one['predicted']:.3f} | {rise:.3f} | "
                f"{one['seconds']:.0f} |"
            )
    for text, length in sorted(
        {(cell["text"], cell["length"]) for cell in cells.values() if "blocks" in cell}
    ):
        of_length = {
            c["cell"]: c["blocks"]
            for c in cells.values()
            if (c.get("text"), c.get("length")) == (text, length)
        }
        lines += [
            f"\n{text}, blocks of {length:,}:\n",
            "| windows | blocks | share | perplexity | times that of the full model |",
            "|---|---|---|---|---|",
        ]
        for cell, rows in of_length.items():
            losses = [row["loss"] for row in rows]
            share = sum(row["share"] for row in rows) / len(rows)
            ratio = _ratio(losses, [row["loss"] for row in of_length.get("full", [])])
            lines.append(
                f"| {cell} | {len(rows)} | {share:.3f} | {math.exp(sum(losses) / len(rows)):.2f} | {ratio} |"
            )
    for cell in cells.values():
        if "rows" in cell:
            right = sum(row["right"] for row in cell["rows"])
            loss = sum(row["loss"] for row in cell["rows"]) / len(cell["rows"])
            lines.append(
                f"- {cell['part']}, {cell['cell']}: {right} of {len(cell['rows'])} right, {loss:.2f} nats"
            )
        if "paradigms" in cell:
            fields = _by_field(cell, cells[cell["part"] + " full"])
            lines.append(f"- {cell['part']}, {cell['cell']}: {fields}")
    return "\n".join(lines)


def _by_field(cell: dict[str, Any], full: dict[str, Any]) -> str:
    """Return the accuracy in each field and in all, and the p of McNemar's test against the full model."""
    shown = []
    # a cell that was not finished has the first paradigms
    both = list(zip(cell["paradigms"], full["paradigms"], strict=False))
    for field in (*sorted({row["field"] for row, _ in both}), "all"):
        of_field = [pair for pair in both if field in ("all", pair[0]["field"])]
        right, base = (np.concatenate([row["right"] for row in rows]) for rows in zip(*of_field, strict=True))
        found = accuracy(int(right.sum()), len(right))
        interval = f"{100 * found.value:.1f} % ({100 * found.low:.1f} - {100 * found.high:.1f})"
        shown.append(f"{field} {interval} of {found.total}, p = {mcnemar(right, base):.2f}")
    return "; ".join(shown)


def _ratio(losses: list[float], full: list[float]) -> str:
    """Return the ratio of perplexities, with its interval if there are enough pairs of blocks."""
    changes = [loss - base for loss, base in zip(losses, full, strict=False)]
    if not changes:
        return ""
    found = summary(changes)
    if found.reach is None or len(changes) < 5:
        return f"{math.exp(found.mean):.3f}"
    low, high = math.exp(found.mean - found.reach), math.exp(found.mean + found.reach)
    return f"{math.exp(found.mean):.3f} ({low:.3f} - {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=EVERYTHING, choices=EVERYTHING)
    parser.add_argument(
        "--cells", nargs="+", help="Such as full, sliding-0.40 or query-head-0.40; any share."
    )
    parser.add_argument(
        "--report", action="store_true", help="Print the results as tables, join their files and draw."
    )
    options = parser.parse_args()
    if options.report:
        files = sorted((options.out / "results").glob("*.json"))
        cells = {path.stem: json.loads(path.read_text()) for path in files}
        write_json(options.out / "pretrained.json", cells)
        draw(cells, options.out / "pretrained.png")
        print(report(cells))
        return
    (options.out / "results").mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    for part in options.only:
        if part in PARTS:
            bench.perplexity(part, options.cells)
        elif part in RECALL:
            bench.recall(part, options.cells)
        else:
            bench.blimp(part, options.cells)


if __name__ == "__main__":
    main()
