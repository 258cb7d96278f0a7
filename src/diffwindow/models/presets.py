"""The models of the paper's experiments, and small ones for small data, by the name of their corpus.

A vocabulary here is the size that the paper or the corpus gives; a model trained on a prepared corpus takes
the size of that corpus's own vocabulary.
"""

from diffwindow.models.classifier import ClassifierConfig
from diffwindow.models.config import ModelConfig
from diffwindow.models.language_model import LanguageModelConfig
from diffwindow.models.translator import TranslatorConfig
from diffwindow.ops import check_choice

PRESETS: dict[str, ModelConfig] = {
    "wmt14-en-de": TranslatorConfig(vocab_size=32_768),
    "wmt14-en-fr": TranslatorConfig(vocab_size=40_000),
    "multi30k-en-de": TranslatorConfig(
        vocab_size=8_192,
        embed_dim=256,
        ffn_dim=1024,
        num_heads=4,
        encoder_layers=3,
        decoder_layers=3,
    ),
    "reorder": TranslatorConfig(
        vocab_size=512,
        embed_dim=128,
        ffn_dim=512,
        num_heads=4,
        encoder_layers=2,
        decoder_layers=2,
    ),
    "lm1b": LanguageModelConfig(vocab_size=32_000),
    "wikitext2": LanguageModelConfig(
        vocab_size=33_280, embed_dim=256, ffn_dim=1024, num_heads=4, num_layers=4, dropout=0.3
    ),
    "sst2": ClassifierConfig(vocab_size=8_192),
    "imdb": ClassifierConfig(vocab_size=8_192),
    "sva": ClassifierConfig(vocab_size=10_000),
    "agreement": ClassifierConfig(vocab_size=512),
}


def preset(name: str, *, attention: str | None = None, vocab_size: int | None = None) -> ModelConfig:
    """Give the config of a preset, with another attention or vocabulary if asked.

    >>> preset("sst2", attention="Enc(AW)").attention
    'Enc(AW)'
    """
    check_choice("preset", name, list(PRESETS))
    fields = PRESETS[name].model_dump()
    if attention is not None:
        fields["attention"] = attention
    if vocab_size is not None:
        fields["vocab_size"] = vocab_size
    return type(PRESETS[name]).read(fields)
