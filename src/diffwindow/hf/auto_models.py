"""Our models as transformers models: configs, forward passes, and generation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
)

from diffwindow.attention.visibility import Visibility, first_true, padded_visibility
from diffwindow.hf.attention import LayerCache, layer_caches
from diffwindow.models.layers import TokenEmbedding
from diffwindow.models.model import TOKENIZER, Model
from diffwindow.models.translator import Translator
from diffwindow.special_tokens import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from diffwindow.tasks.entries import MODELS, TASKS, TaskEntry, load_named
from diffwindow.tasks.model_folder import Record, read_entry


# transformers makes an __init__ for a config without one
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


# what is put around running text to go on with: the end of the text before
RUNNING_TEXT = "</s> $A"
IGNORED = -100
# the attribute by which transformers tells which parameters have their values
INITIALIZED = "_is_hf_initialized"
# What transformers may pass that would change the outputs; what it passes beside these does not.
UNSUPPORTED = (
    *("inputs_embeds", "position_ids"),
    *("decoder_inputs_embeds", "decoder_position_ids", "decoder_attention_mask"),
)


class _Wrapped(PreTrainedModel):
    """A model of ours in the frame of transformers; `model` is the one inside."""

    base_model_prefix = "model"
    # what is put around a text, as in training
    template: ClassVar[str] = "$A </s>"
    auto_class: ClassVar[Any]
    main_input_name = "input_ids"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        settings = config.settings
        self.model: Any = MODELS[settings["model"]].config_class(**settings).build()
        for parameter in self.model.parameters():
            # on the meta device they wait for the values of a checkpoint
            setattr(parameter, INITIALIZED, not parameter.is_meta)
        self.post_init()
        if self.can_generate():
            # our own search never proposes these
            self.generation_config.suppress_tokens = [PAD, BOS]

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise the parameters that a checkpoint lacks; others are as our own models make them."""
        for name, parameter in module.named_parameters(recurse=False):
            if getattr(parameter, INITIALIZED, False):
                continue
            if isinstance(module, TokenEmbedding):
                module.reset_parameters()
            elif parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.constant_(parameter, float(isinstance(module, nn.LayerNorm) and name == "weight"))

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Write a folder that the Auto classes load, with windows that were added since."""
        self.config.settings = self.model.config.model_dump()
        super().save_pretrained(*args, **kwargs)

    def _refuse_unsupported(self, others: Mapping[str, Any]) -> None:
        for name in UNSUPPORTED:
            if others.get(name) is not None:
                raise ValueError(f"{type(self).__name__} does not take {name}; leave it out")
        # these may be asked for in the config, too
        for name in ("output_hidden_states", "output_attentions"):
            if others.get(name, getattr(self.config, name, None)):
                raise ValueError(f"{type(self).__name__} does not know {name}; diffwindow.capture shows maps")
        if others.get("return_dict", getattr(self.config, "return_dict", None)) is False:
            raise ValueError(f"{type(self).__name__} returns no tuple; leave return_dict=False out")

    # called by `generate` with a static cache, with more arguments than are of use here
    def create_masks_for_generate(self, *, attention_mask: Tensor | None, **_: Any) -> Tensor | None:
        """Keep the mask of the tokens: the models add the causal one themselves."""
        return attention_mask


class TranslatorForSeq2SeqLM(_Wrapped, GenerationMixin):
    """A Translator as a transformers model."""

    config_class = TranslatorAutoConfig
    auto_class = AutoModelForSeq2SeqLM

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        """Return the encoder, as `generate` calls it."""
        return _Encoder(self.model)

    # the names are those that transformers calls with; it passes more that a model may leave alone
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> Seq2SeqLMOutput:
        """Return the logits after each token of `decoder_input_ids`, by default `labels` shifted right."""
        self._refuse_unsupported(others)
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = F.pad(labels.masked_fill(labels == IGNORED, PAD)[:, :-1], (1, 0), value=BOS)
        if decoder_input_ids is None:
            raise ValueError("decoder_input_ids is missing; give it, or labels")
        if attention_mask is None and input_ids is not None:
            attention_mask = input_ids != PAD
        if encoder_outputs is None:
            if input_ids is None:
                raise ValueError("input_ids is missing; give it, or encoder_outputs")
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)
        encoded: Any = encoder_outputs[0]
        source = padded_visibility(_token_mask(attention_mask))
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        memory = self._memory(encoded, past_key_values)
        caches = layer_caches(
            getattr(past_key_values, "self_attention_cache", past_key_values), self.model.decoder
        )
        past = caches[0].length if caches else 0
        x = self.model.embedding(decoder_input_ids, _positions(decoder_input_ids, past))
        visibility = _causal_visibility(decoder_input_ids, past, None)
        hidden = self.model.decoder(x, visibility, memory=memory, memory_visibility=source, caches=caches)
        logits = self.model.embedding.logits(hidden)
        loss: Any = None if labels is None else _token_loss(logits, labels, num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=past_key_values,
            encoder_last_hidden_state=encoded,
        )

    def _memory(self, encoded: Tensor, past_key_values: Cache | None) -> list[Tensor]:
        """Project the source's keys for each layer, once where there is a cache to keep them in."""
        if not isinstance(past_key_values, EncoderDecoderCache):
            memory: list[Tensor] = self.model.decoder.project_memory(encoded)
            return memory
        cross, updated = past_key_values.cross_attention_cache, past_key_values.is_updated
        if not updated.get(0):
            for layer, keys in enumerate(self.model.decoder.project_memory(encoded)):
                LayerCache(cross, layer).append(keys)
                updated[layer] = True
        layers: list[Any] = list(cross.layers)
        return [layer.keys[:, 0] for layer in layers]


