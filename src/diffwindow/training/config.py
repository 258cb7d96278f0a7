"""What a run is: its data, model, loss and loop, typed; a key that does not exist is an error."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from diffwindow.tasks.task import TaskOptions

Count = Annotated[int, Field(ge=1)]
Amount = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Momentum = Annotated[float, Field(ge=0.0, lt=1.0)]

Kind = Literal["translation", "classification", "lm"]
Schedule = Literal["inverse_sqrt", "constant", "linear", "cosine"]
Precision = Literal["fp32", "bf16", "fp16", "auto"]
Final = Literal["last", "best", "average"]


def _file_name(name: str) -> str:
    """Return a name that can be that of a folder; raise for one that leads elsewhere."""
    if not name.strip() or name.startswith(".") or any(not c.isprintable() or c in "/\\:" for c in name):
        raise ValueError("a name has no slash, no colon, and no dot at its beginning")
    return name


class Section(BaseModel):
    """A frozen part of the settings that knows all of its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataConfig(Section):
    """Which corpus; `path` is a prepared store or raw files, `rows` and `seed` shape a generated one."""

    corpus: str
    path: str | None = None
    rows: Count | None = None
    seed: int = 0


class TaskConfig(TaskOptions):
    """The kind of task, and its options."""

    kind: Kind

    @property
    def options(self) -> TaskOptions:
        """Give the options without the kind."""
        return TaskOptions(**self.model_dump(exclude={"kind"}))


class TrainConfig(Section):
    """The loop. Updates, not epochs, are its clock.

    An update takes `accumulate` batches in each process, each of at most `max_tokens` padded tokens.
    `patience` counts validations without a better `watch`; None never stops early. `span_penalty` is the
    cost per token of each key of a layer's mean learned span (`Span`); other attentions have none.
    """

    max_updates: Count
    seed: int = 1

    max_tokens: Count = 4096
    max_rows: Count | None = None
    accumulate: Count = 1
    too_long: Literal["drop", "error"] = "drop"

    lr: Positive = 7e-4
    schedule: Schedule = "inverse_sqrt"
    warmup: Amount = 4000
    warmup_from: NonNegative = 1e-7
    final_lr: NonNegative = 0.0
    betas: tuple[Momentum, Momentum] = (0.9, 0.98)
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    clip_norm: Positive | None = None
    span_penalty: NonNegative = 2e-6

    device: str = "auto"
    precision: Precision = "fp32"
    compile: bool = False
    deterministic: bool = True

    log_every: Count = 100
    valid_every: Count | None = 1000
    watch: str = "loss"
    patience: Count | None = None
    save_every: Count = 1000
    keep_last: Count = 5
    final: Final = "last"
    average_last: Count = 5

    on_bad_loss: Literal["stop", "skip"] = "stop"
    max_loss: Positive = 100.0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.final == "average" and self.keep_last < self.average_last:
            raise ValueError(
                f"train.average_last={self.average_last} needs as many checkpoints, but "
                f"train.keep_last={self.keep_last}"
            )
        if self.valid_every is None and (self.final == "best" or self.patience):
            raise ValueError(
                "train.final=best and train.patience need validations; set train.valid_every, "
                "or train.final=last without patience"
            )
        return self


class SearchConfig(Section):
    """How a trained model decodes; what `evaluate` and `translate` take when not told otherwise."""

    beam: Count = 5
    length_penalty: float = 0.6


class Config(Section):
    """Everything that decides what a run does.

    `model` holds the fields of the task's model config that the corpus does not decide.
    """

    name: Annotated[str, AfterValidator(_file_name)]
    attention: str = "Global"
    data: DataConfig
    task: TaskConfig
    model: dict[str, Any] = Field(default_factory=dict)
    train: TrainConfig
    search: SearchConfig = SearchConfig()

    def with_data(self, path: str) -> Config:
        """Give the same settings with the corpus at another place."""
        return self.model_copy(update={"data": self.data.model_copy(update={"path": path})})

    @property
    def model_settings(self) -> dict[str, Any]:
        """Give the model's fields, the attention among them."""
        return {**self.model, "attention": self.attention}
