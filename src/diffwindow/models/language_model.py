"""LanguageModel: the decoder alone, with any self-attention in any layer."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffwindow.attention.cache import KeyCache
from diffwindow.attention.visibility import padded_visibility
from diffwindow.checks import check_tokens
from diffwindow.models.config import Depth, ModelConfig
from diffwindow.models.decoding_state import DecodingState
from diffwindow.models.layers import AttentionBlock, TokenEmbedding, TransformerStack
from diffwindow.models.loss import TokenLoss, token_log_probs
from diffwindow.models.model import Model
from diffwindow.notation import Role


class LanguageModelConfig(ModelConfig):
    """Settings of a LanguageModel; the defaults are the decoder of the paper's Transformer base."""

    model: Literal["language_model"] = "language_model"
    """Fixed."""
    num_layers: Depth = 6
    """Layers of the decoder."""

    @classmethod
    def stacks(cls) -> dict[Role, str]:
        """Name the field with the number of layers."""
        return {"Dec": "num_layers"}

    def build(self) -> "LanguageModel":
        """Build the model, freshly initialised."""
        return LanguageModel(self)


class LanguageModel(Model[LanguageModelConfig]):
    """Predict the next token: one embedding matrix for input and output, and a causal stack.

    Sequences padded on the right need no mask, for no real token looks there; for padding on the left pass
    one that is True at real tokens.

    >>> config = LanguageModelConfig(vocab_size=20, embed_dim=16, num_heads=2, attention="Dec(MW)")
    >>> LanguageModel(config)(torch.randint(4, 20, (3, 7))).shape
    torch.Size([3, 7, 20])
    """

    config_class = LanguageModelConfig

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(config.vocab_size, config.embed_dim, config.positions)
        attentions = config.plan.attentions("Dec", config.num_layers)
        self.decoder = TransformerStack(config.layer_options, attentions)

    def forward(
        self, tokens: Int[Tensor, "b n"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n v"]:
        """Return the logits of the token after each."""
        return self.embedding.logits(self.hidden(tokens, mask))

    def loss(
        self,
        tokens: Int[Tensor, "b n"],
        labels: Int[Tensor, "b n"],
        mask: Bool[Tensor, "b n"] | None = None,
        *,
        label_smoothing: float = 0.0,
    ) -> TokenLoss:
        """Score `labels`, the token after each of `tokens`, without holding the logits."""
        hidden = self.hidden(tokens, mask)
        return self.embedding.loss(hidden, labels, label_smoothing=label_smoothing)

    def nll_by_row(
        self, tokens: Int[Tensor, "b n"], labels: Int[Tensor, "b n"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, " b"]:
        """Return −log p of each row's labels."""
        return -token_log_probs(self.hidden(tokens, mask), self.embedding.logits, labels).sum(-1)

    def hidden(
        self, tokens: Int[Tensor, "b n"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n d"]:
        """Run the stack, up to what the logits are made from."""
        return self._run(tokens, mask, [])

    @torch.no_grad()
    def begin(
        self, prompt: Int[Tensor, "s n"], prompt_mask: Bool[Tensor, "s n"] | None = None
    ) -> DecodingState:
        """Read prompts, padded on the left if at all, for `step` to go on from with one hypothesis each.

        `step` takes the first token that is not in the state; to continue a text, begin with all of its
        tokens but the last, which may be none, and step with that.
        """
        if prompt_mask is not None and prompt_mask.all():
            prompt_mask = None
        if prompt_mask is not None and (prompt_mask[:, :-1] & ~prompt_mask[:, 1:]).any():
            raise ValueError("prompt_mask hides a token after a real one; pad prompts on the left")
        origin = None if prompt_mask is None else (~prompt_mask).sum(-1)
        caches = [KeyCache() for _ in range(self.decoder.num_caches)]
        if prompt.shape[1]:
            self._run(prompt, prompt_mask, caches)
        return DecodingState(caches, num_sentences=prompt.shape[0], origin=origin)

    @torch.no_grad()
    def step(self, tokens: Int[Tensor, "s w"], state: DecodingState) -> Float[Tensor, "s w v"]:
        """Append a token to each hypothesis, in `state`, and give the logits of the next."""
        x = self.embedding(tokens, state.positions(tokens))
        return self.embedding.logits(self.decoder.step(x, state))

    def attention_blocks(self) -> dict[Role, list[AttentionBlock]]:
        """Return the attention of each role and layer."""
        return {"Dec": self.decoder.self_blocks()}

    def _run(self, tokens: Tensor, mask: Tensor | None, caches: list[KeyCache]) -> Tensor:
        check_tokens("tokens", tokens, mask)
        visibility = padded_visibility(mask, is_causal=True)
        x = self.embedding(tokens, visibility.positions(tokens.shape[1]))
        output: Tensor = self.decoder(x, visibility, caches=caches)
        return output
