"""Fit windows to a causal language model as it is: read a share of the keys, lose little."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, cast, get_args

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from diffwindow.checks import check_number, check_positive, check_whole
from diffwindow.hf.span_costs import RecordedCosts, early_queries, record_costs, span_shares
from diffwindow.hf.span_fit import fit_spans
from diffwindow.hf.windows import add_spans, causal_places, remove_windows
from diffwindow.messages import check_choice, quote
from diffwindow.models.span_adapter import Per, SpanAdapter, Spans, SpanSettings
from diffwindow.progress import SILENT, Progress

SPANS: tuple[str, ...] = get_args(Spans)
PERS: tuple[str, ...] = get_args(Per)
# One block in so many is held out, to choose among allocations and to measure.
HELD_OUT = 8
# Costs are clipped at these quantiles of each head; None leaves them. Held-out text decides.
QUANTILES = (None, 0.999)
BAR = 40
# The types that token ids may have.
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32)


@dataclass(frozen=True)
class Measurement:
    """The loss per token of some text, and the mean share of visible keys in each window, by layer."""

    loss: float
    shares: tuple[tuple[float, ...], ...] = ()

    @property
    def share(self) -> float:
        """Return the mean share over all windows."""
        flat = [share for layer in self.shares for share in layer]
        return sum(flat) / len(flat) if flat else 1.0


@dataclass(frozen=True)
class FittedWindows:
    """What was fitted, and how it does on held-out text; print it, or draw it.

    `before` and `after` are measured without and with the windows, `static` with one span for all queries of
    a window; `predicted` is by how much the costs said that the loss per token would rise.
    """

    settings: SpanSettings
    asked: float
    before: Measurement
    static: Measurement
    after: Measurement
    predicted: float
    tokens: int
    held_out: int

    @property
    def share(self) -> float:
        """Return the measured mean share of visible keys that a query reads."""
        return self.after.share

    def __str__(self) -> str:
        lines = [f"{'layer':>5}  share of the keys that are read"]
        for number, shares in enumerate(self.after.shares):
            share = sum(shares) / len(shares)
            lines.append(f"{number:>5}  {share:5.2f}  {'█' * round(BAR * share)}".rstrip())
        rise, static = (one.loss - self.before.loss for one in (self.after, self.static))
        lines += [
            f"{self.settings}, fitted to {self.tokens:,} tokens in contexts of {self.settings.block:,}",
            f"on {self.held_out:,} held-out tokens: share {self.share:.3f} ({self.asked:g} asked), "
            f"loss per token {self.before.loss:.4f} -> {self.after.loss:.4f}, {rise:+.4f} "
            f"({self.predicted:+.4f} predicted)",
        ]
        if self.settings.spans != "head":
            lines.append(f"spans=head would read {self.static.share:.3f} at {static:+.4f}")
        return "\n".join(lines)

    def draw(self, path: str | Path) -> None:
        """Draw the mean share of each window, layers by heads or groups, as a picture."""
        from matplotlib.figure import Figure

        from diffwindow.view.figures import save_figure

        shares = self.after.shares
        figure = Figure(figsize=(1.5 + 0.3 * len(shares[0]), 1.2 + 0.2 * len(shares)), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(shares, vmin=0.0, vmax=1.0, aspect="auto", cmap="viridis")
        axes.set_xlabel("head" if self.settings.per == "head" else "group of heads")
        axes.set_ylabel("layer")
        figure.colorbar(image, label="share of the keys that are read")
        save_figure(figure, Path(path))


def fit_windows(
    model: PreTrainedModel,
    texts: str | Sequence[str] | Sequence[int] | Int[Tensor, " t"],
    share: float = 0.4,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    spans: Spans = "query",
    per: Per = "head",
    sinks: int = 4,
    tokens: int = 16_384,
    block: int = 1024,
    seed: int = 0,
    progress: Progress = SILENT,
) -> FittedWindows:
    """Fit windows to a causal model in place: queries read a share of the keys, and the loss rises little.

    Each window ends at its query and always has the first keys as well. How far back it reaches is chosen by
    what it costs: ½ (g · Δo)², with g the gradient of the loss at the output of a head and Δo its change. One
    backward pass over the text gives the costs of all spans. The weights of the model stay as they are;
    `remove_windows` gives it back, `save_windows` and `load_windows` keep the windows.

    Args:
        model: A causal language model, such as Llama, Qwen or GPT-2.
        texts: One text or several, which need `tokenizer`, or token ids; several texts are joined.
        share: The mean share of the visible keys that a query may read, above 0 and at most 1.
        tokenizer: What turns texts into token ids.
        spans: "query" chooses a span for each query, linear in the head's query; "query-mlp" also by a small
            network over the queries of all heads; "head" chooses one for all queries.
        per: "head", or "kv_group": one window for all heads that share keys, which is what decoding reads.
        sinks: How many first keys every window has.
        tokens: How much of the text to use; an eighth is held out to choose and to measure.
        block: The length of the contexts that it is cut into: take that of your own. In longer ones spans
            stay as they are, so that queries read a smaller share.
        seed: Of the fit.
        progress: Shows how far it is, as `diffwindow.progress.show_progress()` does.
    """
    check_arguments(share, spans, per, sinks, tokens, block, seed)
    places = causal_places(model)
    blocks = cut_blocks(texts, tokenizer, tokens, block).to(model.device)
    check_model(model, blocks)
    held_out = max(1, len(blocks) // HELD_OUT)
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        # a caller may have switched gradients off, or autocast on
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(model.device.type, enabled=False),
        ):
            recorded = record_costs(model, places, blocks[:-held_out], sinks=sinks, progress=progress)
            return fit_recorded(
                model, recorded, blocks[-held_out:], share, spans=spans, per=per, seed=seed, progress=progress
            )
    except BaseException:
        remove_windows(model)
        raise
    finally:
        for module, mode in training.items():
            module.training = mode


def fit_recorded(
    model: PreTrainedModel,
    recorded: RecordedCosts,
    held_out: Int[Tensor, "n t"],
    share: float,
    *,
    spans: Spans,
    per: Per,
    seed: int = 0,
    progress: Progress = SILENT,
) -> FittedWindows:
    """Fit windows to costs that were recorded, and put them into the model.

    Held-out blocks choose where to clip the costs: by the spans of heads, which are quick to fit.
    """
    settings = SpanSettings(
        spans=spans, per=per, sinks=recorded.sinks, choices=recorded.choices, block=recorded.block
    )
    num_groups = causal_places(model)[0].num_groups
    before = measure(model, held_out)
    add_spans(model, settings.model_copy(update={"spans": "head"}))
    tried = []
    for number, quantile in enumerate(QUANTILES):
        allocation = fit_spans(
            recorded, share, spans="head", per=per, num_groups=num_groups, quantile=quantile
        )
        set_spans(model, allocation.states)
        tried.append((measure(model, held_out), allocation, quantile))
        progress("choose", (number + 1) / len(QUANTILES))
    static, allocation, quantile = min(tried, key=lambda one: one[0].loss)
    after = static
    if spans != "head":
        allocation = fit_spans(
            recorded, share, spans=spans, per=per, num_groups=num_groups, quantile=quantile, seed=seed,
            progress=progress,
        )  # fmt: skip
        remove_windows(model)
        add_spans(model, settings)
    set_spans(model, allocation.states)
    if spans != "head":
        after = measure(model, held_out)
    return FittedWindows(
        settings,
        share,
        before,
        static,
        after,
        allocation.predicted,
        tokens=recorded.blocks * recorded.block,
        held_out=held_out.numel(),
    )


def set_spans(model: PreTrainedModel, states: Sequence[dict[str, Tensor]]) -> None:
    """Give the windows of each layer their parameters."""
    for window, state in zip(span_adapters(model), states, strict=True):
        window.load_state_dict(state)


def span_adapters(model: nn.Module) -> list[SpanAdapter]:
    """Return the fitted windows of a model, layer by layer."""
    return [module for module in model.modules() if isinstance(module, SpanAdapter)]


@torch.no_grad()
def measure(model: PreTrainedModel, blocks: Int[Tensor, "n t"]) -> Measurement:
    """Return the loss per token of blocks, and the share of the keys that their queries read."""
    windows, losses, shares = span_adapters(model), [], []
    for block in blocks:
        logits = model(block[None], use_cache=False).logits[0, :-1]
        losses.append(float(nn.functional.cross_entropy(logits.float(), block[1:])))
        shares.append([cast(Tensor, window.share) for window in windows])
    if not windows:
        return Measurement(sum(losses) / len(losses))
    means = [torch.stack([row[layer] for row in shares]).mean(0).tolist() for layer in range(len(windows))]
    return Measurement(sum(losses) / len(losses), tuple(map(tuple, means)))


def cut_blocks(
    texts: str | Sequence[str] | Sequence[int] | Int[Tensor, " t"],
    tokenizer: PreTrainedTokenizerBase | None,
    tokens: int,
    block: int,
) -> Int[Tensor, "n t"]:
    """Return the first tokens of texts as blocks; what is left at the end is dropped.

    >>> cut_blocks(range(7), None, tokens=6, block=3)
    tensor([[0, 1, 2],
            [3, 4, 5]])
    """
    ids = _token_ids(texts, tokenizer, tokens)
    count = min(len(ids), tokens) // block
    if count < 2:
        raise ValueError(
            f"the texts have {min(len(ids), tokens):,} tokens, and two blocks of {block:,} are needed, one "
            "of them held out; give more text, more tokens=, or a smaller block="
        )
    return ids[: count * block].view(count, block)


def check_model(model: PreTrainedModel, blocks: Int[Tensor, "n t"]) -> None:
    """Raise if the blocks have tokens or positions that the model does not have, or it has no gradients."""
    name, config = type(model).__name__, model.config.get_text_config()
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise ValueError(
            f"{name} was loaded under torch.inference_mode(), which leaves no gradients to fit windows by; "
            "load it outside"
        )
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and blocks.shape[1] > positions:
        raise ValueError(
            f"block={blocks.shape[1]} is longer than the {positions:,} positions of {name}; pass a smaller "
            "block="
        )
    known = cast(nn.Embedding, model.get_input_embeddings()).num_embeddings
    if unknown := blocks[(blocks < 0) | (blocks >= known)].tolist():
        raise ValueError(
            f"the texts have token {unknown[0]}, and {name} knows tokens 0 to {known - 1:,}; use its own "
            "tokenizer"
        )


def _token_ids(
    texts: str | Sequence[str] | Sequence[int] | Int[Tensor, " t"],
    tokenizer: PreTrainedTokenizerBase | None,
    tokens: int,
) -> Int[Tensor, " t"]:
    """Turn texts into token ids, as many as are needed; ids stay as they are."""
    if isinstance(texts, Tensor):
        if texts.dim() != 1 or texts.dtype not in INTEGERS or texts.layout != torch.strided:
            raise ValueError(
                f"texts is a {texts.dtype} tensor of shape {tuple(texts.shape)}; pass a row of token ids"
            )
        return texts.long()
    if isinstance(texts, (bytes, bytearray, Mapping)):
        raise TypeError(
            f"texts={quote(texts)} is a {type(texts).__name__}; pass strings or a row of token ids"
        )
    parts: list[Any] = [texts] if isinstance(texts, str) or not isinstance(texts, Iterable) else [*texts]
    # numpy's integers too, but neither truth values nor a number alone
    if isinstance(texts, Iterable) and all(
        isinstance(x, Integral) and not isinstance(x, bool) for x in parts
    ):
        if huge := [one for one in parts if not -(2**63) <= one < 2**63]:
            raise ValueError(f"the texts have token {huge[0]}, which no model knows")
        return torch.tensor([int(one) for one in parts], dtype=torch.long)
    if not all(isinstance(one, str) for one in parts):
        raise TypeError(f"texts={quote(texts)} are neither strings nor token ids")
    if tokenizer is None:
        raise ValueError(
            "texts are strings; pass tokenizer=, as AutoTokenizer.from_pretrained gives it, or token ids"
        )
    ids: list[int] = []
    for text in parts:
        ids += tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) >= tokens:
            break
    return torch.tensor(ids, dtype=torch.long)


def check_arguments(
    share: float, spans: str, per: str, sinks: int, tokens: int, block: int, seed: int
) -> None:
    """Raise if an argument of `fit_windows` is not one it could have."""
    check_number("share", share)
    if not 0.0 < share <= 1.0:
        raise ValueError(
            f"share={share:g} is not above 0 and at most 1; it is the part of the keys that are read"
        )
    check_choice("spans", spans, SPANS)
    check_choice("per", per, PERS)
    check_whole("sinks", sinks)
    if sinks < 0:
        raise ValueError(f"sinks={sinks} is negative; 0 shows no first keys")
    check_positive("tokens", tokens)
    check_positive("block", block)
    if block < sinks + 2:
        raise ValueError(f"block={block} leaves no key to hide beside sinks={sinks} and the query; use more")
    check_whole("seed", seed)
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed={seed} does not fit into 64 bits")
    if tokens < 2 * block:
        raise ValueError(
            f"tokens={tokens:,} do not hold two blocks of {block:,}, one of them held out; use more tokens= "
            "or a smaller block="
        )
    shares = span_shares(torch.arange(block), (1,), sinks)[:, 0]
    # as fits count them
    shares[: early_queries(block)] = 1.0
    if share < (least := float(shares.mean())):
        raise ValueError(
            f"share={share:g} is out of reach: the query itself and sinks={sinks} are {least:.3f} of the "
            f"keys in contexts of {block:,}"
        )
