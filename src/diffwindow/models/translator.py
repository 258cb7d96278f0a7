"""Translator: the encoder-decoder Transformer, with any attention in any role and layer."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffwindow.attention.cache import KeyCache
from diffwindow.attention.visibility import Visibility, padded_visibility
from diffwindow.checks import check_tokens
from diffwindow.models.config import Depth, ModelConfig
from diffwindow.models.decoding_state import DecodingState
from diffwindow.models.layers import AttentionBlock, TokenEmbedding, TransformerStack
from diffwindow.models.loss import TokenLoss, token_log_probs
from diffwindow.models.model import Model
from diffwindow.notation import Role
from diffwindow.special_tokens import PAD


class TranslatorConfig(ModelConfig):
    """Settings of a Translator; the defaults are the paper's Transformer base."""

    model: Literal["translator"] = "translator"
    """Fixed."""
    encoder_layers: Depth = 6
    """Layers of the encoder."""
    decoder_layers: Depth = 6
    """Layers of the decoder."""

    @classmethod
    def stacks(cls) -> dict[Role, str]:
        """Name the fields with the number of layers."""
        return {"Enc": "encoder_layers", "Cr": "decoder_layers", "Dec": "decoder_layers"}

    def build(self) -> "Translator":
        """Build the model, freshly initialised."""
        return Translator(self)


class Translator(Model[TranslatorConfig]):
    """Translate: one embedding matrix for source, target and output, an encoder and a decoder.

    Sources may be padded on either side, targets on the right. A source mask is True at real tokens; where
    it is left out, they are those that are not padding (token 0). An attention with phrases needs gates: the
    probability that a phrase ends between a source token and the next.

    >>> config = TranslatorConfig(vocab_size=20, embed_dim=16, num_heads=2, attention="Cr(AW,Seg)")
    >>> source, target = torch.randint(4, 20, (3, 7)), torch.randint(4, 20, (3, 5))
    >>> Translator(config)(source, target).shape
    torch.Size([3, 5, 20])
    """

    config_class = TranslatorConfig

    def __init__(self, config: TranslatorConfig) -> None:
        super().__init__()
        self.config = config
        plan, options = config.plan, config.layer_options
        self.embedding = TokenEmbedding(
            config.vocab_size, config.embed_dim, config.positions, word_starts=config.learns_input_phrases
        )
        self.encoder = TransformerStack(options, plan.attentions("Enc", config.encoder_layers))
        self.decoder = TransformerStack(
            options,
            plan.attentions("Dec", config.decoder_layers),
            plan.attentions("Cr", config.decoder_layers),
        )

    def forward(
        self,
        source: Int[Tensor, "b n"],
        target: Int[Tensor, "b t"],
        source_mask: Bool[Tensor, "b n"] | None = None,
        gates: Float[Tensor, "b gaps"] | None = None,
    ) -> Float[Tensor, "b t v"]:
        """Return the logits of the token after each target token; `target` starts with the beginning (1)."""
        return self.embedding.logits(self.hidden(source, target, source_mask, gates))

    def loss(
        self,
        source: Int[Tensor, "b n"],
        target: Int[Tensor, "b t"],
        labels: Int[Tensor, "b t"],
        source_mask: Bool[Tensor, "b n"] | None = None,
        gates: Float[Tensor, "b gaps"] | None = None,
        *,
        label_smoothing: float = 0.0,
    ) -> TokenLoss:
        """Score `labels`, the token after each of `target`, without holding the logits."""
        hidden = self.hidden(source, target, source_mask, gates)
        return self.embedding.loss(hidden, labels, label_smoothing=label_smoothing)

    def nll_by_row(
        self, source: Int[Tensor, "b n"], target: Int[Tensor, "b t"], labels: Int[Tensor, "b t"]
    ) -> Float[Tensor, " b"]:
        """Return −log p of each row's labels, without gradients."""
        return -token_log_probs(self.hidden(source, target), self.embedding.logits, labels).sum(-1)

    def encode(
        self,
        source: Int[Tensor, "b n"],
        source_mask: Bool[Tensor, "b n"] | None = None,
        gates: Float[Tensor, "b gaps"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """Run the encoder."""
        return self._encode(source, self._source_visibility(source, source_mask, gates))

    def hidden(
        self,
        source: Int[Tensor, "b n"],
        target: Int[Tensor, "b t"],
        source_mask: Bool[Tensor, "b n"] | None = None,
        gates: Float[Tensor, "b gaps"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Run the encoder and the decoder, up to what the logits are made from."""
        visibility = self._source_visibility(source, source_mask, gates)
        check_tokens("target", target)
        if len(target) != len(source):
            raise ValueError(
                f"there are {len(source)} sources and {len(target)} targets; pass as many of both"
            )
        memory = self.decoder.project_memory(self._encode(source, visibility))
        # Targets are padded on the right, where no real token looks: the causal mask is all they need.
        x, causal = self.embedding(target), Visibility(is_causal=True)
        hidden: Tensor = self.decoder(x, causal, memory=memory, memory_visibility=visibility)
        return hidden

    @torch.no_grad()
    def begin(
        self,
        source: Int[Tensor, "s n"],
        source_mask: Bool[Tensor, "s n"] | None = None,
        gates: Float[Tensor, "s gaps"] | None = None,
    ) -> DecodingState:
        """Encode sources and project their keys once, for `step` to decode with one hypothesis each."""
        visibility = self._source_visibility(source, source_mask, gates)
        return DecodingState(
            caches=[KeyCache() for _ in range(self.decoder.num_caches)],
            num_sentences=source.shape[0],
            memory=self.decoder.project_memory(self._encode(source, visibility)),
            memory_visibility=visibility,
        )

    @torch.no_grad()
    def step(self, tokens: Int[Tensor, "s w"], state: DecodingState) -> Float[Tensor, "s w v"]:
        """Append a token to each hypothesis, in `state`, and give the logits of the next."""
        x = self.embedding(tokens, state.positions(tokens))
        return self.embedding.logits(self.decoder.step(x, state))

    def attention_blocks(self) -> dict[Role, list[AttentionBlock]]:
        """Return the attention of each role and layer."""
        return {
            "Enc": self.encoder.self_blocks(),
            "Cr": self.decoder.cross_blocks(),
            "Dec": self.decoder.self_blocks(),
        }

    def _source_visibility(
        self, source: Tensor, source_mask: Tensor | None, gates: Tensor | None
    ) -> Visibility:
        check_tokens("source", source, source_mask)
        gates = self.embedding.word_gates(source) if gates is None else gates
        return padded_visibility(source != PAD if source_mask is None else source_mask, gates=gates)

    def _encode(self, source: Tensor, visibility: Visibility) -> Tensor:
        x = self.embedding(source, visibility.positions(source.shape[1]))
        output: Tensor = self.encoder(x, visibility)
        return output
