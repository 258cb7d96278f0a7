"""Time the plain base model against `torch.nn.Transformer`, Hugging Face's `MarianMTModel` and CTranslate2.

All have the same weights, and all times are of one run, taken in turns; the figures are ratios. A model
that was never trained does not know when to stop: the logit of the end is set, for all alike, so that each
sentence ends near a length of its own. Against CTranslate2 (pip install ctranslate2) all are equally long.

    python benchmarks/models.py [--quick] [--json]
    python benchmarks/models.py --tasks greedy-1-fp32 beam-32-int8 --repeats 7 --no-memory
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import forced
import peers
import torch
import torch.nn.functional as F
from torch import Tensor

from diffwindow.decoding import Decoding
from diffwindow.decoding.beam import beam_search
from diffwindow.decoding.search import Start, start_translation

SMOOTHING, BEAM, PENALTY, EOS = 0.1, 5, 0.6, 2
# About where the logits of the sharpened model's other tokens sum to.
OTHERS = 36.0


@dataclass(frozen=True)
class Batch:
    """Sentences of mixed length, the translations to learn, and the logit of the end at each step."""

    source: Tensor
    target: Tensor
    labels: Tensor
    ends: Tensor

    @property
    def steps(self) -> int:
        return self.ends.shape[1] - 1


def mixed_batch(sentences: int, longest: int, vocab_size: int) -> Batch:
    generator = torch.Generator().manual_seed(1)
    sources = torch.randint(longest // 6, longest + 1, (sentences,), generator=generator)
    targets = (sources * (0.8 + 0.4 * torch.rand(sentences, generator=generator))).long().clamp(min=2)
    source = _padded(sources, vocab_size, generator)
    labels = _padded(targets, vocab_size, generator)
    labels[torch.arange(sentences), targets - 1] = EOS
    target = torch.cat([torch.ones_like(labels[:, :1]), labels[:, :-1]], dim=1).masked_fill(labels == 0, 0)
    limits = (sources * 1.2).long() + 10
    step = torch.arange(int(limits.max()) + 1)
    ends = OTHERS + 4.0 * (step - targets[:, None])
    return Batch(source, target, labels, ends)


def _padded(lengths: Tensor, vocab_size: int, generator: torch.Generator) -> Tensor:
    tokens = torch.randint(4, vocab_size, (len(lengths), int(lengths.max())), generator=generator)
    return tokens.masked_fill(torch.arange(tokens.shape[1]) >= lengths[:, None], 0)


class Ending:
    """Our model with the logit of the end set; the state knows which sentences are left."""

    def __init__(self, model: Any, ends: Tensor) -> None:
        self.model, self.ends = model, ends

    def start(self, source: Tensor) -> Start:
        start = start_translation(self.model, source)
        return Start(EndingState(start.state, torch.arange(len(source))), start.first, start.limits)

    def step(self, tokens: Tensor, state: "EndingState") -> Tensor:
        logits = self.model.step(tokens, state.inner)
        logits[..., EOS] = self.ends[state.sentences, state.step, None]
        state.step += 1
        return logits


@dataclass
class EndingState:
    inner: Any
    sentences: Tensor
    step: int = 0

    def select(self, sentences: Tensor, hypotheses: Tensor) -> None:
        self.inner.select(sentences, hypotheses)
        self.sentences = self.sentences[sentences]


def train_step(model: torch.nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    model.train()

    def run() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return run


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0, label_smoothing=SMOOTHING)


def training(name: str, batch: Batch, size: dict[str, int]) -> Callable[[], None]:
    ours = peers.base(**size)
    if name == "ours":

        def loss() -> Tensor:
            found = ours.loss(batch.source, batch.target, batch.labels, label_smoothing=SMOOTHING)
            return found.total / found.num_tokens

        return train_step(ours, loss)
    if name == "torch":
        theirs = peers.TorchTranslator(ours)
        return train_step(theirs, lambda: cross_entropy(theirs(batch.source, batch.target), batch.labels))
    marian, mask = peers.marian(ours), (batch.source != 0).long()
    return train_step(
        marian,
        lambda: cross_entropy(
            marian(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.target).logits,
            batch.labels,
        ),
    )


def decoding(name: str, beam: int, batch: Batch, size: dict[str, int]) -> Callable[[], list[list[int]]]:
    ours = peers.sharpened(**size)
    if name == "ours":
        model = Ending(ours, batch.ends)
        return lambda: [
            list(h.tokens)
            for (h,) in beam_search(
                model, model.start(batch.source), Decoding(beam=beam, length_penalty=PENALTY)
            )
        ]
    if name == "torch":
        return torch_greedy(peers.TorchTranslator(ours).eval(), batch)
    return marian_decoding(peers.marian(ours).eval(), beam, batch)


def marian_decoding(model: Any, beam: int, batch: Batch) -> Callable[[], list[list[int]]]:
    step = 0

    def set_end(_: Any, __: Any, logits: Tensor) -> None:
        nonlocal step
        logits[..., :EOS] = -torch.inf
        logits[..., EOS] = batch.ends[:, step].repeat_interleave(beam)[:, None]
        step += 1

    model.lm_head.register_forward_hook(set_end)

    def run() -> list[list[int]]:
        nonlocal step
        step = 0
        tokens = model.generate(
            input_ids=batch.source,
            attention_mask=(batch.source != 0).long(),
            num_beams=beam,
            do_sample=False,
            max_new_tokens=batch.steps,
            length_penalty=PENALTY if beam > 1 else None,
        )
        return [_until_end(row[1:]) for row in tokens.tolist()]

    return run


def torch_greedy(model: peers.TorchTranslator, batch: Batch) -> Callable[[], list[list[int]]]:
    """`torch.nn.Transformer` keeps no keys: each step runs the whole prefix again."""

    @torch.no_grad()
    def run() -> list[list[int]]:
        memory = model.encode(batch.source)
        tokens = torch.ones_like(batch.source[:, :1])
        while not (tokens == EOS).any(-1).all() and tokens.shape[1] <= batch.steps:
            logits = F.linear(model.decode(tokens, memory, batch.source)[:, -1], model.weight)
            logits[:, :EOS] = -torch.inf
            logits[:, EOS] = batch.ends[:, tokens.shape[1] - 1]
            tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)
        return [_until_end(row[1:]) for row in tokens.tolist()]

    return run


def _until_end(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS)] if EOS in tokens else tokens


TASKS: dict[str, tuple[tuple[str, ...], Callable[..., Callable[[], Any]]]] = {
    "training": (("ours", "torch", "marian"), training),
    "greedy": (("ours", "torch", "marian"), lambda name, *rest: decoding(name, 1, *rest)),
    "beam": (("ours", "marian"), lambda name, *rest: decoding(name, BEAM, *rest)),
    **forced.TASKS,
}


def measure(task: str, batch: Batch, size: dict[str, int], repeats: int) -> dict[str, Any]:
    names, build = TASKS[task]
    runs = {name: build(name, batch, size) for name in names}
    outputs = {name: run() for name, run in runs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    result: dict[str, Any] = {"seconds": medians}
    result["ratio"] = {name: medians[name] / medians["ours"] for name in names if name != "ours"}
    if task != "training":
        result["same_output"] = {
            name: sum(a == b for a, b in zip(outputs["ours"], outputs[name], strict=True))
            / len(outputs[name])
            for name in names
            if name != "ours"
        }
        lengths = [len(tokens) for tokens in outputs["ours"]]
        result["lengths"] = [min(lengths), round(statistics.mean(lengths), 1), max(lengths)]
    return result


def peak_memory(task: str, name: str, arguments: list[str]) -> float:
    """Give the peak of a fresh process that does one run, in MB, beyond what importing everything takes."""
    command = [sys.executable, "-W", "ignore", __file__, *arguments, "--peak", f"{task}:{name}"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def high_water() -> float:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small model and batch, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    default = [task for task in TASKS if task not in forced.TASKS or find_spec("ctranslate2")]
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=default, help="what to time")
    parser.add_argument("--repeats", type=int, default=3, help="rounds, of which medians are compared")
    parser.add_argument("--no-memory", action="store_true", help="do not measure peaks of memory")
    parser.add_argument("--peak", metavar="TASK:NAME", help="print the peak memory in MB of one run alone")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    size = {"vocab_size": 2000, "layers": 2} if options.quick else {"vocab_size": 32768, "layers": 6}
    sentences, longest = (8, 20) if options.quick else (32, 48)
    batch = mixed_batch(sentences, longest, size["vocab_size"])
    if options.peak:
        task, name = options.peak.split(":")
        peers.marian(peers.base(vocab_size=8, layers=1))
        before = high_water()
        TASKS[task][1](name, batch, size)()
        print(high_water() - before)
        return
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "sentences": sentences,
        "source_tokens": int((batch.source != 0).sum()),
        "target_tokens": int((batch.labels != 0).sum()),
    }
    arguments = ["--quick"] if options.quick else []
    for task in options.tasks:
        report[task] = measure(task, batch, size, options.repeats)
        if not options.no_memory:
            peaks = {name: round(peak_memory(task, name, arguments)) for name in TASKS[task][0]}
            report[task]["peak_mb"] = peaks
        if not options.json:
            print(f"{task:14}", _line(report[task]), flush=True)
    if options.json:
        print(json.dumps(report, indent=2))


def _line(result: dict[str, Any]) -> str:
    memory = {name: f", {peak} MB" for name, peak in result.get("peak_mb", {}).items()}
    parts = [f"ours {result['seconds']['ours']:.2f} s{memory.get('ours', '')}"]
    for name, ratio in result["ratio"].items():
        parts.append(f"{name} {ratio:.2f}x the time{memory.get(name, '')}")
    parts += [f"same output as {name} {share:.0%}" for name, share in result.get("same_output", {}).items()]
    return "; ".join(parts)


if __name__ == "__main__":
    main()
