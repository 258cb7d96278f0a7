"""Time a training step of the full base model with windows against the plain one, in turns, in one run.

A step is forward, loss, backward and an Adam update on sentences of about 30 tokens.

    python benchmarks/training_step.py [--tokens 1024] [--seconds 60] [--json]
    python benchmarks/training_step.py --attention "Enc(AW,Dim=8)-Cr(AW,Seg,Dim=8)-Dec(MW,Dim=8)"
    python benchmarks/training_step.py --device cuda --precision bf16 --tokens 16384
"""

import argparse
import json
import statistics
import time

import torch

from diffwindow import Translator, TranslatorConfig

PLAIN = "Global"
WINDOWS = "Enc(AW)-Cr(AW,Seg)-Dec(MW)"


def make_step(attention: str, tokens: int, device: str, precision: str):
    torch.manual_seed(0)
    model = Translator(TranslatorConfig(vocab_size=32_768, attention=attention)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    source, target, labels = torch.randint(4, 32_768, (3, tokens // 32, 32)).to(device)
    mask = (torch.arange(32) < torch.randint(24, 33, (len(source), 1))).to(device)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            loss = model.loss(source, target, labels, mask, label_smoothing=0.1)
        (loss.total / loss.num_tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024, help="source tokens a batch")
    parser.add_argument("--seconds", type=float, default=60.0, help="about how long to measure")
    parser.add_argument("--attention", default=WINDOWS, help="the notation of the model with windows")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="bf16 autocasts")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU")
    steps = {
        name: make_step(name, options.tokens, options.device, options.precision)
        for name in (PLAIN, options.attention)
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    end = time.perf_counter() + options.seconds
    while time.perf_counter() < end or len(times[PLAIN]) < 3:
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    median = {name: statistics.median(kept) for name, kept in times.items()}
    ratio = median[PLAIN] / median[options.attention]
    if options.json:
        print(json.dumps({"relative_steps_per_second": ratio, "seconds_per_step": median}))
    else:
        for name, seconds in median.items():
            print(
                f"{name:<{max(map(len, median)) + 2}}{seconds * 1e3:>9.1f} ms a step  (of {len(times[name])})"
            )
        print(f"windows train at {ratio:.2f} of the plain model's steps a second")


if __name__ == "__main__":
    main()
