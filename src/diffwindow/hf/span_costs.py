"""What windows of each span would cost a model, from one backward pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from diffwindow.hf.families import Place
from diffwindow.hf.windows import install, remove_windows
from diffwindow.models.span_adapter import Rotation, unrotate
from diffwindow.progress import SILENT, Progress

# The spans among which windows are chosen, as far as they are shorter than the context.
CHOICES = (1, 2, 4, *(size for power in range(3, 16) for size in (2**power, 3 * 2 ** (power - 1))))
# Queries that are tabulated at once.
ROWS = 512
# How many queries are left out at the start of a block of at least so many.
EARLY, LONG = 16, 512


@dataclass(frozen=True)
class LayerCosts:
    """The queries of a layer, before rotation, and what each span costs each window."""

    q: Float[Tensor, "h n e"]
    costs: Float[Tensor, "u n c"]


@dataclass(frozen=True)
class RecordedCosts:
    """The costs of all layers, the positions of the queries and the spans; the last is everything."""

    layers: tuple[LayerCosts, ...]
    position: Int[Tensor, " n"]
    choices: tuple[int, ...]
    sinks: int
    block: int
    blocks: int

    def shares(self) -> Float[Tensor, "n c"]:
        """Return the share of visible keys that each query reads with each span."""
        return span_shares(self.position, self.choices, self.sinks)


def span_shares(position: Int[Tensor, " n"], choices: Sequence[int], sinks: int) -> Float[Tensor, "n c"]:
    """Return the share of visible keys in windows of each span, min(w + S, i + 1) / (i + 1), and of all keys.

    >>> span_shares(torch.tensor([0, 9]), (1, 4), sinks=2)
    tensor([[1.0000, 1.0000, 1.0000],
            [0.3000, 0.6000, 1.0000]])
    """
    visible = position[:, None] + 1
    reach = torch.tensor([*choices, torch.iinfo(torch.int32).max], device=position.device) + sinks
    return torch.minimum(reach, visible).float() / visible


def span_costs(
    weights: Float[Tensor, "... n k"],
    gains: Float[Tensor, "... n k"],
    position: Int[Tensor, " n"],
    choices: Sequence[int],
    sinks: int,
) -> Float[Tensor, "... n c"]:
    """Return the cost of windows of each span for queries with causal attention weights p.

    The cost is ½ (g · Δo)², with g the gradient of the loss at the head's output o and Δo its change when
    only the last w keys and the first S are kept and their weights normalised. `gains` are g · v for each
    key. Sums of p and of p · gains from the last key on give all spans at once. They do not cancel: what is
    kept may hold a millionth of the weight.
    """
    reach = torch.tensor(choices, device=position.device)
    start = position[:, None] - reach + 1
    from_back = (weights.shape[-1] - 1 - start.clamp(min=0)).expand(*weights.shape[:-2], -1, -1)

    def kept(values: Tensor) -> Tensor:
        """Return the sum over the keys of each window and the first keys, which it does not reach."""
        return values.flip(-1).cumsum(-1).gather(-1, from_back) + values[..., :sinks].sum(-1, keepdim=True)

    gain = weights * gains
    mass = kept(weights).clamp(min=torch.finfo(weights.dtype).tiny)
    change = kept(gain) / mass - gain.sum(-1, keepdim=True)
    # a window that meets the first keys hides nothing
    costs = change.square().mul(0.5).masked_fill(start <= sinks, 0.0)
    return nn.functional.pad(costs, (0, 1))


class Recorder(nn.Module):
    """The child of an attention module that attends as before, and tabulates costs in the backward pass."""

    def __init__(self, choices: Sequence[int], sinks: int, position: Int[Tensor, " n"]) -> None:
        super().__init__()
        self.choices, self.sinks, self.position = choices, sinks, position
        self.rotation: Rotation | None = None
        self.recorded: list[LayerCosts] = []

    def forward(
        self,
        q: Float[Tensor, "b h q e"],
        k: Float[Tensor, "b g k e"],
        v: Float[Tensor, "b g k w"],
        *,
        attn_mask: Tensor | None,
        attn_bias: Tensor | None,
        is_causal: bool,
        scale: float | None,
        dropout_p: float,
    ) -> Float[Tensor, "b h q w"]:
        """Attend causally, to every key."""
        assert attn_mask is None, "a block has no padding"
        heads = nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=True
        )
        if heads.requires_grad:
            rotation = self.rotation
            q, k, v = q.detach(), k.detach(), v.detach()
            heads.register_hook(lambda gradient: self._tabulate(q, k, v, gradient, rotation, scale))
        return heads

    @torch.no_grad()
    def _tabulate(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gradient: Tensor,
        rotation: Rotation | None,
        scale: float | None,
    ) -> None:
        """Keep the costs of the queries; some of a group of heads at a time bound the memory."""
        groups = k.shape[1]
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        unrotated = q.float() if rotation is None else unrotate(q.float(), *rotation)
        costs = []
        for rows in self.position.split(ROWS):
            seen = int(rows[-1]) + 1
            hidden = torch.arange(seen, device=q.device) > rows[:, None]
            of_rows = []
            for of_group, of_gradient, key, value in zip(
                q[0].chunk(groups), gradient[0].chunk(groups), k[0, :, :seen], v[0, :, :seen], strict=True
            ):
                scores = of_group[:, rows].float() @ key.float().mT * scale
                weights = scores.masked_fill_(hidden, float("-inf")).softmax(-1)
                gains = of_gradient[:, rows].float() @ value.float().mT
                of_rows.append(span_costs(weights, gains, rows, self.choices, self.sinks))
            costs.append(torch.cat(of_rows))
        self.recorded.append(LayerCosts(narrow(unrotated[0][:, self.position]), torch.cat(costs, dim=1)))


def record_costs(
    model: PreTrainedModel,
    places: Sequence[Place],
    blocks: Int[Tensor, "n t"],
    *,
    sinks: int,
    progress: Progress = SILENT,
) -> RecordedCosts:
    """Run each block forward and backward once, with the parameters frozen, and tabulate all costs.

    Args:
        model: A causal language model, whose windows, if it has any, were removed.
        places: Its attention modules.
        blocks: Tokens; each row is a text of its own.
        sinks: How many first keys every window sees.
        progress: Shows how far it is.
    """
    length = blocks.shape[1]
    choices = tuple(choice for choice in CHOICES if choice + sinks < length)
    position = torch.arange(early_queries(length), length, device=blocks.device)
    with _recording(model, places, choices, sinks, position) as recorders:
        for number, block in enumerate(blocks):
            _backward(model, block)
            if not all(bool(one.recorded[-1].costs.isfinite().all()) for one in recorders):
                raise ValueError(
                    f"{type(model).__name__} has infinite or undefined gradients in block {number + 1} of "
                    f"the text, in {model.dtype}; look for NaN in its weights, or load it with "
                    "dtype=torch.float32"
                )
            progress("record", (number + 1) / len(blocks))
        layers = tuple(
            LayerCosts(
                torch.cat([one.q for one in recorder.recorded], dim=1),
                torch.cat([one.costs for one in recorder.recorded], dim=1),
            )
            for recorder in recorders
        )
    return RecordedCosts(layers, position.repeat(len(blocks)), choices, sinks, length, len(blocks))


def narrow(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return values in half the memory, if all are in its range.

    >>> narrow(torch.tensor([1e5])).dtype, narrow(torch.tensor([1e4])).dtype
    (torch.float32, torch.float16)
    """
    return x if x.abs().max() > torch.finfo(torch.float16).max else x.half()


