"""TaskOptions, apart from the tasks so that a config is checked without importing torch."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class TaskOptions(BaseModel):
    """Settings of the loss and of the examples, not of the model; each task knows which are its own.

    `block_size` cuts a language model's running text into blocks; without it, each line is an example.
    `max_length` lets a classifier read only the first tokens of a text; without it, it reads all.
    `bleu_sentences` bounds the sentences that BLEU is computed on in a validation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    block_size: Annotated[int, Field(ge=1)] | None = None
    max_length: Annotated[int, Field(ge=1)] | None = None
    bleu_sentences: Annotated[int, Field(ge=1)] | None = None
    valid_tokens: Annotated[int, Field(ge=1)] = 4096