class LanguageModelForCausalLM(_Wrapped, GenerationMixin):
    """A LanguageModel as a transformers model."""

    config_class = LanguageModelAutoConfig
    auto_class = AutoModelForCausalLM
    template = "<s> $A"

    # the names are those that transformers calls with; it passes more that a model may leave alone
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Return the logits after each token; `labels` are the tokens themselves, and are shifted here."""
        self._refuse_unsupported(others)
        if input_ids is None:
            raise ValueError("input_ids is missing")
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        caches = layer_caches(past_key_values, self.model.decoder)
        past = caches[0].length if caches else 0
        mask = _token_mask(attention_mask)
        origin = None if mask is None else first_true(mask)
        x = self.model.embedding(input_ids, _positions(input_ids, past, origin))
        hidden = self.model.decoder(x, _causal_visibility(input_ids, past, mask), caches=caches)
        logits = self.model.embedding.logits(hidden[:, -logits_to_keep:] if logits_to_keep else hidden)
        loss: Any = None if labels is None else _token_loss(logits[:, :-1], labels[:, 1:], num_items_in_batch)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)


class ClassifierForSequenceClassification(_Wrapped):
    """A Classifier as a transformers model."""

    config_class = ClassifierAutoConfig
    auto_class = AutoModelForSequenceClassification
    # its loss is the mean of a batch, which a Trainer has to divide by the batches of an update
    accepts_loss_kwargs = False

    def __init__(self, config: Any) -> None:
        # a caller of `from_pretrained` may ask for other labels
        if config.num_labels < 2:
            raise ValueError(f"num_labels={config.num_labels}: a classifier tells two labels apart, or more")
        config.settings = config.settings | {"num_classes": config.num_labels}
        super().__init__(config)

    # the names are those that transformers calls with; it passes more that a model may leave alone
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **others: Any,
    ) -> SequenceClassifierOutput:
        """Return the logits of the classes."""
        self._refuse_unsupported(others)
        if self.config.problem_type not in (None, "single_label_classification"):
            raise ValueError(f"problem_type={self.config.problem_type!r}: a text has one label here")
        logits = self.model(input_ids, _token_mask(attention_mask))
        loss: Any = None if labels is None else F.cross_entropy(logits.float(), labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def _wrapper(entry: TaskEntry) -> type[_Wrapped]:
    if entry.wrapper is None:
        raise ValueError(f"a {entry.noun} has no form in transformers; use it with diffwindow.load")
    wrapper: type[_Wrapped] = load_named(entry.wrapper)
    return wrapper


def as_transformers(model: Model[Any]) -> PreTrainedModel:
    """Wrap a model of ours, which stays the same object, as a transformers model."""
    register_auto_models()
    wrapper = _wrapper(MODELS[model.config.model])
    config_class: Any = wrapper.config_class
    # made without memory for weights: those of the model take their place
    with torch.device("meta"):
        wrapped = wrapper(config_class(settings=model.config.model_dump()))
    wrapped.model = model
    wrapped.train(model.training)
    return wrapped


def transformers_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """Make the tokenizer of a model folder of ours one of transformers, for the inputs of its model.

    What Moses does before and after is not part of it, nor is the length at which training cut texts. The
    names of special tokens in a text are text, as for our own tokenizer; transformers forgets that in
    `save_pretrained`, so set `split_special_tokens` again after loading.
    """
    from tokenizers.processors import TemplateProcessing

    folder = Path(folder)
    template = _wrapper(read_entry(folder)).template
    if Record.read(folder).options.block_size is not None:
        template = RUNNING_TEXT
    names = dict(enumerate(SPECIAL_TOKENS))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / TOKENIZER), pad_token=names[PAD], bos_token=names[BOS],
        eos_token=names[EOS], unk_token=names[UNK], clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )  # fmt: skip
    special = [(names[BOS], BOS), (names[EOS], EOS)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)
    return tokenizer


def register_auto_models() -> None:
    """Make our models known to transformers' Auto classes; more than once does no harm."""
    for wrapper in (_wrapper(entry) for entry in TASKS.values() if entry.wrapper):
        config: Any = wrapper.config_class
        AutoConfig.register(config.model_type, config, exist_ok=True)
        wrapper.auto_class.register(config, wrapper, exist_ok=True)


