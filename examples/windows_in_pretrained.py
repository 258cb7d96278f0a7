"""Pretrain a small stock Llama or Bert, add windows, and fine-tune with and without them.

    python examples/windows_in_pretrained.py llama --data DATA --out RUN
    python examples/windows_in_pretrained.py bert --data DATA --out RUN

The Llama is pretrained on WikiText-2 and fine-tuned on sentences of the 1B-word benchmark (perplexity per
token); the Bert is pretrained on reviews of IMDB and fine-tuned on SST-2 (accuracy). Every fine-tuning run
starts from the same weights, takes the same steps and sees the same batches for the same seed. Windows
start without effect and learn at ten times the rate of the rest. Results go to RUN/results.json; a run that
was cut short goes on where it stopped.
"""

import argparse
import gzip
import json
import lzma
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

from diffwindow.hf import add_windows, windows_of
from diffwindow.models.window_adapter import WindowAdapter

VOCABULARY, PAD, MASK, START = 4096, 0, 1, 2
SIZES = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
LENGTH, BATCH = 64, 16
SEEDS = (0, 1, 2)
VARIANTS = {
    "llama": ("plain", "Dec(AW)@all", "Dec(MW)@all"),
    "bert": ("plain", "Enc(AW)@all", "Enc(MW)@all"),
}


def lines(path):
    """Read the lines of a file, which may be compressed."""
    for ending, opener in (("", open), (".gz", gzip.open), (".xz", lzma.open)):
        found = path.with_name(path.name + ending)
        if found.is_file():
            with opener(found, "rt", encoding="utf-8") as file:
                return [line.strip() for line in file if line.strip()]
    raise SystemExit(f"there is no file {path}, nor {path.name}.gz or .xz beside it")


