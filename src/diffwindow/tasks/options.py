"""TaskOptions, apart from the tasks so that a config is checked without importing torch."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class TaskOptions(BaseModel):
    """Settings of the loss and of the examples, not of the model; each task knows which are its own.

    `block_size` cuts a language model's running text into blocks; without it, each line is an example.
    `max_length` lets a classifier read only the first tokens of a text; without it, it reads all.
    `bleu_sentences` bounds the sentences that BLEU is computed on in a validation.
    `class_weights="balanced"` weighs a class in the training loss by examples / (classes · its examples), so
    that rare classes count as much as frequent ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    block_size: Annotated[int, Field(ge=1)] | None = None
    max_length: Annotated[int, Field(ge=1)] | None = None
    bleu_sentences: Annotated[int, Field(ge=1)] | None = None
    class_weights: Literal["balanced"] | None = None
    valid_tokens: Annotated[int, Field(ge=1)] = 4096
