"""Every kind of attention on one task, as a page: python -m website.laboratory train, then time, then page.

The task is the demo's: generated sentences, is the verb singular or plural? The model is its one-layer
classifier. `train` trains every kind with three seeds, and draws what each reads in one sentence (the same
command resumes, from the folder `laboratory`); `time` measures an update of each against the plain one, in
turns; `page` writes the page from what both wrote.
"""

import json
import statistics
import sys
import textwrap
import time
from dataclasses import replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffwindow.attention.kinds import Attention, build_attention
from diffwindow.attention.visibility import padded_visibility
from diffwindow.cli.demo import BATCH_ROWS, LAYERS, ROWS, UPDATES, choose_sentence
from diffwindow.data.batching import TokenBatches
from diffwindow.data.corpora import recipe_of
from diffwindow.data.prepare import open_or_prepare
from diffwindow.data.store import Store
from diffwindow.evaluation.intervals import gain_interval
from diffwindow.evaluation.windows import VerbReadings, read_at_verbs
from diffwindow.models.classifier import Classifier, ClassifierConfig
from diffwindow.special_tokens import PAD
from diffwindow.tasks.classification import Classification, ClassificationBatch
from diffwindow.tasks.entries import corpus_fields
from diffwindow.tasks.metrics import METRICS, accuracy_terms
from diffwindow.training.distributed import World
from diffwindow.training.loader import UpdateBatches
from diffwindow.training.overrides import resolve
from diffwindow.training.state import seed_everything
from diffwindow.training.updater import Updater
from diffwindow.view.figures import save_figure
from diffwindow.view.reading import Reading, reading_figure
from website.generate import table
from website.laboratory_kinds import KINDS, PLAIN, WINDOW, LaboratoryKind

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PICTURES = DOCS / "explanation/laboratory.md", DOCS / "images/laboratory"
RESULTS, COSTS = PICTURES / "results.json", PICTURES / "costs.json"
# of the sentences and of the finished runs
WORK = Path("laboratory")
SEEDS = (1, 2, 3)
# words of the sentence in the pictures, at most, so that they stay small
LONGEST = 12
# of the second timing: texts per batch and tokens per text
TEXTS, LENGTH = 4, 512
ROUNDS = 7


class Reader(Classifier):
    """The demo's classifier with an attention that the notation has for other roles only."""

    def __init__(self, config: ClassifierConfig, attention: str, *, causal: bool) -> None:
        super().__init__(config)
        self.causal = causal
        for block in self.attention_blocks()["Enc"]:
            block.attention = build_attention(Attention(attention), config.embed_dim, config.num_heads)

    def encode(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        gates: Tensor | None = None,
    ) -> Tensor:
        """Run the encoder; a causal one from left to right."""
        visibility = padded_visibility(tokens != PAD if mask is None else mask, is_causal=self.causal)
        encoded: Tensor = self.encoder(
            self.embedding(tokens, visibility.positions(tokens.shape[1])), visibility
        )
        return encoded


class Experiment:
    """A kind's task, model and updater, with the demo's settings."""

    def __init__(self, kind: LaboratoryKind, store: Store, seed: int) -> None:
        settings = {"train.seed": seed, "train.max_updates": UPDATES, "train.max_rows": BATCH_ROWS}
        settings |= {"model.num_layers": LAYERS, "model.positions": kind.positions}
        config = resolve("agreement", (), settings)
        model_config = ClassifierConfig(
            **config.model | corpus_fields(store), attention=kind.notation or "Global"
        )
        seed_everything(seed)
        self.task = Classification(store, model_config)
        self.model = (
            Reader(model_config, kind.elsewhere, causal=kind.causal)
            if kind.elsewhere
            else model_config.build()
        )
        self.updater = Updater(self.task, self.model, config.train, World())
        batches = TokenBatches(
            self.task.lengths("train"), max_tokens=config.train.max_tokens, max_rows=BATCH_ROWS, seed=seed
        )
        self.rows = chain.from_iterable(repeat(batches))

    def update(self, number: int, batch: ClassificationBatch) -> None:
        """Make one update."""
        rows = np.arange(batch.units)
        self.updater(number, UpdateBatches([batch], [rows], {}, ends_epoch=False), measure=False)

    def run(self) -> tuple[np.ndarray, VerbReadings]:
        """Train; return which test sentences are right, and what the model reads in each."""
        self.model.train()
        for number, rows in enumerate(islice(self.rows, UPDATES), 1):
            self.update(number, self.task.collate("train", rows))
        labels, _ = self.task.predict(self.model, "test")
        return labels == self.task.gold("test"), read_at_verbs(self.task, self.model, "test")