class _Encoder(nn.Module):
    def __init__(self, translator: Translator) -> None:
        super().__init__()
        self.translator = translator

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> BaseModelOutput:
        encoded: Any = self.translator.encode(input_ids, _token_mask(attention_mask))
        return BaseModelOutput(last_hidden_state=encoded)


def _token_mask(attention_mask: Tensor | None) -> Tensor | None:
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        raise ValueError(
            f"attention_mask has shape {list(attention_mask.shape)}, not [batch, length]; "
            "pass one value per token, 1 where it is real"
        )
    return attention_mask.bool()


def _positions(tokens: Tensor, past: int, origin: Tensor | None = None) -> Tensor:
    positions = torch.arange(past, past + tokens.shape[1], device=tokens.device).expand(tokens.shape)
    return positions if origin is None else (positions - origin[:, None]).clamp(min=0)


def _causal_visibility(tokens: Tensor, past: int, mask: Tensor | None) -> Visibility:
    """Show each token the `past` tokens before the first, those before itself, and itself, but no padding."""
    if past == 0:
        return padded_visibility(mask, is_causal=True)
    if tokens.shape[1] == 1:
        return padded_visibility(mask)
    length = past + tokens.shape[1]
    key = torch.arange(length, device=tokens.device)
    causal = key <= torch.arange(past, length, device=tokens.device)[:, None]
    if mask is None:
        return Visibility(causal[None, None])
    return Visibility(causal & mask[:, None, None, :], segment_origin=first_true(mask))


def _token_loss(logits: Tensor, labels: Tensor, num_items: Tensor | int | None) -> Tensor:
    """Return the mean cross-entropy of the labels that are neither padding nor ignored.

    A Trainer that accumulates gradients gives `num_items`, the labels of all batches of an update that are
    not ignored. Where it has counted padding, its share is taken to be that of this batch.
    """
    counted = labels != IGNORED
    real = counted & (labels != PAD)
    scores, labels = logits.float().flatten(0, 1), labels.masked_fill(~real, IGNORED).flatten()
    if num_items is None:
        return F.cross_entropy(scores, labels, ignore_index=IGNORED)
    total = F.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum")
    return total * counted.sum() / (num_items * real.sum().clamp(min=1))
