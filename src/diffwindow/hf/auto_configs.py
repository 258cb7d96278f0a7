"""The configs of our models in transformers: our settings, and the fields that transformers expects."""

from typing import Any

from transformers import PreTrainedConfig

from diffwindow.special_tokens import BOS, EOS, PAD


class TranslatorAutoConfig(PreTrainedConfig):
    """The settings of a Translator, in `settings`, and the fields that transformers expects."""

    model_type = "diffwindow_translator"

    def __init__(self, settings: dict[str, Any] | None = None, **others: Any) -> None:
        common = {"is_encoder_decoder": True, "decoder_start_token_id": BOS}
        super().__init__(**(common | _fields(settings) | others))


class LanguageModelAutoConfig(PreTrainedConfig):
    """The settings of a LanguageModel, in `settings`, and the fields that transformers expects."""

    model_type = "diffwindow_language_model"

    def __init__(self, settings: dict[str, Any] | None = None, **others: Any) -> None:
        super().__init__(**(_fields(settings) | others))


class ClassifierAutoConfig(PreTrainedConfig):
    """The settings of a Classifier, in `settings`, and the fields that transformers expects."""

    model_type = "diffwindow_classifier"

    def __init__(self, settings: dict[str, Any] | None = None, **others: Any) -> None:
        labels = {} if "id2label" in others or not settings else {"num_labels": settings["num_classes"]}
        super().__init__(**(labels | _fields(settings) | others))


def _fields(settings: dict[str, Any] | None) -> dict[str, Any]:
    """Return our settings and, under the names that transformers looks for, some of them again."""
    settings = settings or {}
    return {
        "settings": settings,
        "vocab_size": settings.get("vocab_size"),
        "hidden_size": settings.get("embed_dim"),
        "num_attention_heads": settings.get("num_heads"),
        "num_hidden_layers": settings.get("decoder_layers", settings.get("num_layers")),
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "tie_word_embeddings": False,
    }