def train_tokenizer(texts, path):
    if not path.exists():
        tokenizer = Tokenizer(models.BPE(unk_token=None))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=["<pad>", "<mask>", "<s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        tokenizer.save(str(path))
    return Tokenizer.from_file(str(path))


def blocks(tokenizer, texts):
    """Join all texts and cut them into rows of LENGTH tokens."""
    ids = [token for e in tokenizer.encode_batch(texts) for token in (START, *e.ids)]
    return torch.tensor(ids[: len(ids) // LENGTH * LENGTH]).view(-1, LENGTH)


def padded(tokenizer, texts):
    rows = [[START, *encoding.ids][:LENGTH] for encoding in tokenizer.encode_batch(texts)]
    return torch.tensor([row + [PAD] * (LENGTH - len(row)) for row in rows])


def batches(size, steps, seed):
    """Return the rows of each step, shuffled anew when all have been seen."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.cat([torch.randperm(size, generator=generator) for _ in range(steps * BATCH // size + 1)])
    return order[: steps * BATCH].view(steps, BATCH)


def train(model, loss, size, *, steps, rate, seed, name):
    torch.manual_seed(seed)
    named = dict(model.named_parameters())
    windows = [p for key, p in named.items() if "added_window" in key]
    base = [p for key, p in named.items() if "added_window" not in key]
    groups = [{"params": base, "lr": rate}, {"params": windows, "lr": 10 * rate}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [group["lr"] for group in groups], total_steps=steps, pct_start=0.1
    )
    model.train()
    began = time.perf_counter()
    for step, rows in enumerate(batches(size, steps, seed)):
        optimizer.zero_grad()
        value = loss(model, rows)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(
                f"{name} step {step} loss {value.item():.3f} {time.perf_counter() - began:.0f} s", flush=True
            )
    return model.eval()


class Llama:
    """Causal language modelling: WikiText-2, then sentences of the 1B-word benchmark."""

    measure = "perplexity"

    def __init__(self, data, out):
        general = lines(data / "wikitext2/wiki.train.tokens")
        tokenizer = train_tokenizer(general, out / "tokenizer.json")
        self.general = blocks(tokenizer, general)
        news = lines(data / "lm1b_heldout/1b_benchmark.dev.tokens")
        self.train, self.test = blocks(tokenizer, news[:-1500]), blocks(tokenizer, news[-1500:])

    def fresh(self):
        torch.manual_seed(0)
        config = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, **SIZES)
        return LlamaForCausalLM(config)

    def pretraining_loss(self, model, rows):
        return model(self.general[rows], labels=self.general[rows]).loss

    def finetuned(self, folder, seed):
        return LlamaForCausalLM.from_pretrained(folder)

    def loss(self, model, rows):
        return model(self.train[rows], labels=self.train[rows]).loss

    @torch.no_grad()
    def score(self, model):
        total = sum(model(rows, labels=rows).loss.item() * len(rows) for rows in self.test.split(64))
        return float(torch.tensor(total / len(self.test)).exp())


class Bert:
    """Masked language modelling on reviews, then the sentiment of sentences."""

    measure = "accuracy"

    def __init__(self, data, out):
        reviews = [line.split("\t")[3] for line in lines(data / "imdb/imdb_train.tsv")[::5]]
        tokenizer = train_tokenizer(reviews, out / "tokenizer.json")
        self.general = blocks(tokenizer, reviews)
        self.train, self.labels = self.read(tokenizer, data / "sst/sst2_train.tsv")
        self.test, self.gold = self.read(tokenizer, data / "sst/sst2_test.tsv")

    def read(self, tokenizer, path):
        rows = [line.split("\t", 1) for line in lines(path)]
        return padded(tokenizer, [text for _, text in rows]), torch.tensor([int(label) for label, _ in rows])

    def fresh(self):
        torch.manual_seed(0)
        config = BertConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, pad_token_id=PAD, **SIZES)
        return BertForMaskedLM(config)

    def pretraining_loss(self, model, rows):
        tokens = self.general[rows]
        masked = torch.rand(tokens.shape) < 0.15
        return model(tokens.masked_fill(masked, MASK), labels=tokens.masked_fill(~masked, -100)).loss

    def finetuned(self, folder, seed):
        # the classifier on top is new: the same one for the same seed
        torch.manual_seed(seed)
        return BertForSequenceClassification.from_pretrained(folder, num_labels=2)

    def loss(self, model, rows):
        logits = self.logits(model, self.train[rows])
        return F.cross_entropy(logits, self.labels[rows])

    def logits(self, model, tokens):
        tokens = tokens[:, : int((tokens != PAD).sum(1).max())]
        return model(tokens, attention_mask=(tokens != PAD).long()).logits

    @torch.no_grad()
    def score(self, model):
        right = 0
        for tokens, gold in zip(self.test.split(64), self.gold.split(64), strict=True):
            right += int((self.logits(model, tokens).argmax(-1) == gold).sum())
        return right / len(self.gold)


def opened(model):
    """Return how far each window has opened: the mean |g| of its gates, or |A| of its local score."""
    sizes = [
        (window.gate if window.local is None else window.local.query).abs().mean().item()
        for window in model.modules()
        if isinstance(window, WindowAdapter)
    ]
    return [round(size, 4) for size in sizes]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("style", choices=["llama", "bert"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pretraining-steps", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    task = (Llama if options.style == "llama" else Bert)(options.data, options.out)
    pretrained, results = options.out / "pretrained", options.out / "results.json"
    if not pretrained.exists():
        model = task.fresh()
        train(
            model, task.pretraining_loss, len(task.general), steps=options.pretraining_steps, rate=1e-3,
            seed=0, name="pretraining",
        )  # fmt: skip
        model.save_pretrained(pretrained)
    found = json.loads(results.read_text()) if results.exists() else []
    done = {(row["attention"], row["seed"]) for row in found}
    for seed in SEEDS:
        for attention in VARIANTS[options.style]:
            if (attention, seed) in done:
                continue
            model = task.finetuned(pretrained, seed)
            before = task.score(model.eval())
            if attention != "plain":
                torch.manual_seed(seed)
                add_windows(model, attention, boundary_dim=16)
            at_start = task.score(model.eval())
            train(
                model, task.loss, len(task.train), steps=options.steps, rate=5e-4, seed=seed,
                name=f"{attention} seed {seed}",
            )  # fmt: skip
            row = {
                "style": options.style, "attention": attention, "seed": seed, "measure": task.measure,
                "before": before, "with_windows_at_start": at_start, "after": task.score(model),
                "opened": opened(model), "widths": [window.width for window in windows_of(model).rows],
                "parameters": sum(p.numel() for p in model.parameters()),
            }  # fmt: skip
            print(json.dumps(row), flush=True)
            found.append(row)
            results.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
