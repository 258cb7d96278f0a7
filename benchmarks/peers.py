"""The plain base model with the same weights: ours, PyTorch's, Hugging Face's Marian and CTranslate2's."""

import math
import tempfile
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffwindow.attention.visibility import sinusoids
from diffwindow.models.translator import Translator, TranslatorConfig

MAX_POSITIONS = 512
SHARPNESS = 8.0


def base(vocab_size: int = 32768, layers: int = 6, dropout: float = 0.1) -> Translator:
    """Build the plain Transformer base with weights from seed 0."""
    torch.manual_seed(0)
    return Translator(
        TranslatorConfig(vocab_size=vocab_size, encoder_layers=layers, decoder_layers=layers, dropout=dropout)
    )


def sharpened(**size: int) -> Translator:
    """Build the base model so that it is as sure of its next token as a trained one."""
    ours = base(**size).eval()
    # With one embedding for input and output it would repeat its last token: random signs prevent that.
    signs = torch.randint(0, 2, (ours.config.embed_dim,), generator=torch.Generator().manual_seed(2)) * 2 - 1
    with torch.no_grad():
        ours.decoder.layers[-1].feed_forward.norm.weight.mul_(SHARPNESS * signs)
    return ours


class TorchTranslator(nn.Module):
    """`torch.nn.Transformer` with the embeddings and output that it lacks."""

    def __init__(self, ours: Translator) -> None:
        super().__init__()
        config = ours.config
        self.weight = nn.Parameter(ours.embedding.weight.detach().clone())
        self.register_buffer("positions", sinusoids(torch.arange(MAX_POSITIONS), config.embed_dim))
        self.transformer = nn.Transformer(
            config.embed_dim,
            config.num_heads,
            config.encoder_layers,
            config.decoder_layers,
            config.ffn_dim,
            config.dropout,
            batch_first=True,
        )
        # It ends both stacks with a norm, which the post-norm model does not have.
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        self.dropout = config.dropout
        for stack in ("encoder", "decoder"):
            for theirs, layer in zip(
                getattr(self.transformer, stack).layers, getattr(ours, stack).layers, strict=True
            ):
                theirs.load_state_dict(_torch_layer(layer.state_dict()))

    def embed(self, tokens: Tensor) -> Tensor:
        rows = F.embedding(tokens, self.weight, padding_idx=0) * math.sqrt(self.weight.shape[1])
        return F.dropout(rows + self.positions[: tokens.shape[1]], self.dropout, training=self.training)

    def encode(self, source: Tensor) -> Tensor:
        return self.transformer.encoder(self.embed(source), src_key_padding_mask=source == 0)

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.transformer.decoder(
            self.embed(target),
            memory,
            tgt_mask=causal,
            memory_key_padding_mask=(source == 0).float().masked_fill(source == 0, -torch.inf),
            tgt_is_causal=True,
        )

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return F.linear(self.decode(target, self.encode(source), source), self.weight)


def marian(ours: Translator) -> Any:
    """Build a `MarianMTModel` with our weights and positions; nothing is downloaded."""
    from transformers import MarianConfig, MarianMTModel

    config = ours.config
    model = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            decoder_vocab_size=config.vocab_size,
            d_model=config.embed_dim,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.ffn_dim,
            decoder_ffn_dim=config.ffn_dim,
            dropout=config.dropout,
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=MAX_POSITIONS,
            pad_token_id=0,
            bos_token_id=1,
            decoder_start_token_id=1,
            eos_token_id=2,
            forced_eos_token_id=2,
        )
    )
    with torch.no_grad():
        model.model.shared.weight.copy_(ours.embedding.weight)
        for stack in ("encoder", "decoder"):
            theirs = getattr(model.model, stack)
            theirs.embed_positions.weight.copy_(sinusoids(torch.arange(MAX_POSITIONS), config.embed_dim))
            for layer, source in zip(theirs.layers, getattr(ours, stack).layers, strict=True):
                layer.load_state_dict(_marian_layer(source.state_dict()))
    return model


