"""Watch a window being learned."""

# %% [markdown]
# # Watch a window being learned
#
# We train a small classifier with an additive window on generated sentences, keep its checkpoints, and
# look at one window in each of them. A minute or two on two cores.
#
# The task: given the words before a verb, is the verb singular or plural? Nouns of the other number stand
# between the subject and its verb, so the model must find the right noun.

# %%
from pathlib import Path

from diffwindow.data.synthetic import agreement

for example in agreement(3, part="train"):
    print(example.text, "->", ["singular", "plural"][example.label])

# %% [markdown]
# ## Train, and keep every checkpoint
#
# `resolve` turns a preset and overrides into a config, as the command line does. One layer is enough for this
# task, and makes the window easy to read.

# %%
from diffwindow.training.overrides import resolve
from diffwindow.training.run import train

settings = [
    "attention=Enc(AW)@all",
    "data.rows=2000",
    "model.num_layers=1",
    "train.max_updates=300",
    "train.save_every=25",
    "train.keep_last=12",
    "train.valid_every=300",
    "train.max_rows=32",
    "train.lr=1e-3",
    "train.warmup=50",
]
run = Path("run")
train(resolve("agreement", settings), run)
checkpoints = sorted(path for path in (run / "checkpoints").iterdir() if path.name.isdigit())
print(len(checkpoints), "checkpoints, from update", int(checkpoints[0].name), "to", int(checkpoints[-1].name))

# %% [markdown]
# ## One sentence, through all checkpoints
#
# `diffwindow.capture` records what every attention of a model does during a call. We take the window of the
# last position, where the verb will stand, for the head whose window changes most.

# %%
import numpy as np
import torch

import diffwindow
from diffwindow import Classifier
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.special_tokens import EOS

tokenizer = Tokenizer.load(run / "model/tokenizer.json")
words = ["the", "keys", "to", "the", "old", "cabinet", "near", "the", "window"]
ids = torch.tensor([[*tokenizer.encode(" ".join(words)), EOS]])
tokens = [*words, "(verb)"]


def windows(folder: Path) -> np.ndarray:
    """Return the window of each head at the last position: [heads, keys]."""
    model = Classifier.from_pretrained(folder).eval()
    with torch.no_grad(), diffwindow.capture(model, tokens=tokens) as trace:
        model(ids)
    return np.asarray(trace["Enc", 1].window)[:, -1]


learned = np.stack([windows(folder) for folder in checkpoints])  # [checkpoints, heads, keys]
head = int(np.abs(learned[-1] - learned[0]).sum(-1).argmax())
print("windows:", learned.shape)

# %% [markdown]
# ## Draw it
#
# A row per checkpoint, a column per word. At first the window is soft and in the middle, the same for any
# sentence. Until update 225 it leaves out the left part, and with it the subject, the noun that decides. From
# 250 on it opens there; in the end it is widest from the subject on and falls towards the verb.

# %%
from matplotlib.figure import Figure

figure = Figure(figsize=(7, 4), layout="constrained")
axes = figure.subplots()
image = axes.imshow(learned[:, head], aspect="auto", cmap="viridis", vmin=0, vmax=learned[:, head].max())
axes.set_xticks(range(len(tokens)), tokens, rotation=40, ha="right")
axes.set_yticks(range(len(checkpoints)), [int(path.name) for path in checkpoints])
axes.set_ylabel("update")
figure.colorbar(image, label="window M")
figure.savefig("watch_a_window.png", dpi=120)

# %% [markdown]
# ![The window of one head over the words, by update](watch_a_window.png)
#
# ## How well does it do?

# %%
test = list(agreement(500, part="test"))
predictions = diffwindow.load(run).predict([example.text for example in test])
right = sum(
    prediction.label == ["singular", "plural"][example.label]
    for prediction, example in zip(predictions, test, strict=True)
)
print(f"right in {right / len(test):.0%} of {len(test)} sentences that it has not seen")

# %% [markdown]
# The same as a page with a slider is one command:
# `diffwindow view run "the keys to the old cabinet" --checkpoints`. With `--against PLAIN` it shows a plain
# run beside it ([See the windows](../guides/view.md)).