def early_queries(length: int) -> int:
    """Return how many queries at the start of a block do not count: they see few keys, and nearly all."""
    return EARLY if length >= LONG else 0


def _backward(model: PreTrainedModel, block: Int[Tensor, " t"]) -> None:
    """Compute the gradient of the summed loss of a block down to its embeddings."""
    embedded = model.get_input_embeddings()(block[None]).detach().requires_grad_()
    logits = model(inputs_embeds=embedded, use_cache=False).logits
    # autograd would hold three more tensors of the size of the logits
    gradient = logits.detach().float().softmax(-1)
    gradient[0, torch.arange(len(block) - 1), block[1:]] -= 1.0
    gradient[0, -1] = 0.0
    logits.backward(gradient.to(logits.dtype))


@contextmanager
def _recording(
    model: PreTrainedModel,
    places: Sequence[Place],
    choices: Sequence[int],
    sinks: int,
    position: Int[Tensor, " n"],
) -> Iterator[list[Recorder]]:
    """Put recorders into all layers, freeze the parameters, compute layers again when the gradient comes.

    The end undoes it all.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    recorders = [Recorder(choices, sinks, position) for _ in places]
    layers = {model.get_submodule(place.name.rpartition(".")[0]) for place in places} - {model}
    # accelerate gives modules a forward of their own
    own = {layer: vars(layer)["forward"] for layer in layers if "forward" in vars(layer)}
    try:
        model.requires_grad_(False)
        install(model, [(place.module, one) for place, one in zip(places, recorders, strict=True)], {})
        for layer in layers:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        yield recorders
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)
            vars(layer).update({"forward": own[layer]} if layer in own else {})
        remove_windows(model)
        for parameter in trained:
            parameter.requires_grad_(True)
