"""TaskOptions: what a task takes beside its corpus and its model."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class TaskOptions(BaseModel):
    """Options of a task, frozen; one that the task has no use for is an error of `task_of`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    # classification: only the first tokens of a text are read; None reads all
    max_length: Annotated[int, Field(ge=1)] | None = None
    # language modelling: running text in blocks of so many tokens; None takes each row by itself
    block_size: Annotated[int, Field(ge=1)] | None = None
