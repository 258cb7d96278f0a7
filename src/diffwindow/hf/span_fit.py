"""Choose spans by their costs: one for each window, or one for each query, at a given share of the keys."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from diffwindow.hf.span_costs import LayerCosts, RecordedCosts, early_queries
from diffwindow.models.span_adapter import HIDDEN, Per, Spans, group_queries, log_position
from diffwindow.progress import SILENT, Progress

# How far the bias falls with each step away from the static choice, where a fit starts.
SLOPE = 0.7
# Updates of a fit and of one that goes on from another price, queries of an update, the rate, the decay.
UPDATES, MORE_UPDATES, QUERIES, RATE, DECAY = 120, 40, 1024, 0.03, 1e-3
# Logits are polynomials over the spans, of at most this degree, beside a bias of each span: with a weight for
# each span, a fit learns the noise of its text.
DEGREE = 3
# Prices that are tried for a share, how close to it a fit may end before its logits are tilted, and how much.
PRICES, CLOSE, STEEPEST = 4, 0.015, 1e3
# The range of prices of a share of one, in nats, that are looked through.
CHEAPEST, DEAREST = 1e-30, 1e30


Parameters = dict[str, Tensor]


def unit_costs(layer: LayerCosts, units: int, *, quantile: float | None = None) -> LayerCosts:
    """Add up the costs of the heads that share each window; `quantile` first clips those of each head."""
    costs = layer.costs
    if quantile is not None:
        # torch's quantile takes 16 million values at most
        limits = [costs[:, :, c].quantile(quantile, dim=1) for c in range(costs.shape[2])]
        costs = costs.minimum(torch.stack(limits, dim=-1)[:, None])
    return LayerCosts(layer.q, costs.unflatten(0, (units, -1)).sum(1))


def cheapest_spans(
    costs: Float[Tensor, "u c"], shares: Float[Tensor, " c"], price: float
) -> Int[Tensor, " u"]:
    """Return the choice of each window with the least cost + price · share.

    >>> cheapest_spans(torch.tensor([[4.0, 1.0, 0.0]]), torch.tensor([0.1, 0.5, 1.0]), price=3.0)
    tensor([1])
    """
    return (costs + price * shares).argmin(-1)


def find_price(share_at: Callable[[float], float], share: float, *, steps: int = 64) -> float:
    """Return the lowest price at which windows take at most a share of the keys, by bisection.

    >>> round(find_price(lambda price: 1 / (1 + price), 0.25), 3)
    3.0
    """
    low, high = math.log(CHEAPEST), math.log(DEAREST)
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if share_at(math.exp(middle)) > share else (low, middle)
    return math.exp(high)


def static_choices(
    means: Float[Tensor, "l u c"], shares: Float[Tensor, " c"], share: float
) -> tuple[Int[Tensor, "l u"], float]:
    """Choose one span for each window, with at most a mean share; return them and the price.

    Prices leave part of a share unused where a window would jump from a short span to a long one; the rest
    goes to the windows that gain most from each key.
    """
    if share >= 1.0:
        return torch.full(means.shape[:2], means.shape[2] - 1, device=means.device), 0.0

    def taken(price: float) -> float:
        return float(shares[cheapest_spans(means, shares, price)].mean())

    price = find_price(taken, share)
    chosen = cheapest_spans(means, shares, price)
    rest = share * chosen.numel() - float(shares[chosen].sum())
    while True:
        extra = shares - shares[chosen][..., None]
        gain = means.gather(-1, chosen[..., None]) - means
        possible = (extra > 1e-9) & (extra <= rest + 1e-9) & (gain > 0)
        if not bool(possible.any()):
            return chosen, price
        best = int(torch.where(possible, gain / extra.clamp(min=1e-9), -1.0).argmax())
        layer, unit, choice = torch.unravel_index(torch.tensor(best), gain.shape)
        rest -= float(extra[layer, unit, choice])
        chosen[layer, unit] = choice


class QueryFit:
    """The logits of all spans for the queries of one layer, while they are fitted; parameters by name.

    They are those of `SpanAdapter`, but for queries and positions that are standardised, and for polynomials
    over the spans instead of each span.
    """

    def __init__(
        self,
        layer: LayerCosts,
        position: Int[Tensor, " n"],
        block: int,
        start: Int[Tensor, " u"],
        *,
        mlp: bool,
        generator: torch.Generator,
    ) -> None:
        units, _, choices = layer.costs.shape
        self.costs, self.generator = layer.costs, generator
        self.q, self.q_mean, self.q_scale = standardise(group_queries(layer.q[None].float(), units)[0])
        place, self.place_mean, self.place_scale = standardise(log_position(position, block)[:, None])
        self.place = place[:, 0]
        self.all: Tensor | None = None
        steps = (torch.arange(choices, device=start.device) - start[:, None]).abs()
        basis, zeros = polynomials(choices), partial(torch.zeros, dtype=torch.float32)
        self.basis, degrees = basis.to(start.device), len(basis)
        self.parameters: Parameters = {
            "bias": -SLOPE * steps.float(),
            "position": zeros(units, degrees),
            "weight": zeros(units, self.q.shape[-1], degrees),
        }
        if mlp:
            self.all, self.all_mean, self.all_scale = standardise(
                group_queries(layer.q[None].float(), 1)[0, 0]
            )
            width = self.all.shape[-1]
            self.parameters |= {
                "hidden": torch.randn(width, HIDDEN, generator=generator, dtype=torch.float32)
                / math.sqrt(width),
                "hidden_bias": zeros(HIDDEN),
                "out": zeros(units, HIDDEN, degrees),
            }
        self.parameters = {name: x.to(start.device) for name, x in self.parameters.items()}

    def logits(self, rows: Tensor | slice) -> Float[Tensor, "u n c"]:
        """Score the spans for some of the queries."""
        p = self.parameters
        slopes = self.q[:, rows] @ p["weight"] + self.place[rows, None] * p["position"][:, None]
        if self.all is not None:
            slopes = slopes + nn.functional.relu(self.all[rows] @ p["hidden"] + p["hidden_bias"]) @ p["out"]
        return slopes @ self.basis + p["bias"][:, None]

    def fit(self, shares: Float[Tensor, "n c"], price: float, updates: int) -> None:
        """Lower the expected cost of the spans, with a price on their share of the keys."""
        leaves = [x.requires_grad_() for x in self.parameters.values()]
        weights = [x for name, x in self.parameters.items() if name in ("weight", "hidden", "out")]
        optimizer = torch.optim.Adam(leaves, RATE)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=updates)
        n = self.q.shape[1]
        for _ in range(updates):
            rows = torch.randint(n, (min(QUERIES, n),), generator=self.generator).to(self.q.device)
            paid = self.costs[:, rows] / price + shares[rows]
            loss = (self.logits(rows).softmax(-1) * paid).sum(-1).mean(-1).sum()
            loss = loss + DECAY * sum(x.square().sum() for x in weights)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        for leaf in leaves:
            leaf.requires_grad_(False)

    def adapter_state(self, tilt: Float[Tensor, " c"]) -> Parameters:
        """Return the parameters of a `SpanAdapter`, for queries as they are; `tilt` is added to the bias."""
        p = self.parameters
        weight = p["weight"] / self.q_scale.mT @ self.basis
        position = p["position"] / self.place_scale @ self.basis
        bias = p["bias"] - (self.q_mean @ weight)[:, 0] - self.place_mean * position + tilt
        state = {"bias": bias, "position": position, "weight": weight}
        if self.all is not None:
            hidden = p["hidden"] / self.all_scale.mT
            shift = (self.all_mean @ hidden)[0]
            state |= {"hidden": hidden, "hidden_bias": p["hidden_bias"] - shift, "out": p["out"] @ self.basis}
        return state


def polynomials(choices: int) -> Float[Tensor, "d c"]:
    """Return polynomials of degree 1 to `DEGREE` over the spans, orthogonal and of mean square 1.

    >>> polynomials(2).abs()
    tensor([[1., 1.]])
    """
    places = torch.linspace(-1.0, 1.0, choices, dtype=torch.float64)
    powers = torch.stack([places**degree for degree in range(min(DEGREE, choices - 1) + 1)], dim=-1)
    orthogonal: Tensor = torch.linalg.qr(powers).Q
    return (orthogonal[:, 1:].T * math.sqrt(choices)).float()


def standardise(x: Float[Tensor, "... n f"]) -> tuple[Tensor, Tensor, Tensor]:
    """Return values with mean 0 and standard deviation 1 over the queries, and both of what they were."""
    mean, scale = x.mean(-2, keepdim=True), x.std(-2, keepdim=True).clamp(min=1e-6)
    return (x - mean) / scale, mean, scale


@dataclass(frozen=True)
class Allocation:
    """Parameters of the windows of all layers, and the rise of the loss and the share that they predict."""

    states: tuple[Parameters, ...]
    predicted: float
    share: float


def fit_spans(
    recorded: RecordedCosts,
    share: float,
    *,
    spans: Spans,
    per: Per,
    num_groups: int,
    quantile: float | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Allocation:
    """Fit windows that read a share of the keys to recorded costs.

    Args:
        recorded: The costs of spans.
        share: The mean share of visible keys that queries read.
        spans: Whether spans are chosen for each window or for each query.
        per: Whether each head or each group of heads that share keys has a window.
        num_groups: How many groups of heads share keys.
        quantile: Clip the costs of each head and span at this quantile.
        seed: Of the order of queries.
        progress: Shows how far it is.
    """
    units = len(recorded.layers[0].costs) if per == "head" else num_groups
    # the first queries of a block count as if they read everything
    early = early_queries(recorded.block) / recorded.block
    share = (share - early) / (1.0 - early)
    layers = [unit_costs(layer, units, quantile=quantile) for layer in recorded.layers]
    shares = recorded.shares()
    means = torch.stack([layer.costs.mean(1) for layer in layers])
    chosen, price = static_choices(means, shares.mean(0), share)
    if spans == "head":
        states = [{"bias": nn.functional.one_hot(row, shares.shape[1]).float()} for row in chosen]
        predicted = float(means.gather(-1, chosen[..., None]).sum())
        return Allocation(tuple(states), predicted, float(shares.mean(0)[chosen].mean()))
    generator = torch.Generator().manual_seed(seed)
    fits = [
        QueryFit(layer, recorded.position, recorded.block, row, mlp=spans == "query-mlp", generator=generator)
        for layer, row in zip(layers, chosen, strict=True)
    ]
    if price == 0.0:
        return Allocation(tuple(fit.adapter_state(torch.zeros(1)) for fit in fits), 0.0, 1.0)
    return _fit_to_share(fits, shares, share, price, progress)


def _fit_to_share(
    fits: list[QueryFit], shares: Float[Tensor, "n c"], share: float, price: float, progress: Progress
) -> Allocation:
    """Fit at a price, change the price until the share is the one asked for, and tilt away what is left."""
    known: dict[float, float] = {}
    for attempt in range(PRICES):
        for number, fit in enumerate(fits):
            fit.fit(shares, price, UPDATES if attempt == 0 else MORE_UPDATES)
            progress(f"fit {attempt + 1}", (number + 1) / len(fits))
        logits = [fit.logits(slice(None)) for fit in fits]
        taken = _outcome(fits, logits, shares, 0.0)[0]
        if abs(taken - share) < CLOSE or not CHEAPEST < price < DEAREST:
            break
        known[math.log(price)] = taken
        price = math.exp(_next_price(known, share))
    low, high = -STEEPEST, STEEPEST
    for _ in range(26):
        middle = (low + high) / 2
        over = _outcome(fits, logits, shares, middle)[0] > share
        low, high = (middle, high) if over else (low, middle)
    taken, predicted = _outcome(fits, logits, shares, high)
    tilt = -high * shares.mean(0)
    return Allocation(tuple(fit.adapter_state(tilt) for fit in fits), predicted, taken)


def _next_price(known: Mapping[float, float], share: float) -> float:
    """Return the logarithm of the price to try next: on the line through the two nearest known shares."""
    nearest = sorted(known, key=lambda price: abs(known[price] - share))
    if len(nearest) > 1 and known[nearest[0]] != known[nearest[1]]:
        first, second = nearest[:2]
        slope = (first - second) / (known[first] - known[second])
        if slope < 0:
            return first + max(-2.0, min(2.0, slope * (share - known[first])))
    # a price that is e times as high lowers the share by about a tenth
    return nearest[0] + 10.0 * (known[nearest[0]] - share)


def _outcome(
    fits: list[QueryFit], logits: list[Tensor], shares: Float[Tensor, "n c"], tilt: float
) -> tuple[float, float]:
    """Return the mean share of the likeliest spans, and their mean cost summed over all windows."""
    taken, predicted = [], 0.0
    for fit, scores in zip(fits, logits, strict=True):
        chosen = (scores - tilt * shares.mean(0)).argmax(-1, keepdim=True)
        taken.append(shares.expand(len(chosen), -1, -1).gather(-1, chosen).mean())
        predicted += float(fit.costs.gather(-1, chosen).mean((1, 2)).sum())
    return float(torch.stack(taken).mean()), predicted
