"""Compare `diffwindow train` with joeynmt, end to end: same data, same size of model, one thread each.

Both train a plain Transformer on the same sentence pairs, cut into the same tokens, in batches of up to the
same number of tokens. Rounds alternate; what counts is the ratio of target tokens per second (the end of a
sentence is a token) within this run. Each program counts its own tokens and leaves out its start. joeynmt
needs an environment of its own:

    python -m venv joey && joey/bin/pip install torch==2.13.0 joeynmt importlib_metadata
    python benchmarks/joeynmt.py --joeynmt joey/bin/python [--store STORE] [--rounds 3] [--updates 100]

Without --store, the generated corpus `reorder` is used; `diffwindow prepare multi30k-en-de` makes another.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from diffwindow.data.corpora import recipe_of
from diffwindow.data.prepare import prepare
from diffwindow.data.store import Store

LAYERS, HEADS, WIDTH, FFN, DROPOUT = 3, 4, 256, 1024, 0.1
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def write_texts(store: Store, folder: Path) -> None:
    """Write the token ids of the training and validation sets as words, a sentence per line, and all ids."""
    ids = [f"{token}\n" for token in range(4, store.tokenizer.vocab_size)]
    (folder / "vocabulary").write_text("".join(ids))
    for split in ("train", "valid"):
        rows = store.split(split)
        for field, ending in (("source", "src"), ("target", "trg")):
            sequences = rows.sequences[field]
            lines = [" ".join(map(str, sequences[index][:-1])) for index in range(len(rows))]
            (folder / f"{split}.{ending}").write_text(
                "".join(f"{line}\n" for line in lines), encoding="utf-8"
            )


def joeynmt_config(folder: Path, updates: int, tokens: int) -> dict[str, object]:
    """Return joeynmt's config of the same training."""

    def side(lang: str) -> dict[str, object]:
        return {"lang": lang, "level": "word", "max_length": 1000, "voc_file": str(folder / "vocabulary")}

    half = {
        "type": "transformer",
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "embeddings": {"embedding_dim": WIDTH, "scale": True},
        "hidden_size": WIDTH,
        "ff_size": FFN,
        "dropout": DROPOUT,
        "layer_norm": "post",
    }
    return {
        "name": "benchmark",
        "model_dir": str(folder / "joeynmt"),
        "use_cuda": False,
        "random_seed": 1,
        "data": {
            "train": str(folder / "train"),
            "dev": str(folder / "valid"),
            "dataset_type": "plain",
            "src": side("src"),
            "trg": side("trg"),
        },
        "testing": {"eval_metrics": []},
        "training": {
            "optimizer": "adam",
            "adam_betas": [0.9, 0.98],
            "learning_rate": 7e-4,
            "learning_rate_min": 1e-9,
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 4000,
            "label_smoothing": 0.1,
            "normalization": "tokens",
            "batch_type": "token",
            "batch_size": tokens,
            "epochs": 10_000,
            "updates": updates,
            # once, as the last thing that is measured for neither
            "validation_freq": 10 * updates,
            "logging_freq": max(1, updates // 10),
            "early_stopping_metric": "loss",
            "overwrite": True,
            "shuffle": True,
        },
        "model": {"tied_embeddings": True, "tied_softmax": True, "encoder": half, "decoder": half},
    }


def run(command: list[str]) -> float:
    """Run a command with one thread; return its seconds."""
    started = time.monotonic()
    done = subprocess.run(
        command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.monotonic() - started


def ours(store: Path, folder: Path, updates: int, tokens: int) -> tuple[float, float]:
    """Train with diffwindow; return the median of target tokens per second and the seconds of the command."""
    model = {"embed_dim": WIDTH, "ffn_dim": FFN, "num_heads": HEADS, "dropout": DROPOUT}
    model |= {"encoder_layers": LAYERS, "decoder_layers": LAYERS}
    train = {"max_updates": updates, "max_tokens": tokens, "log_every": max(1, updates // 10)}
    train |= {"valid_every": "null", "save_every": 10 * updates, "final": "last", "device": "cpu"}
    overrides = [f"model.{key}={value}" for key, value in model.items()]
    overrides += [f"train.{key}={value}" for key, value in train.items()]
    place = ["--data", str(store), "--out", str(folder)]
    seconds = run([sys.executable, "-m", "diffwindow", "train", "reorder", *overrides, *place])
    records = [json.loads(line) for line in (folder / "timing.jsonl").read_text().splitlines()]
    return later_median([record["units_per_s"] for record in records]), seconds


def theirs(python: str, folder: Path, updates: int, tokens: int) -> tuple[float, float]:
    """Train with joeynmt; return the same."""
    config = folder / "joeynmt.yaml"
    config.write_text(yaml.safe_dump(joeynmt_config(folder, updates, tokens)))
    seconds = run([python, "-m", "joeynmt", "train", str(config), "--skip-test"])
    log = (folder / "joeynmt/train.log").read_text()
    return later_median([float(speed) for speed in re.findall(r"Tokens per Sec:\s+(\d+)", log)]), seconds


def later_median(speeds: list[float]) -> float:
    """Return the median without the first third, which warms up."""
    return statistics.median(speeds[len(speeds) // 3 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--joeynmt", required=True, help="the Python of an environment with joeynmt")
    parser.add_argument("--store", type=Path, help="a prepared store of sentence pairs")
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=2048, help="tokens per batch, at most")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = options.store or folder / "store"
        store = Store.open(path) if options.store else prepare(recipe_of("reorder", None, rows=20_000), path)
        write_texts(store, folder)
        ratios = []
        for number in range(options.rounds):
            fast, seconds = ours(path.resolve(), folder / f"run{number}", options.updates, options.tokens)
            slow, their_seconds = theirs(options.joeynmt, folder, options.updates, options.tokens)
            ratios.append(fast / slow)
            print(
                f"round {number + 1}: diffwindow {fast:,.0f} target tokens/s ({seconds:.0f} s in all), "
                f"joeynmt {slow:,.0f} ({their_seconds:.0f} s), ratio {ratios[-1]:.2f}",
                flush=True,
            )
        print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
