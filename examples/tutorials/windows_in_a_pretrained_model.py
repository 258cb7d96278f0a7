"""Windows in a pretrained model."""

# %% [markdown]
# # Windows in a pretrained model
#
# Windows can be given to a model that is trained already, in two ways. They are fitted to it, without
# training, so that it reads fewer keys. Or they are added and learn, with the rest of the model or alone.
# About a minute on two cores, without a network: we pretrain a tiny Llama ourselves. With a network,
# `AutoModelForCausalLM.from_pretrained("…")` takes its place.

# %%
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from diffwindow.data.synthetic import agreement
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.special_tokens import BOS, EOS, PAD

sentences = [example.sentence for example in agreement(2000, part="train")]
held_out = [example.sentence for example in agreement(300, part="test")]
tokenizer = Tokenizer.train_words(sentences)


def batch(texts: list[str]) -> torch.Tensor:
    """Return the ids of some sentences, padded on the right."""
    rows = [[BOS, *tokenizer.encode(text), EOS] for text in texts]
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def loss(model: LlamaForCausalLM, texts: list[str]) -> torch.Tensor:
    """Return the mean loss per token."""
    ids = batch(texts)
    labels = ids.masked_fill(ids == PAD, -100)
    return model(ids, attention_mask=(ids != PAD).long(), labels=labels).loss


def fit(model: LlamaForCausalLM, steps: int, rate: float) -> None:
    """Train the parameters that require gradients."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate)
    model.train()
    for step in range(steps):
        start = 32 * step % len(sentences)
        optimizer.zero_grad()
        loss(model, sentences[start : start + 32]).backward()
        optimizer.step()
    model.eval()


torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=tokenizer.vocab_size,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
)
model = LlamaForCausalLM(config)
fit(model, steps=100, rate=3e-3)
with torch.no_grad():
    before = loss(model, held_out).item()
print(f"pretrained: {before:.2f} nats per token on sentences that it has not seen")

# %% [markdown]
# ## Fit windows, without training
#
# `fit_windows` measures on some text what windows of each span would cost, and chooses spans that read the
# share of the keys that we ask for. Each window ends at its query and always has the first keys. A part of
# the text is held out: there it tells the loss before and after.

# %%
from diffwindow.hf import fit_windows, remove_windows

ids = [number for text in sentences for number in (BOS, *tokenizer.encode(text), EOS)]
fitted = fit_windows(model, ids, share=0.4, sinks=1, tokens=8192, block=64)
print(fitted)

# %% [markdown]
# This toy reads sentence after sentence, so short windows do. On SmolLM2, a real model with 135 million
# parameters, queries that read 0.40 of 1,024 keys cost 1.05 times the perplexity, where one sliding window
# for all heads costs 1.28 times: see [Windows fitted to a pretrained model](../results/pretrained.md).
# `diffwindow fit MODEL --text FILE --out DIR` does the same from the command line. `remove_windows` gives
# the stock model back:

# %%
remove_windows(model)
with torch.no_grad():
    print("the stock model again:", loss(model, held_out).item() == before)

# %% [markdown]
# ## Add windows that learn
#
# The notation says where: `Dec(MW)` is a multiplicative window in the decoder's self-attention. Each gets a
# gate of 0, so nothing changes yet.

# %%
from diffwindow.hf import add_windows, freeze_base, windows_of

add_windows(model, "Dec(MW)", layers="all", boundary_dim=8)
with torch.no_grad():
    print("the same loss:", abs(loss(model, held_out).item() - before) < 1e-5)

# %% [markdown]
# ## Train the windows alone
#
# `freeze_base` leaves only the windows to train, a few parameters. Leave it out to train everything.

# %%
freeze_base(model)
count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
print(f"{count:,} of {sum(parameter.numel() for parameter in model.parameters()):,} parameters learn")
fit(model, steps=60, rate=3e-2)
with torch.no_grad():
    after = loss(model, held_out).item()
print(f"with windows: {after:.2f}, without: {before:.2f}")

# %% [markdown]
# The comparison is not fair: the plain model had fewer steps. Whether learned windows help a pretrained model
# has not been shown yet. `windows_of` tells what was added:

# %%
for row in windows_of(model).rows:
    print(f"{row.name}: {row.attention}, {row.parameters:,} parameters")

# %% [markdown]
# ## Save, remove, load
#
# Windows are saved beside the model, in a few kilobytes. Without them the stock model is back, bit for bit.

# %%
from diffwindow.hf import load_windows, save_windows

save_windows(model, "windows")
remove_windows(model)
with torch.no_grad():
    print("the stock model again:", loss(model, held_out).item() == before)
load_windows(model, "windows")
with torch.no_grad():
    print("the windows again:", abs(loss(model, held_out).item() - after) < 1e-5)

# %% [markdown]
# More, with other families of models, PEFT and the hub: [Hugging Face](../guides/huggingface.md).
