"""load(): a trained model, or an ensemble, for use from Python and by the command line."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from diffwindow.attention.window_module import use_window_rule
from diffwindow.checks import WindowRule, check_text
from diffwindow.data.store import Store
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.decoding import Decoding
from diffwindow.decoding.batches import ReportDone, map_in_batches, pad_rows, report_nothing
from diffwindow.decoding.ensemble import Ensemble, average_log_probs
from diffwindow.decoding.generate import GENERATION, continue_text
from diffwindow.decoding.translate import Output, translate_texts
from diffwindow.evaluation.evaluate import Evaluation, evaluate_model
from diffwindow.inference.alignment import By, Link, align_pair
from diffwindow.inference.attention import attention_trace
from diffwindow.inference.parsing import parse_text
from diffwindow.messages import quote
from diffwindow.models.classifier import Classifier
from diffwindow.models.export import GRAPHS, export_onnx
from diffwindow.models.int8 import round_weights
from diffwindow.models.language_model import LanguageModel
from diffwindow.models.loss import token_log_probs
from diffwindow.models.model import TOKENIZER, evaluating
from diffwindow.models.translator import Translator
from diffwindow.special_tokens import BOS, EOS
from diffwindow.tasks.model_folder import ModelFolder, find_model
from diffwindow.training.config import RUN_CONFIG
from diffwindow.training.run import Run
from diffwindow.view.trace import AttentionTrace

Folder = str | os.PathLike[str]
M = TypeVar("M", bound=nn.Module)
R = TypeVar("R")
INT8: Literal["int8"] = "int8"
# tokens per batch of `predict` and `score`
MAX_TOKENS = 4096


@dataclass(frozen=True)
class Prediction:
    """The likeliest label of a text, and the probability of each label."""

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True)
class Score:
    """log p of a sentence, natural logarithm, and of each of its tokens; the last is the end."""

    log_prob: float
    tokens: list[str]
    token_log_probs: list[float]


def open_model(path: Path, *, device: str = "auto", dtype: torch.dtype | None = None) -> ModelFolder:
    """Open the model of a run folder or a model folder on a device; "auto" takes a GPU if there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        # each process of torchrun has a GPU of its own
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    trained = ModelFolder.read(path)
    try:
        trained.model.to(device=device, dtype=dtype)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={device!r}: {str(error).splitlines()[0]}") from None
    return trained


def configured_decoding(path: Path) -> Decoding:
    """Return how a run was configured to decode; the defaults for a model folder."""
    if not (path / RUN_CONFIG).is_file():
        return Decoding()
    own = Run.open(path).config.search
    return Decoding(beam=own.beam, length_penalty=own.length_penalty)


def open_store(path: Path, data: Path | None = None) -> Store:
    """Open the corpus `data`, or that of a run folder."""
    if (path / RUN_CONFIG).is_file():
        return Run.open(path).open_store(data)
    if data is None:
        find_model(path)
        raise ValueError(
            f"{path} is not a run folder, so its corpus is unknown; give one: data=DIR, or --data DIR"
        )
    return Store.open(data)


def evaluate(
    path: Folder,
    *,
    data: Folder | None = None,
    split: str = "test",
    decoding: Decoding | None = None,
    window_rule: WindowRule = "soft",
    device: str = "auto",
) -> Evaluation:
    """Score the model of a run folder or a model folder on a split of its corpus, or of the store `data`.

    `metrics` holds the scores that the command prints. `decoding` is that of the run by default.
    `window_rule` is that of `diffwindow.use_window_rule`.
    """
    folder = Path(path)
    trained = open_model(folder, device=device)
    store = open_store(folder, None if data is None else Path(data))
    use_window_rule(trained.model, window_rule)
    return evaluate_model(trained, trained.task(store), split, decoding or configured_decoding(folder))


def load(
    path: Folder | Sequence[Folder],
    *,
    device: str = "auto",
    dtype: torch.dtype | Literal["int8"] | None = None,
    window_rule: WindowRule = "soft",
) -> "LoadedModel":
    """Load the model of a run folder or a model folder; several translators make an ensemble.

    "auto" takes a GPU if there is one. `dtype` converts the weights, as torch.bfloat16; "int8", for CPUs,
    rounds those of the linear layers and of the embedding to eight bits (see `round_weights`). `window_rule`
    is that of `diffwindow.use_window_rule`.
    """
    paths = list(path) if isinstance(path, Iterable) and not isinstance(path, str) else [path]
    for one in paths:
        if not isinstance(one, str | os.PathLike):
            raise TypeError(f"{one!r} is not the folder of a run or a model; pass its path, or several")
    if not paths:
        raise ValueError("there is no folder to load; name at least one")
    float_type = _float_type(dtype)
    if dtype == INT8:
        device = _device_of_int8(device)
    members = [open_model(Path(one), device=device, dtype=float_type) for one in paths]
    for member in members:
        member.model.requires_grad_(False)
        use_window_rule(member.model, window_rule)
        if dtype == INT8:
            round_weights(member.model)
    return LoadedModel(members, configured_decoding(Path(paths[0])))


