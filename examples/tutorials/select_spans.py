"""Select spans with DifferentiableWindow."""

# %% [markdown]
# # Select spans, without attention
#
# `DifferentiableWindow` points at both ends of a span, and any loss can train it. Here it selects for each
# word the chunk that it is in, "the pound" for "pound": in CoNLL-2000 if `$DIFFWINDOW_DATA/treebank` holds
# it, else in generated sentences, as on this page.

# %%
import gzip
import os
import random
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from diffwindow import DifferentiableWindow, compose_window

CHUNKS = [["DT", "NN"], ["DT", "JJ", "NN"], ["VBD"], ["MD", "VB"], ["IN"], ["."]]


# sentences as lists of word, tag and chunk tag: B begins a chunk, I continues it
def read(split, n):
    path = Path(os.environ.get("DIFFWINDOW_DATA", "")) / f"treebank/conll2000_{split}.txt.gz"
    if path.is_file():
        blocks = gzip.decompress(path.read_bytes()).decode().strip().split("\n\n")
        return [[line.split() for line in block.split("\n")] for block in blocks]
    draw = random.Random(split)
    tags = [[(x, "BI"[i > 0]) for c in draw.choices(CHUNKS, k=8) for i, x in enumerate(c)] for _ in range(n)]
    return [[[f"{x}{draw.randrange(40)}", x, chunk] for x, chunk in row] for row in tags]


train, test = read("train", 1000), read("test", 200)[:500]
ids = [{x: i for i, x in enumerate(sorted({w[n] for row in train for w in row}), 1)} for n in (0, 1)]


# words, tags, which of them are real, and the first and last word of each word's chunk
def batch(rows):
    columns = [([ids[n].get(w[n], 0) for w in row] for row in rows) for n in (0, 1)]
    columns += [([True] * len(row) for row in rows), ([w[2][0] == "I" for w in row] for row in rows)]
    words, tags, mask, inner = (pad_sequence(list(map(torch.tensor, x)), batch_first=True) for x in columns)
    place = torch.arange(words.shape[1])
    start, last = ((place * ~x).cummax(1).values for x in (inner, inner.roll(-1, 1).flip(1)))
    return words, tags, mask, start, place[-1] - last.flip(1)


def neighbourhood(of, to):
    return nn.Sequential(nn.Conv1d(of, to, 5, padding=2), nn.ReLU(), nn.Conv1d(to, to, 5, padding=2))


class Selector(nn.Module):
    """Select a window for each word, by what it and four words on either side are."""

    def __init__(self, width=96):
        super().__init__()
        self.word, self.tag = (nn.Embedding(len(known) + 1, width) for known in ids)
        self.near = neighbourhood(width, width)
        self.select = DifferentiableWindow(width, width, rotary="pointers", expectation="exact")

    def forward(self, words, tags, mask):
        x = self.word(words) + self.tag(tags)
        x = x + self.near(x.mT).mT
        return self.select(x, x, mask)


# %% [markdown]
# Known spans train it by `log_prob`. The harder way names no span: the tags that `pool` finds in a window
# should have the shares that they have in the chunk.


# %%
def from_spans(window, tags, start, end):
    return -window.log_prob(start[:, None], end[:, None])[:, 0]


def from_tags(window, tags, start, end):
    one_hot, key = nn.functional.one_hot(tags, len(ids[1]) + 1).float(), torch.eye(tags.shape[1])
    shares = compose_window(key[start], key[end]).pool(one_hot)
    return -(shares * (window.pool(one_hot)[:, 0] + 1e-6).log()).sum(-1)


def f1(model, rule):
    found, gold = set(), set()
    for number, row in enumerate(test):
        words, tags, mask, *known = batch([row])
        with torch.no_grad():
            span = model(words, tags, mask).discrete(rule)
        for spans, ends in ((found, span), (gold, known)):
            spans |= {(number, *map(int, each)) for each in zip(*(x.flatten() for x in ends), strict=True)}
    return 200 * len(found & gold) / (len(found) + len(gold))


for loss in (from_spans, from_tags):
    torch.manual_seed(0)
    model, order = Selector(), random.Random(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(3 * len(train) // 32):
        words, tags, mask, *known = batch(order.sample(train, 32))
        optimizer.zero_grad()
        loss(model(words, tags, mask), tags, *known)[mask].mean().backward()
        optimizer.step()
    print(loss.__name__, {rule: round(f1(model, rule), 1) for rule in ("argmax", "half", "joint")})

# %% [markdown]
# On CoNLL-2000 (8,936 sentences; the first 500 of its test set) the same code gives
#
# | exact-span F1, one seed | argmax | half | joint |
# |---|---|---|---|
# | from_spans | 92.6 | 92.4 | 92.6 |
# | from_tags | 92.0 | 91.9 | 90.0 |
#
# A word outside of chunks counts as a chunk of its own. Tags alone, without any span, are nearly enough.
# They do not say which pointer is the left one, so `joint`, which insists on an order, is the wrong rule
# there; the others take either order.
#
# ## A region of a time series
#
# Nothing here is about text. A series of noise is raised somewhere; one query learns to select where, only
# because the mean over its window should be the height.


# %%
# series, by how much they are raised, and the first and last place where they are
def series(rows):
    start, height, place = torch.randint(5, 30, (rows, 1)), 1 + 2 * torch.rand(rows, 1), torch.arange(60)
    end = start + torch.randint(8, 25, (rows, 1))
    return 0.2 * torch.randn(rows, 60) + height * ((start <= place) & (place <= end)), height, start, end


torch.manual_seed(0)
near, select, query = neighbourhood(1, 16), DifferentiableWindow(16, 16), torch.ones(64, 1, 16)
optimizer = torch.optim.Adam([*near.parameters(), *select.parameters()], lr=1e-2)
for _ in range(400):
    x, height, *known = series(64)
    window = select(query, near(x[:, None]).mT)
    optimizer.zero_grad()
    (window.pool(x[..., None])[:, 0, 0] - height).square().mean().backward()
    optimizer.step()
for name, found, true in zip(("start", "end"), window.discrete("argmax"), known, strict=True):
    print(f"{name}: wrong by {(found[:, 0] - true).abs().float().mean():.2f} places on average")
