"""Time a training step with windows against the plain model, and against others, in turns, in one run.

A step is forward, loss, backward and an Adam update on sentences of about 30 tokens. The model is the base
model or, with --tiny, a small translator (4 + 4 layers of 128, 8,192 subwords, dropout 0.3) beside
`torch.nn.Transformer` and Hugging Face's `MarianMTModel` with the same weights.

    python benchmarks/training_step.py [--tokens 1024] [--seconds 60] [--json]
    python benchmarks/training_step.py --attention "Enc(AW,Dim=8)-Cr(AW,Seg,Dim=8)-Dec(MW,Dim=8)"
    python benchmarks/training_step.py --device cuda --precision bf16 --tokens 16384
    python benchmarks/training_step.py --tiny [--threads 1] [--no-peers] [--against OTHER_CHECKOUT/src]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from diffwindow import Translator, TranslatorConfig

PLAIN = "Global"
WINDOWS = "Enc(AW)-Cr(AW,Seg)-Dec(MW)"
SMOOTHING = 0.1
BASE = {"vocab_size": 32_768}
TINY = {
    **{"vocab_size": 8192, "embed_dim": 128, "ffn_dim": 256, "num_heads": 4, "dropout": 0.3},
    **{"encoder_layers": 4, "decoder_layers": 4},
}
PEERS = ("torch.nn", "Marian")
Step = Callable[[], float]


class Batch(NamedTuple):
    """Sentences of at most 32 tokens; the sources are padded with 0."""

    source: Tensor
    target: Tensor
    labels: Tensor


def make_batch(vocab_size: int, tokens: int) -> Batch:
    torch.manual_seed(0)
    source, target, labels = torch.randint(4, vocab_size, (3, tokens // 32, 32))
    lengths = torch.randint(24, 33, (len(source), 1))
    return Batch(source.masked_fill(torch.arange(32) >= lengths, 0), target, labels)


def make_step(model: torch.nn.Module, loss: Callable[[], Tensor], device: str, precision: str) -> Step:
    """Return a function that makes a step and returns its seconds."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    model.train()

    def step() -> float:
        start = time.perf_counter()
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            total = loss()
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return step


def our_step(size: dict[str, float], attention: str, options: argparse.Namespace) -> Step:
    torch.manual_seed(0)
    model = Translator(TranslatorConfig(**size, attention=attention)).to(options.device)
    batch = [x.to(options.device) for x in make_batch(size["vocab_size"], options.tokens)]

    def loss() -> Tensor:
        found = model.loss(*batch, label_smoothing=SMOOTHING)
        return found.total / found.num_tokens

    return make_step(model, loss, options.device, options.precision)


def peer_step(name: str, size: dict[str, float], options: argparse.Namespace) -> Step:
    import peers

    torch.manual_seed(0)
    ours, batch = Translator(TranslatorConfig(**size)), make_batch(size["vocab_size"], options.tokens)
    mask = (batch.source != 0).long()
    theirs = peers.TorchTranslator(ours) if name == "torch.nn" else peers.marian(ours)

    def loss() -> Tensor:
        if name == "torch.nn":
            logits = theirs(batch.source, batch.target)
        else:
            logits = theirs(
                input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.target
            ).logits
        return F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), label_smoothing=SMOOTHING)

    return make_step(theirs, loss, options.device, options.precision)


def step_of(checkout: str, attention: str, options: argparse.Namespace) -> Step:
    """Return a function that lets a process with another version of the package make a step."""
    command = [sys.executable, __file__, "--serve", attention, "--tokens", str(options.tokens)]
    command += ["--threads", str(options.threads), *(["--tiny"] if options.tiny else [])]
    environment = os.environ | {"PYTHONPATH": str(Path(checkout).resolve())}
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def step() -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("step\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    return step


def serve(step: Step) -> None:
    """Make a step for each line of stdin, and print its seconds."""
    for _ in sys.stdin:
        print(step(), flush=True)


def measure(steps: dict[str, Step], seconds: float) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[PLAIN]) < 3:
        for name, step in steps.items():
            times[name].append(step())
    return times


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, help="source tokens a batch; 1024, with --tiny 4000")
    parser.add_argument("--seconds", type=float, default=60.0, help="about how long to measure")
    parser.add_argument("--attention", default=WINDOWS, help="the notation of the model with windows")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="bf16 autocasts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tiny", action="store_true", help="a small translator, beside its peers")
    parser.add_argument("--no-peers", action="store_true", help="time our models only")
    parser.add_argument("--against", metavar="SRC", help="time the package in another folder too")
    parser.add_argument("--serve", metavar="ATTENTION", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU")
    options.tokens = options.tokens or (4000 if options.tiny else 1024)
    return options


def main() -> None:
    options = read_arguments()
    torch.set_num_threads(options.threads)
    size = TINY if options.tiny else BASE
    if options.serve:
        return serve(our_step(size, options.serve, options))
    steps = {name: our_step(size, name, options) for name in (PLAIN, options.attention)}
    names = tuple(steps)
    if options.tiny and not options.no_peers:
        steps |= {name: peer_step(name, size, options) for name in PEERS}
    if options.against:
        steps |= {f"{name} of the other": step_of(options.against, name, options) for name in names}
    times = measure(steps, options.seconds)
    median = {name: statistics.median(kept) for name, kept in times.items()}
    ratio = median[PLAIN] / median[options.attention]
    if options.json:
        print(json.dumps({"relative_steps_per_second": ratio, "seconds_per_step": median}))
        return None
    for name, seconds in median.items():
        print(f"{name:<{max(map(len, median)) + 2}}{seconds * 1e3:>9.1f} ms a step  (of {len(times[name])})")
    print(f"windows train at {ratio:.2f} of the plain model's steps a second")
    for name in PEERS:
        if name in median:
            print(f"the plain model trains at {median[name] / median[PLAIN]:.2f} of the speed of {name}")
    for name in names if options.against else ():
        other = median[f"{name} of the other"]
        print(f"{name} trains at {other / median[name]:.2f} of the speed of the other version")
    return None


if __name__ == "__main__":
    main()