def _float_type(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return the type to convert weights to, None to leave them; raise for one that they cannot have."""
    if dtype is None or dtype == INT8:
        return None
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype={dtype!r} is unknown; pass {INT8!r}, or a type such as torch.bfloat16")
    if not dtype.is_floating_point:
        raise ValueError(
            f"dtype={dtype} is not a floating-point type, which weights need; pass {INT8!r} for eight bits"
        )
    return dtype


def _device_of_int8(device: str) -> str:
    if device not in ("auto", "cpu"):
        raise ValueError(
            f"dtype={INT8!r} is for CPUs, and the device is {device!r}; pass device='cpu', or "
            "dtype=torch.bfloat16 to save memory there"
        )
    return "cpu"


class LoadedModel:
    """A trained model that takes and returns texts: list in, list out, in order, in batches by tokens.

    Gradients are never kept. `decoding` is how `translate` decodes by default, as the run was configured.
    """

    def __init__(self, members: Sequence[ModelFolder], decoding: Decoding | None = None) -> None:
        self.members = list(members)
        self.decoding = decoding or Decoding()
        if len(members) > 1:
            _check_ensemble(members)

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, which members of an ensemble share."""
        return self.members[0].tokenizer

    def translate(
        self, texts: Sequence[str], decoding: Decoding | None = None, *, progress: ReportDone = report_nothing
    ) -> list[str]:
        """Return the best translation of each text; an empty text stays empty."""
        return [best[0].text for best in self.translations(texts, decoding, progress=progress)]

    def translations(
        self, texts: Sequence[str], decoding: Decoding | None = None, *, progress: ReportDone = report_nothing
    ) -> list[list[Output]]:
        """Return the `decoding.n_best` translations of each text with their scores, best first."""
        model, moses = self._translator("translate"), self.members[0].record.moses
        return translate_texts(
            model, self.tokenizer, _texts(texts), decoding or self.decoding, moses, progress=progress
        )

    def predict(self, texts: Sequence[str], *, progress: ReportDone = report_nothing) -> list[Prediction]:
        """Return the label of each text, with the probability of every label."""
        model = self._only(Classifier, "predict labels")
        limit, names = self.members[0].record.options.max_length, self.members[0].labels
        rows = [[*ids, EOS][:limit] for ids in self.members[0].encode(_texts(texts), "text")]

        def work(indices: list[int]) -> list[Prediction]:
            logits = model(pad_rows([rows[index] for index in indices], device))
            return [_prediction(names, row) for row in logits.float().softmax(-1).tolist()]

        with evaluating(model) as device:
            return _by_length([rows], work, progress)

    def score(
        self, texts: Sequence[str | tuple[str, str]], *, progress: ReportDone = report_nothing
    ) -> list[Score]:
        """Return log p of each text under a language model, or of each (source, target) under a translator.

        A target is forced: each of its tokens is scored after those before it.
        """
        member = self.members[0]
        model: Translator | Ensemble | LanguageModel
        if isinstance(member.model, Translator):
            model = self._translator("score pairs")
            sources, targets = _pair_columns(texts)
            read = [[[*ids, EOS] for ids in member.encode(_texts(sources), "source")]]
            rows, opening = member.encode(_texts(targets), "target"), BOS
        else:
            model = self._only(LanguageModel, "score texts")
            read, rows, opening = [], member.encode(_texts(texts), "text"), member.opening
        models: list[Any] = model.translators() if isinstance(model, Ensemble) else [model]

        def work(indices: list[int]) -> list[Score]:
            chosen = [rows[index] for index in indices]
            sources = [pad_rows([field[index] for index in indices], device) for field in read]
            tokens = pad_rows([[opening, *ids] for ids in chosen], device)
            labels = pad_rows([[*ids, EOS] for ids in chosen], device)
            each = [
                token_log_probs(one.hidden(*sources, tokens), one.embedding.logits, labels) for one in models
            ]
            log_probs = average_log_probs(each)
            return [self._score_of(ids, row) for ids, row in zip(chosen, log_probs, strict=True)]

        with evaluating(model) as device:
            return _by_length([*read, rows], work, progress)

    def generate(self, prompt: str = "", decoding: Decoding | None = None) -> list[str]:
        """Return texts that continue a prompt, likeliest first; one of up to 50 tokens by default."""
        model, member = self._only(LanguageModel, "generate"), self.members[0]
        return continue_text(
            model,
            member.tokenizer,
            check_text("prompt", prompt),
            decoding or GENERATION,
            moses=member.record.moses.get("text"),
            running_text=member.record.options.block_size is not None,
        )

    def align(
        self, pairs: Sequence[tuple[str, str]], *, by: By = "attention", layer: int | None = None
    ) -> list[list[Link]]:
        """Return links (source word, target word) of each pair of texts, see `align_pair`; one by one."""
        self._only(Translator, "align")
        sources, targets = _pair_columns(pairs)
        texts = zip(_texts(sources), _texts(targets), strict=True)
        return [align_pair(self.members[0], *pair, by=by, layer=layer) for pair in texts]

    def parse(self, texts: Sequence[str]) -> list[str]:
        """Return the tree of each text, bracketed, that a model with learned phrases finds in it."""
        if len(self.members) > 1:
            raise ValueError("an ensemble has no phrases of its own; load one of its models")
        return [parse_text(self.members[0], text) for text in _texts(texts)]

    def export(self, folder: Folder) -> list[Path]:
        """Write a translator's graphs as ONNX (see `export_onnx`) and its tokenizer; return the files."""
        model, target = self._only(Translator, "export"), Path(folder)
        export_onnx(model, target)
        self.tokenizer.save(target / TOKENIZER)
        return [target / name for name in (*GRAPHS, TOKENIZER)]

    def attention(self, text: str, target: str | None = None) -> AttentionTrace:
        """Trace where the model looks in a text; a translator reads `target`, or its own translation."""
        if len(self.members) > 1:
            raise ValueError("an ensemble has no attention of its own; load one of its models")
        return attention_trace(self.members[0], text, target=target, decoding=self.decoding)

    def _score_of(self, ids: Sequence[int], log_probs: Tensor) -> Score:
        by_token = log_probs[: len(ids) + 1].tolist()
        return Score(sum(by_token), self.tokenizer.tokens([*ids, EOS]), by_token)

    def _translator(self, purpose: str) -> Translator | Ensemble:
        if len(self.members) == 1:
            return self._only(Translator, purpose)
        return Ensemble([member.model for member in self.members if isinstance(member.model, Translator)])

    def _only(self, kind: type[M], purpose: str) -> M:
        if len(self.members) > 1:
            raise ValueError(f"an ensemble of translators does not {purpose}; load one model")
        member = self.members[0]
        if not isinstance(member.model, kind):
            raise ValueError(f"{member.path} holds a {member.entry.noun}, which does not {purpose}")
        return member.model


def _check_ensemble(members: Sequence[ModelFolder]) -> None:
    first = members[0]
    for other in members:
        if not isinstance(other.model, Translator):
            raise ValueError(f"{other.path} holds a {other.entry.noun}; an ensemble has translators")
        if other.vocabulary != first.vocabulary:
            raise ValueError(f"{other.path} has another vocabulary than {first.path}; an ensemble shares one")


def _texts(texts: Sequence[object]) -> list[str]:
    _check_list(texts)
    return [check_text(f"text {index}", text) for index, text in enumerate(texts)]


def _check_list(texts: object) -> None:
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise TypeError(f"the texts are {quote(texts)}; pass a list of texts")


def _pair_columns(
    pairs: Sequence[str | tuple[str, str]] | Sequence[tuple[str, str]],
) -> tuple[list[str], list[str]]:
    _check_list(pairs)
    columns: tuple[list[str], list[str]] = [], []
    for index, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"item {index} is not a pair; a translator reads (source, target)")
        for column, text in zip(columns, pair, strict=True):
            column.append(text)
    return columns


def _by_length(
    fields: Sequence[Sequence[Sequence[int]]], work: Callable[[list[int]], list[R]], progress: ReportDone
) -> list[R]:
    if not fields[0]:
        return []
    lengths = [np.array([len(row) + 1 for row in field], np.int64) for field in fields]
    return map_in_batches(lengths, work, max_tokens=MAX_TOKENS, progress=progress)


def _prediction(names: Sequence[str], probabilities: Sequence[float]) -> Prediction:
    by_name = dict(zip(names, probabilities, strict=True))
    return Prediction(max(by_name, key=by_name.__getitem__), by_name)
