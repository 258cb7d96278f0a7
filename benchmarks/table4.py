"""Table 4's speeds as ratios: the paper's base models, updates of each row in turns on the same real batches.

python benchmarks/table4.py --data DIR --stores DIR --tokens 512 --rounds 3
"""

import argparse
from pathlib import Path

import torch

from diffwindow.reproduce.cost import relative_speeds
from diffwindow.reproduce.jobs import make_store
from diffwindow.reproduce.scales import Experiment
from diffwindow.reproduce.tables import PAPER_SPEED, TABLE_4
from diffwindow.tasks.presets import model_preset
from diffwindow.training.overrides import resolve


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with multi30k/raw")
    parser.add_argument("--stores", type=Path, required=True, help="where the prepared corpus is kept")
    parser.add_argument("--tokens", type=int, default=512, help="padded tokens of a batch")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    # the paper's models on sentences that are at hand: the time of an update does not depend on the words
    setting = Experiment("wmt14-en-de", (f"train.max_tokens={options.tokens}",), "multi30k-en-de")
    store = options.stores / setting.store_name
    make_store(setting, store, options.data)
    ratios = relative_speeds(TABLE_4, setting, store, rounds=options.rounds)
    base = model_preset("wmt14-en-de")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.tokens} tokens an update")
    print("| model | parameters | paper's speed, relative | ours, relative |\n| --- | --- | --- | --- |")
    for row, paper in zip(TABLE_4.rows, PAPER_SPEED, strict=True):
        config = resolve(setting.preset, setting.overrides_of(row), {"attention": row.attention})
        model = base.model_copy(update=config.model_options)
        ratio = f"{paper / PAPER_SPEED[0]:.2f} | {ratios[row.key]:.2f}"
        print(f"| {row.label} | {model.count_parameters():,} | {ratio} |")


if __name__ == "__main__":
    main()
