"""Classifier: an encoder, the mean of its real tokens, and a linear layer."""

from typing import Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffwindow.attention.visibility import padded_visibility
from diffwindow.checks import check_tokens
from diffwindow.models.config import Depth, ModelConfig, Size
from diffwindow.models.layers import AttentionBlock, TokenEmbedding, TransformerStack
from diffwindow.models.model import Model
from diffwindow.notation import Role
from diffwindow.special_tokens import PAD


class ClassifierConfig(ModelConfig):
    """Settings of a Classifier; the defaults are the paper's tiny encoder."""

    model: Literal["classifier"] = "classifier"
    """Fixed."""
    embed_dim: Size = 128
    ffn_dim: Size = 512
    num_heads: Size = 4
    num_layers: Depth = 2
    """Layers of the encoder."""
    num_classes: Size = 2
    """Classes; the corpus decides."""

    @classmethod
    def stacks(cls) -> dict[Role, str]:
        """Name the field with the number of layers."""
        return {"Enc": "num_layers"}

    def build(self) -> "Classifier":
        """Build the model, freshly initialised."""
        return Classifier(self)


class Classifier(Model[ClassifierConfig]):
    """Classify a sequence by the mean of what the encoder gives for its real tokens.

    A mask is True at real tokens; where it is left out, they are those that are not padding (token 0). An
    attention with phrases needs gates: the probability that a phrase ends between a token and the next.

    >>> import torch
    >>> config = ClassifierConfig(vocab_size=20, num_classes=3, attention="Enc(AW)")
    >>> Classifier(config)(torch.randint(4, 20, (5, 7))).shape
    torch.Size([5, 3])
    """

    config_class = ClassifierConfig

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(
            config.vocab_size, config.embed_dim, config.positions, word_starts=config.learns_input_phrases
        )
        attentions = config.plan.attentions("Enc", config.num_layers)
        self.encoder = TransformerStack(config.layer_options, attentions)
        self.output = nn.Linear(config.embed_dim, config.num_classes)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        mask: Bool[Tensor, "b n"] | None = None,
        gates: Float[Tensor, "b gaps"] | None = None,
    ) -> Float[Tensor, "b classes"]:
        """Return the logits of the classes."""
        hidden = self.encode(tokens, mask, gates)
        real = (tokens != PAD if mask is None else mask)[:, :, None]
        mean = hidden.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp(min=1)
        logits: Tensor = self.output(mean)
        return logits

    def encode(
        self,
        tokens: Int[Tensor, "b n"],
        mask: Bool[Tensor, "b n"] | None = None,
        gates: Float[Tensor, "b gaps"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """Run the encoder."""
        check_tokens("tokens", tokens, mask)
        gates = self.embedding.word_gates(tokens) if gates is None else gates
        visibility = padded_visibility(tokens != PAD if mask is None else mask, gates=gates)
        x = self.embedding(tokens, visibility.positions(tokens.shape[1]))
        encoded: Tensor = self.encoder(x, visibility)
        return encoded

    def attention_blocks(self) -> dict[Role, list[AttentionBlock]]:
        """Return the attention of each role and layer."""
        return {"Enc": self.encoder.self_blocks()}
