"""Run folders of every kind of model, each trained for a moment by the real training loop."""

from diffwindow.data.own_files import plain_text
from diffwindow.data.prepare import prepare
from diffwindow.data.recipe import Recipe, Vocabulary
from diffwindow.training.overrides import resolve
from diffwindow.training.run import train

SMALL = ["model.embed_dim=32", "model.ffn_dim=64", "model.num_heads=2", "train.warmup=0", "train.lr=5e-3"]


def train_runs(root):
    """Train a translator, two classifiers and a language model into folders of `root`."""
    text = root / "text.txt"
    text.write_text("the keys to the cabinet are here .\nthe key is old .\n" * 20)
    split = plain_text(text)
    splits = {"train": split, "valid": split, "test": split}
    prepare(Recipe("text", "language-model", splits, Vocabulary("words", None)), root / "text")
    asked = {
        "translator": (
            "reorder",
            ["data.rows=200", "model.encoder_layers=1", "model.decoder_layers=1", "train.save_every=2"],
            4,
        ),
        "plain": ("agreement", ["data.rows=200"], 3),
        "windows": ("agreement", ["data.rows=200", "attention=Enc(AW)"], 3),
        "language": ("wikitext2", [f"data.path={root / 'text'}", "model.num_layers=1"], 30),
    }
    for name, (preset, own, updates) in asked.items():
        settings = [*SMALL, *own, f"train.max_updates={updates}", "train.max_tokens=512"]
        train(resolve(preset, settings), root / name)
    return root
