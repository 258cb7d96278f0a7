"""Find out whether a task needs windows."""

# %% [markdown]
# # Does my task need windows?
#
# A recipe: give your data, train five models with one command, read the comparison. This page takes a few
# minutes on two cores. The models have the sizes that `diffwindow train` would choose for your data; for a
# quick look, add `train.max_updates=1000` to the command. The five are the plain Transformer, one with
# rotary and one with relative positions, and two with windows (in translation `Enc(AW)-Dec(MW)` and
# `Enc(AW)-Cr(AW,Seg)-Dec(MW)`). Other positions belong there because they are cheaper, and often do better.
# To try a window beside them, name the rows: `--rows "Global+positions=rotary;Enc(AW)+positions=rotary"`.
#
# ## Your data
#
# Labelled text here: a CSV with the columns `text` and `label` for training, validation and test. For
# translation and language models see [Your own data](../start/your-own-data.md); the rest is the same. We
# make one up: is the verb after these words singular or plural?

# %%
import csv
from pathlib import Path

from diffwindow.data.synthetic import agreement

for part, size in (("train", 600), ("valid", 100), ("test", 500)):
    with Path(f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for example in agreement(size, part=part):
            writer.writerow([example.text, ["singular", "plural"][example.label]])
print(Path("train.csv").read_text(encoding="utf-8").splitlines()[1])

# %% [markdown]
# ## Two commands
#
# In a shell:
#
# <!-- illustration: the next cell runs it -->
# ```sh
# diffwindow prepare --labels train.csv --valid valid.csv --test test.csv --out stores/mine
# diffwindow compare stores/mine --seeds 2
# ```
#
# Without more settings, sizes suit the corpus, and as many models train at once as there are cores, or one
# at a time on a GPU. Here we shorten the training, which is the same for every row, and take one seed.

# %%
import subprocess
import sys


def diffwindow(*arguments: str) -> str:
    """Run a command; return what it prints."""
    command = [sys.executable, "-m", "diffwindow", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


diffwindow("prepare", "--labels", "train.csv", "--valid", "valid.csv", "--test", "test.csv", "--out", "mine")
short = [
    "train.max_updates=150",
    "train.warmup=50",
    "train.lr=1e-3",
    "train.valid_every=75",
    "train.max_rows=32",
]
print(diffwindow("compare", "mine", *short, "--out", "compared"))

# %% [markdown]
# ## The comparison

# %%
report = Path("compared/report.md").read_text(encoding="utf-8")
table = [line for line in report.splitlines() if line.startswith("|")]
print("\n".join(table[:7]))

# %% [markdown]
# A gain is the difference to the first row, with its 95 % interval over seeds and test examples. With one
# seed, as here, it counts the test examples alone, and says nothing of what another seed would do. Where
# the interval contains zero, the rows cannot be told apart. Add seeds (`--seeds 5`, finished ones are kept)
# or test examples before you believe anything.

# %%
import shutil

shutil.copy("compared/gains.png", "does_my_task_need_windows.png")

# %% [markdown]
# ![Gains over the plain model, with intervals](does_my_task_need_windows.png)
#
# ## What to do with it
#
# | you see | then |
# |---|---|
# | no interval leaves zero out | your task does not need windows, or the test set is too small to tell |
# | rotary or relative positions gain as much as the windows | take these positions: fewer parameters |
# | a window is ahead of them | add seeds; if you shortened the training, compare again at full length |
#
# A gain of small models does not promise one of large models
# ([When windows help](../results/when-windows-help.md)). Look at what the winner reads:
# `diffwindow view "compared/runs/own/own/Enc(AW)/seed1" --row 0 --split test`.
