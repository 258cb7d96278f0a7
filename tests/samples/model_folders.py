"""Model folders with random weights, as training leaves them."""

import torch

from diffwindow.data.tokenizer import Tokenizer
from diffwindow.models.classifier import ClassifierConfig
from diffwindow.models.language_model import LanguageModelConfig
from diffwindow.models.translator import TranslatorConfig

SENTENCES = ["the old keys to the cabinet are here .", "my lamp fell .", "the sailors found the boats ."]
SMALL = {"embed_dim": 16, "ffn_dim": 32, "num_heads": 2}
CONFIGS = {
    "classifier": (ClassifierConfig, {"num_layers": 2, "attention": "Enc(AW)@all"}),
    "parser": (ClassifierConfig, {"num_layers": 2, "attention": "Enc(AW,Tree)"}),
    "causal parser": (LanguageModelConfig, {"num_layers": 2, "attention": "Dec(MW,Tree)"}),
    "phrases": (ClassifierConfig, {"num_layers": 2, "attention": "Enc(AW,Phr)@all"}),
    "plain": (ClassifierConfig, {"num_layers": 2}),
    "translator": (
        TranslatorConfig,
        {"encoder_layers": 1, "decoder_layers": 2, "attention": "Enc(AW)-Cr(AW,Seg)-Dec(MW)"},
    ),
    "language": (LanguageModelConfig, {"num_layers": 1, "attention": "Dec(MW)"}),
}


def save_model(folder, kind, *, tokenizer=None, seed=0):
    """Write a small model of a kind and its tokenizer."""
    tokenizer = tokenizer or Tokenizer.train_words(SENTENCES)
    config, own = CONFIGS[kind]
    torch.manual_seed(seed)
    model = config(vocab_size=tokenizer.vocab_size, **own, **SMALL).build()
    folder.mkdir(parents=True)
    model.save_pretrained(folder, tokenizer)
    return folder
