"""ModelConfig: what all models' settings share; each model keeps its own beside it."""

import warnings
from dataclasses import replace
from functools import cache
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from torch import nn

from diffwindow.attention.base import Init, Rotary, check_heads
from diffwindow.messages import did_you_mean, quote
from diffwindow.models.layers import AttentionBlock, LayerOptions, Norm, Positions
from diffwindow.notation import Attention, Plan, Role, parse_attention

# no model is larger; a config that says so is damaged, and would take hours or all memory to build
Size = Annotated[int, Field(ge=1, le=1 << 24)]
Depth = Annotated[int, Field(ge=1, le=1000)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class ModelConfig(BaseModel):
    """Settings of a model, frozen; an unknown field is an error that names the nearest."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str
    """Which model the settings are of; each model's config fixes it."""
    vocab_size: Size
    """Tokens of the vocabulary; the corpus decides."""
    embed_dim: Size = 512
    """Width of the model."""
    ffn_dim: Size = 2048
    """Width of the feed-forward layers."""
    num_heads: Size = 8
    """Heads of each attention."""
    dropout: Probability = 0.1
    """On embeddings and on the output of each block."""
    attention_dropout: Probability = 0.0
    """On attention weights."""
    activation_dropout: Probability = 0.0
    """Inside the feed-forward layers."""
    norm: Norm = "post"
    """Normalise after each block, or before each and once at the end."""
    init: Init = "stacked"
    """Initialise an attention's projections as one matrix (the authors' way) or one by one."""
    positions: Positions = "sinusoidal"
    """Add sinusoids, rotate queries and keys by their positions, or neither."""
    rotary: Rotary = "scores"
    """What rotary positions rotate: queries and keys of the scores, of the pointers, or of both."""
    attention: str = "Global"
    """Which attention each role and layer gets; kept in canonical form."""
    window_tolerance: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Set windows to 0 where they are below."""

    def __init__(self, **fields: Any) -> None:
        """Check the fields; a mistake is a ValueError of one sentence."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ValueError(f"{type(self).__name__}: {first_mistake(error)}") from None

    @classmethod
    def stacks(cls) -> dict[Role, str]:
        """Name, for each role of the notation that the model has, the field with its number of layers."""
        raise NotImplementedError

    def build(self) -> nn.Module:
        """Build the model, freshly initialised."""
        raise NotImplementedError

    def count_parameters(self) -> int:
        """Count the parameters of the model without allocating them."""
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in self.build().parameters())

    @property
    def plan(self) -> Plan:
        """Return the attention of each role and layer."""
        # The notation's warnings were given when the config was made.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return parse_attention(self.attention)

    @property
    def has_phrases(self) -> bool:
        """Tell whether a layer has windows of given phrases, which the model then needs the gates of."""
        return any(term.attention.phrases == "given" for term in self.plan.terms)

    @property
    def learns_input_phrases(self) -> bool:
        """Tell whether an encoder has windows of learned phrases, and no layer those of given ones."""
        learned = (term.role == "Enc" and term.attention.phrases == "learned" for term in self.plan.terms)
        return any(learned) and not self.has_phrases

    @property
    def layer_options(self) -> LayerOptions:
        """Return what the layers need to know."""
        return LayerOptions(
            embed_dim=self.embed_dim,
            num_heads=self.num_heads,
            ffn_dim=self.ffn_dim,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            activation_dropout=self.activation_dropout,
            norm=self.norm,
            init=self.init,
            rotary=self.rotary if self.positions == "rotary" else None,
            window_tolerance=self.window_tolerance,
        )

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, fields: Any) -> Any:
        for name, value in fields.items() if isinstance(fields, dict) else ():
            if name not in cls.model_fields:
                raise ValueError(f"there is no field {name!r}; {did_you_mean(name, cls.model_fields)}")
            # pydantic would take it for 0 or 1
            if isinstance(value, bool):
                raise ValueError(f"{name}={value} is not a number or a name, as every setting of a model is")
        return fields

    @field_validator("attention")
    @classmethod
    def _canonical(cls, text: str) -> str:
        return str(parse_attention(text))

    @model_validator(mode="after")
    def _consistent(self) -> "ModelConfig":
        check_heads(self.embed_dim, self.num_heads)
        if self.embed_dim % 2 and self.positions == "sinusoidal":
            raise ValueError(f"embed_dim={self.embed_dim} is odd; sinusoidal positions need an even width")
        for term in self.plan.terms:
            if term.role not in self.stacks():
                roles = " and ".join(self.stacks())
                raise ValueError(f"{term} is for a role that this model does not have; it has {roles}")
        if self.rotary != "scores" and self.positions != "rotary":
            raise ValueError(f"rotary={self.rotary!r} is for positions='rotary', not {self.positions!r}")
        for role, field in self.stacks().items():
            options = replace(self.layer_options, rotary=None) if role == "Cr" else self.layer_options
            for attention in dict.fromkeys(self.plan.attentions(role, getattr(self, field))):
                _check_attention(role, attention, options)
        return self


# the rows of a table differ in few attentions
@cache
def _check_attention(role: Role, attention: Attention, options: LayerOptions) -> None:
    """Build an attention without memory for its weights; raise what its constructor raises, and name it."""
    try:
        with torch.device("meta"):
            AttentionBlock(options, attention)
    except ValueError as error:
        raise ValueError(f"{role}({attention}): {error}") from None


def first_mistake(error: ValidationError) -> str:
    """Return the first mistake as one sentence: where it is, what it is, and the value."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    place = ".".join(map(str, first["loc"]))
    if not place:
        return message
    return (
        f"{place}: {message}" if first["type"] == "missing" else f"{place}={quote(first['input'])}: {message}"
    )
