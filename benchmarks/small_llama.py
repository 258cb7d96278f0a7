"""Train a small Llama on Wikipedia, so that `pretrained.py` can fit windows to a second model.

    python benchmarks/small_llama.py --data DIR --out MODEL

DIR holds `wikitext2/wiki.train.tokens.xz` and `enwik8/enwik8_first20m.xz`. The text that `pretrained.py` fits
and tests windows on is left out: the first million characters of the first, and what follows the first
10,000,000 bytes of the second. The same command resumes.
"""

import argparse
import json
import lzma
from pathlib import Path

import torch
from pretrained import detokenise
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from diffwindow.files import write_json

TOKENS, CONTEXT, BATCH, RATE, WARMUP, DECAY = 8192, 1024, 8, 3e-3, 100, 0.1
SAVE_EVERY = 50
OPENING = "<s>"


def read_text(data: Path) -> str:
    """Return what the model is trained on."""
    wiki = lzma.decompress((data / "wikitext2/wiki.train.tokens.xz").read_bytes()).decode()
    raw = lzma.decompress((data / "enwik8/enwik8_first20m.xz").read_bytes())[:10_000_000]
    return raw.decode(errors="ignore") + detokenise(wiki)[1_000_000:]


def prepare(data: Path, out: Path) -> torch.Tensor:
    """Train the tokenizer and return the text in blocks, which are kept beside the model."""
    kept = out / "blocks.pt"
    if not kept.is_file():
        text = read_text(data)
        tokenizer = ByteLevelBPETokenizer()
        tokenizer.train_from_iterator(text.splitlines(keepends=True), TOKENS, special_tokens=[OPENING])
        PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, bos_token=OPENING).save_pretrained(out)
        ids = torch.tensor(tokenizer.encode(text).ids, dtype=torch.int32)
        torch.save(ids[: len(ids) // CONTEXT * CONTEXT].view(-1, CONTEXT), kept)
    return torch.load(kept, weights_only=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    blocks = prepare(options.data, options.out)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=TOKENS,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=None,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), RATE, (0.9, 0.95), weight_decay=DECAY)
    order = torch.randperm(len(blocks)).split(BATCH)
    state, done = options.out / "training.pt", 0
    if state.is_file():
        kept = torch.load(state, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        done = kept["done"]
    for number in range(done, len(order)):
        # up for WARMUP updates, then in a line to nothing
        rate = RATE * min((number + 1) / WARMUP, (len(order) - number) / (len(order) - WARMUP))
        optimizer.param_groups[0]["lr"] = rate
        rows = blocks[order[number]].long()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (number + 1) % 10 == 0:
            print(json.dumps({"update": number + 1, "of": len(order), "loss": loss.item()}), flush=True)
        if (number + 1) % SAVE_EVERY == 0:
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": number + 1}
            torch.save(kept, state.with_suffix(".new"))
            state.with_suffix(".new").replace(state)
    model.save_pretrained(options.out)
    write_json(options.out / "trained.json", {"blocks": len(blocks), "loss": loss.item()})


if __name__ == "__main__":
    main()