def prepare() -> Store:
    """Generate the demo's sentences with their phrases: as many to test on as to train on."""
    small, larger = (recipe_of("agreement-trees", rows=rows, seed=1) for rows in (ROWS, 10 * ROWS))
    recipe = replace(small, splits=small.splits | {"test": larger.splits["test"]})
    return open_or_prepare(WORK / "data", lambda: recipe)


def train(store: Store) -> None:
    """Train every kind with every seed, unless that was done before, and report."""
    for seed in SEEDS:
        for kind in KINDS:
            if saved_run(kind, seed).exists():
                continue
            right, read = Experiment(kind, store, seed).run()
            windows = {} if read.window is None else {"window": read.window}
            arrays = {"right": right, "attention": read.attention, "subject": read.subject, **windows}
            np.savez(saved_run(kind, seed), **arrays)
            print(f"{kind.name}, seed {seed}: {100 * right.mean():.2f} %", flush=True)
    report(store)


def saved_run(kind: LaboratoryKind, seed: int) -> Path:
    """Return the file of a finished run: the right test sentences, and what the model reads in each."""
    return WORK / f"{kind.file}-{seed}.npz"


def report(store: Store) -> None:
    """Write the accuracies, the gains and the pictures of the runs that are finished."""
    right: dict[str, list[np.ndarray]] = {}
    readings: dict[str, VerbReadings] = {}
    for kind in KINDS:
        for seed in SEEDS:
            if saved_run(kind, seed).exists():
                with np.load(saved_run(kind, seed)) as saved:
                    right.setdefault(kind.name, []).append(saved["right"])
                    read = VerbReadings(saved["attention"], saved.get("window"), saved["subject"])
                readings.setdefault(kind.name, read)
    sentence = draw(store, {name: some[0] for name, some in right.items()}, readings)
    terms = {name: np.stack([accuracy_terms(one) for one in some]) for name, some in right.items()}
    found = {}
    for name, some in terms.items():
        interval = gain_interval(some, terms[PLAIN.name][: len(some)], METRICS["accuracy"].gain)
        found[name] = {
            "accuracy": [100 * float(one.mean()) for one in right[name]],
            "gain": interval.gain,
            "reach": interval.reach,
            "on_subject": 100 * float(readings[name].on_subject.mean()),
        }
    write(RESULTS, {"sentence": sentence, "kinds": found})


def draw(store: Store, right: dict[str, np.ndarray], readings: dict[str, VerbReadings]) -> str:
    """Draw what each kind reads in a sentence that the window gets right and the plain model does not."""
    split = store.split("test")
    short = split.columns["verb_position"] <= LONGEST
    gain = readings[WINDOW.name].on_subject - readings[PLAIN.name].on_subject
    index, _ = choose_sentence(
        right[WINDOW.name] & short, right[PLAIN.name] | ~short, gain, split.columns["attractors"]
    )
    example: Any = split[index]
    words = [*store.tokenizer.tokens(example["text"][:-1].tolist()), "[verb]"]
    PICTURES.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        shown = readings[kind.name]
        label = store.labels[int(example["label"]) ^ (not right[kind.name][index])]
        answer = f"{kind.name}: “{label}”, {'right' if right[kind.name][index] else 'wrong'}"
        window = None if shown.window is None else shown.window[index, : len(words)]
        reading = Reading(answer, shown.attention[index, : len(words)], window)
        figure = reading_figure(words, [reading], marked=int(shown.subject[index]))
        save_figure(figure, PICTURES / f"{kind.file}.png")
    return " ".join(words)


def time_updates(store: Store) -> None:
    """Compare the CPU time of an update of every kind, in turns, on sentences and on long texts."""
    experiments = {kind.name: Experiment(kind, store, 1) for kind in KINDS}
    chosen = next(experiments[PLAIN.name].rows)
    rng = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, experiments[PLAIN.name].task.config.vocab_size, (TEXTS, LENGTH), generator=rng)
    gates = (torch.arange(LENGTH - 1) % 3 == 0).float().expand(TEXTS, -1)
    costs: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
    for long in (False, True):
        seconds: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
        for turn in range(ROUNDS + 1):
            for name, experiment in experiments.items():
                batch = experiment.task.collate("train", chosen)
                if long:
                    batch = replace(batch, tokens=tokens, labels=batch.labels[:TEXTS], units=TEXTS)
                    batch = replace(batch, gates=gates if experiment.task.config.has_phrases else None)
                started = time.process_time()
                experiment.update(1, batch)
                # the first builds what later ones use again
                if turn:
                    seconds[name].append(time.process_time() - started)
        for name, some in seconds.items():
            ratios = [one / plain for one, plain in zip(some, seconds[PLAIN.name], strict=True)]
            costs[name].append(statistics.median(ratios))
            print(f"{name}: {costs[name][-1]:.2f}, {1000 * statistics.median(some):.1f} ms", flush=True)
    write(COSTS, costs)


