"""TaskOptions, apart from the tasks so that a config is checked without importing torch."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class TaskOptions(BaseModel):
    """Settings of the loss and of the examples, not of the model; each task knows which are its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of the target probability that is spread over the vocabulary."""
    block_size: Annotated[int, Field(ge=1)] | None = None
    """Cut a language model's text into blocks of so many tokens; null: a line is an example."""
    max_length: Annotated[int, Field(ge=1)] | None = None
    """Let a classifier read only the first tokens of a text; null: all."""
    bleu_sentences: Annotated[int, Field(ge=1)] | None = None
    """Compute BLEU of a validation on so many sentences; null: on all."""
    class_weights: Literal["balanced"] | None = None
    """`balanced` weighs a class in the loss by examples / (classes · its examples)."""
    valid_tokens: Annotated[int, Field(ge=1)] = 4096
    """Largest batch of a validation, in padded tokens."""


def options_of(task: object) -> TaskOptions:
    """Return the options of a task, which are its attributes of the same names."""
    return TaskOptions(
        **{name: value for name, value in vars(task).items() if name in TaskOptions.model_fields}
    )