def ctranslate2(ours: Translator, compute_type: str) -> Any:
    """Build a `ctranslate2.Translator` with our weights and positions; token i is the text of i."""
    import ctranslate2 as library

    config = ours.config
    spec = library.specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers), config.num_heads, pre_norm=False
    )
    embedding = ours.embedding.weight.detach().numpy()
    positions = sinusoids(torch.arange(MAX_POSITIONS), config.embed_dim).numpy()
    for theirs, stack in ((spec.encoder, ours.encoder), (spec.decoder, ours.decoder)):
        theirs.position_encodings.encodings = positions
        for layer, source in zip(theirs.layer, stack.layers, strict=True):
            _fill_layer(layer, source)
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = embedding
    spec.decoder.projection.weight = embedding
    vocabulary = ["<unk>", "<s>", "</s>", *map(str, range(3, config.vocab_size))]
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.layer_norm_epsilon = ours.decoder.layers[0].feed_forward.norm.eps
    spec.validate()
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        return library.Translator(
            folder, compute_type=compute_type, inter_threads=1, intra_threads=torch.get_num_threads()
        )


def _fill_layer(layer: Any, source: nn.Module) -> None:
    """Copy a layer of ours to that of a specification of CTranslate2."""
    blocks = [(layer.self_attention, source.self_attention)]
    if source.cross_attention is not None:
        blocks.append((layer.attention, source.cross_attention))
    for theirs, block in blocks:
        stacked, width = block.attention.in_proj, block.attention.embed_dim
        # the keys of a source are projected apart from the queries
        cuts = [0, None] if theirs is layer.self_attention else [0, width, None]
        for linear, first, last in zip(theirs.linear, cuts, cuts[1:], strict=False):
            _fill_linear(linear, stacked.weight[first:last], stacked.bias[first:last])
        _fill_linear(theirs.linear[-1], block.attention.out_proj.weight, block.attention.out_proj.bias)
        _fill_norm(theirs.layer_norm, block.norm)
    _fill_linear(layer.ffn.linear_0, source.feed_forward.inner.weight, source.feed_forward.inner.bias)
    _fill_linear(layer.ffn.linear_1, source.feed_forward.outer.weight, source.feed_forward.outer.bias)
    _fill_norm(layer.ffn.layer_norm, source.feed_forward.norm)


def _fill_linear(theirs: Any, weight: Tensor, bias: Tensor) -> None:
    theirs.weight, theirs.bias = weight.detach().numpy(), bias.detach().numpy()


def _fill_norm(theirs: Any, norm: nn.LayerNorm) -> None:
    theirs.gamma, theirs.beta = norm.weight.detach().numpy(), norm.bias.detach().numpy()


def trainable(model: nn.Module) -> int:
    """Count parameters, each once, without the position tables that some models keep as parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _torch_layer(layer: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {
        "self_attention.attention.in_proj.": "self_attn.in_proj_",
        "self_attention.attention.out_proj.": "self_attn.out_proj.",
        "cross_attention.attention.in_proj.": "multihead_attn.in_proj_",
        "cross_attention.attention.out_proj.": "multihead_attn.out_proj.",
        "self_attention.norm.": "norm1.",
        "cross_attention.norm.": "norm2.",
        "feed_forward.inner.": "linear1.",
        "feed_forward.outer.": "linear2.",
        "feed_forward.norm.": "norm3." if "cross_attention.norm.weight" in layer else "norm2.",
    }
    return {names[name[: name.rindex(".") + 1]] + name.rpartition(".")[2]: x for name, x in layer.items()}


def _marian_layer(layer: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {
        "self_attention.attention.out_proj": ("self_attn.out_proj",),
        "cross_attention.attention.out_proj": ("encoder_attn.out_proj",),
        "self_attention.norm": ("self_attn_layer_norm",),
        "cross_attention.norm": ("encoder_attn_layer_norm",),
        "feed_forward.inner": ("fc1",),
        "feed_forward.outer": ("fc2",),
        "feed_forward.norm": ("final_layer_norm",),
        "self_attention.attention.in_proj": tuple(f"self_attn.{x}_proj" for x in "qkv"),
        "cross_attention.attention.in_proj": tuple(f"encoder_attn.{x}_proj" for x in "qkv"),
    }
    split: dict[str, Tensor] = {}
    for name, tensor in layer.items():
        module, _, parameter = name.rpartition(".")
        for target, part in zip(names[module], tensor.chunk(len(names[module])), strict=True):
            split[f"{target}.{parameter}"] = part
    return split