def write(path: Path, content: Any) -> None:
    """Write JSON that a person can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def page() -> str:
    """Return the page: what was done, a table of all kinds, and a section for each."""
    results, costs = (json.loads(path.read_text(encoding="utf-8")) for path in (RESULTS, COSTS))
    rows, sections = [], []
    for kind in KINDS:
        found, (short, long) = results["kinds"][kind.name], costs[kind.name]
        gain = "" if kind is PLAIN else f"{found['gain']:+.1f} ± {found['reach']:.1f}".replace("-", "−")
        accuracy = f"{statistics.fmean(found['accuracy']):.1f}"
        name = f"[{kind.name}](#{kind.file})"
        rows.append((name, accuracy, gain, f"{found['on_subject']:.0f} %", f"{short:.2f}", f"{long:.2f}"))
        line = f"`{kind.spelled}` · {accuracy} % right"
        if kind is not PLAIN:
            line += f", {gain} points · an update takes {short:.2f} times as long, "
            line += f"{long:.2f} with {LENGTH} tokens"
        sections.append(
            f"## {kind.name} {{ #{kind.file} }}\n\n{wrap(kind.about)}\n\n$$\n{kind.equation}\n$$\n\n"
            f"![{kind.name}: the words read at the verb](../images/laboratory/{kind.file}.png){{ .wide }}\n\n"
            f"{wrap(line)}"
        )
    header = (
        "attention",
        "right, %",
        "gain",
        "on the subject",
        "update",
        f"update, {LENGTH} tokens",
    )
    body = INTRODUCTION.format(
        shown=wrap(SHOWN.format(sentence=results["sentence"])),
        rows=f"{ROWS:,}",
        updates=UPDATES,
        seeds=len(SEEDS),
        batch=BATCH_ROWS,
        texts=TEXTS,
        length=LENGTH,
        table=table(header, rows),
    )
    return "\n\n".join([body.strip(), *sections, CLOSING.strip()]) + "\n"


def wrap(text: str) -> str:
    """Wrap a paragraph as pages are."""
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


SHOWN = (
    "The pictures show this sentence, in which the framed word is the subject: *{sentence}*. Words are "
    "coloured by the attention of the verb's place, averaged over the four heads (seed 1). A green curve is "
    "the window."
)
INTRODUCTION = """
# A laboratory for local attention

Every kind of attention that the library has, on one task, in one model, with its equation, its
picture, its cost and its gain. To put a kind of your own beside them,
[add it](../guides/add-a-kind.md) and run

<!-- illustration: trains for a quarter of an hour -->
```sh
python -m website.laboratory train   # every kind with {seeds} seeds, and the pictures
python -m website.laboratory time    # an update of each, in turns; on a quiet machine
python -m website.laboratory page
```

## The task

Given the words before a verb, is the verb singular or plural? Nouns of the other number stand
between the subject and the verb, so the model must find the right noun. It is the demo's task and
model: {rows} generated sentences, one layer of width 128, {updates} updates of {batch} sentences, {seeds}
seeds, tested on {rows} others. The answer is read from the mean over all words. Positions are
sinusoidal unless a kind brings its own. Nothing was tuned for any kind. Kinds that the notation has
for decoders (`Dec`) or cross-attention (`Cr`) alone take the place of the encoder's attention here.

{shown}

{table}

*Gain*: points of accuracy over `Global`, with the 95 % interval over seeds and test sentences. *On
the subject*: the mean share of the attention at the verb that falls on its subject (seed 1).
*Update*: the CPU time of a training update over that of `Global`, on one thread, for {batch} sentences
and for {texts} texts of {length} tokens.
"""

CLOSING = """
## How to read it

One small task that rewards a window, because the grammar has one: the order of the rows here is not
their order on [real text](../results/when-windows-help.md). The costs are those of this library's
implementations: windows by token and by segment, plain attention and relative positions have CPU
kernels, and the rest is written in PyTorch. Seeds of one kind may be ten points apart, so read the
intervals; [the demo](../results/demo.md) has twenty seeds of three kinds.
Forgetting and stick-breaking attention were made for long causal texts, the Gaussian for
cross-attention, adaptive spans for thousands of tokens: ten words show what they do, not what they
are for. `Band` and `Bell`, which prefer near words by a fixed and by a learned distance, are in
[Models](../reference/models.md#attentions).
"""


def main() -> None:
    """Run one of the three steps."""
    steps = {"train": train, "time": time_updates}
    if sys.argv[1:] == ["page"]:
        PAGE.write_text(page(), encoding="utf-8")
        print(f"wrote {PAGE}")
        return
    if len(sys.argv) != 2 or sys.argv[1] not in steps:
        sys.exit("say train, time or page")
    torch.set_num_threads(1)
    steps[sys.argv[1]](prepare())


if __name__ == "__main__":
    main()
