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
from diffwindow.special_tokens import BOS, EOS

BLOCK = 64
sentences = [example.sentence for example in agreement(2000, part="train")]
tokenizer = Tokenizer.train_words(sentences)


def join(texts: list[str]) -> list[int]:
    """Return the tokens of one sentence after the other, as language models read text."""
    return [number for text in texts for number in (BOS, *tokenizer.encode(text), EOS)]


def cut(tokens: list[int]) -> torch.Tensor:
    """Return tokens as blocks."""
    return torch.tensor(tokens[: len(tokens) // BLOCK * BLOCK]).view(-1, BLOCK)


def fit(model: LlamaForCausalLM, steps: int, rate: float) -> None:
    """Train the parameters that require gradients."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate)
    model.train()
    for step in range(steps):
        start = 16 * step % (len(blocks) - 16)
        rows = blocks[start : start + 16]
        optimizer.zero_grad()
        model(rows, labels=rows).loss.backward()
        optimizer.step()
    model.eval()


@torch.no_grad()
def loss(model: LlamaForCausalLM) -> float:
    """Return the mean loss per token on sentences that the model has not seen."""
    return model(held_out, labels=held_out).loss.item()


blocks = cut(join(sentences))
held_out = cut(join([example.sentence for example in agreement(300, part="test")]))
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=tokenizer.vocab_size,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
)
model = LlamaForCausalLM(config)
fit(model, steps=200, rate=3e-3)
before = loss(model)
print(f"pretrained: {before:.2f} nats per token on sentences that it has not seen")

# %% [markdown]
# ## Fit windows, without training
#
# `fit_windows` measures on some text what windows of each span would cost, and chooses spans that read the
# share of the keys that we ask for. Each window ends at its query and always has the first keys. A part of
# the text is held out: there it tells the loss before and after.

# %%
from diffwindow.hf import fit_windows, remove_windows

fitted = fit_windows(model, join(sentences), share=0.4, sinks=1, block=BLOCK)
print(fitted)

# %% [markdown]
# The last line compares with one span for all queries of a head. In this toy, which needs little more than
# the sentence that it reads, that is enough. On SmolLM2, a real model with 135 million parameters, queries
# that read 0.40 of 1,024 keys cost 1.05 times the perplexity, one span for each head 1.11 times, and one
# sliding window for all heads 1.28 times: see
# [Windows fitted to a pretrained model](../results/pretrained.md).
# `diffwindow fit MODEL --text FILE --out DIR` does the same from the command line. `remove_windows` gives
# the stock model back:

# %%
remove_windows(model)
print("the stock model again:", loss(model) == before)

# %% [markdown]
# ## Add windows that learn
#
# The notation says where: `Dec(MW)` is a multiplicative window in the decoder's self-attention. Each gets a
# gate of 0, so nothing changes yet.

# %%
from diffwindow.hf import add_windows, freeze_base, windows_of

add_windows(model, "Dec(MW)", layers="all", boundary_dim=8)
print("the same loss:", abs(loss(model) - before) < 1e-5)

# %% [markdown]
# ## Train the windows alone
#
# `freeze_base` leaves only the windows to train, a few parameters. Leave it out to train everything.

# %%
freeze_base(model)
count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
print(f"{count:,} of {sum(parameter.numel() for parameter in model.parameters()):,} parameters learn")
fit(model, steps=60, rate=3e-2)
after = loss(model)
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
print("the stock model again:", loss(model) == before)
load_windows(model, "windows")
print("the windows again:", abs(loss(model) - after) < 1e-5)

# %% [markdown]
# More, with other families of models, PEFT and the hub: [Hugging Face](../guides/huggingface.md).
