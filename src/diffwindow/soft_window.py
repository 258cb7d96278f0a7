"""SoftWindow: a window as two pointers to its boundaries, and what can be computed from it."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffwindow import functional
from diffwindow.checks import (
    DISCRETE_RULES,
    Boundaries,
    DiscreteRule,
    Expectation,
    WindowRule,
    check_floats,
    check_gates,
    check_key_indices,
    check_pointers,
    check_positive,
    check_probabilities,
)
from diffwindow.functional import discrete_window, leftward, phrase_bounds, rightward, segments_of
from diffwindow.messages import check_choice


class Span(NamedTuple):
    """The first and the last key of a discrete window; one without keys goes from 0 to -1."""

    start: Int[Tensor, "*lead"]
    end: Int[Tensor, "*lead"]


class SoftWindow(NamedTuple):
    """A window M and the distributions of its two boundaries l and r over the keys, which are independent.

    The window goes from the earlier boundary to the later one: either pointer may be the earlier. With
    segments or phrases it starts and ends with theirs, as far as the query sees them. A query that sees no
    key has zeros throughout.

    Attributes:
        values: M, `[… q k]`; `expectation` says whether two boundaries on one key count twice.
        phi_left: The probability that l is each key, `[… q k]`.
        phi_right: The same of r.
        mask: Which keys each query sees, broadcasting to `[… q k]`; None means all.
        segment_size: How many keys make a segment; 1 is a window by token.
        segment_origin: Integers `[b]`, the key where each sequence's first segment starts; 0 by default.
        sinks: How many first keys, from `segment_origin` on, have M = 1 wherever the window is. Only `values`
            and `pool` count them.
        gates: The probability that a phrase ends in each gap between neighbouring keys, `[… k−1]` for all
            queries; None means a window by token or segment.

    >>> window = compose_window(torch.tensor([0.1, 0.8, 0.1, 0.0]), torch.tensor([0.0, 0.3, 0.1, 0.6]))
    >>> window.start, window.end, window.width
    (tensor(0.9700), tensor(2.3300), tensor(2.3600))
    >>> window.discrete("argmax")
    Span(start=tensor(1), end=tensor(3))
    """

    values: Float[Tensor, "*lead k"]
    phi_left: Float[Tensor, "*lead k"]
    phi_right: Float[Tensor, "*lead k"]
    mask: Bool[Tensor, "..."] | None = None
    segment_size: int = 1
    segment_origin: Int[Tensor, " b"] | None = None
    sinks: int = 0
    gates: Float[Tensor, "*phrases gaps"] | None = None

    @property
    def start(self) -> Float[Tensor, "*lead"]:
        """The expected first key: E min(l, r), or that of its segment or phrase."""
        return _mean_key(self._edges()[0])

    @property
    def end(self) -> Float[Tensor, "*lead"]:
        """The expected last key: E max(l, r), or that of its segment or phrase."""
        return _mean_key(self._edges()[1])

    @property
    def width(self) -> Float[Tensor, "*lead"]:
        """The expected number of keys from the first to the last: E|r − l| + 1 by token, Σ of the exact M."""
        first, last = self._edges()
        return _mean_key(last) + last.sum(-1) - _mean_key(first)

    @property
    def cut_probabilities(self) -> Float[Tensor, "*lead gaps"]:
        """The probability that the window starts or ends between two neighbouring keys, `[… q k−1]`.

        c_i = P(end = i) + P(start = i + 1), which by token is P(max(l, r) = i) + P(min(l, r) = i + 1), with
        P(max = i) = φ_l F_r + φ_r F_l − φ_l φ_r and P(min = i) = φ_l G_r + φ_r G_l − φ_l φ_r. Exactly one of
        the keys i and i + 1 is then in the window. Nothing is cut within a segment.

        >>> one_hot = torch.eye(5)
        >>> compose_window(one_hot[3], one_hot[1]).cut_probabilities
        tensor([1., 0., 0., 1.])
        """
        first, last = self._edges()
        return last[..., :-1] + first[..., 1:]

    def log_prob(
        self, left: int | Int[Tensor, "..."], right: int | Int[Tensor, "..."]
    ) -> Float[Tensor, "*lead"]:
        """Return log φ_l(left) + log φ_r(right), to train on known spans: minimise its negative.

        With segments or phrases, a pointer may be anywhere in that of its key. A key that the query does not
        see has −inf; a query that sees none has 0, so that padding adds nothing to a loss.

        Args:
            left: The key of the left boundary for each query: integers that broadcast to `[… q]`.
            right: The key of the right boundary.

        >>> window = compose_window(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 0.25, 0.75]))
        >>> window.log_prob(0, 2).exp()
        tensor(0.3750)
        """
        total = self.phi_left.new_zeros(self.phi_left.shape[:-1])
        for name, key, phi in (("left", left, self.phi_left), ("right", right, self.phi_right)):
            check_key_indices(name, key, phi.shape[-1])
            index = torch.as_tensor(key, device=phi.device).expand(phi.shape[:-1])[..., None]
            total = total + self._log(self._segment_mass(phi)).gather(-1, index).squeeze(-1)
        return total.where(self._sees_any(), 0.0)

    def pool(self, values: Float[Tensor, "... k width"]) -> Float[Tensor, "... q width"]:
        """Return the mean of the values in the window, Σ M_i v_i / Σ M_i over the keys that the query sees.

        Args:
            values: One vector per key, `[b k w]` for all heads or `[b h k w]`.

        >>> window = compose_window(torch.eye(4)[[1]], torch.eye(4)[[2]])
        >>> window.pool(torch.tensor([[9.0], [1.0], [2.0], [9.0]]))
        tensor([[1.5000]])
        """
        check_floats("values", values)
        if values.dim() < 2 or values.shape[-2] != self.values.shape[-1]:
            raise ValueError(
                f"values have shape {list(values.shape)}, not [..., {self.values.shape[-1]} keys, width]"
            )
        if values.dim() > 2 and values.dim() == self.values.dim() - 1:
            values = values.unsqueeze(-3)
        values = values.expand(*self.values.shape[:-2], *values.shape[-2:])
        window = self._visible(self.values)
        total = window.sum(-1, keepdim=True)
        weights = window / total.masked_fill(total == 0, 1.0)
        return functional.attend(weights, values, mask=self.mask)

    def discrete(self, rule: DiscreteRule = "argmax", *, max_width: int | None = None) -> Span:
        """Return the first and the last key of a window in {0, 1} (Section 3.1).

        Args:
            rule: "argmax" takes the likeliest key of each pointer, in either order; "half" the smallest
                interval that holds every key whose exact M is at least ½, or, where there is none, the key
                with the largest; "joint" the l ≤ r with the largest φ_l(l) φ_r(r).
            max_width: The most keys that a window of the rule "joint" may have; all by default.

        Phrases then end at gates of ½ and more.

        >>> window = compose_window(torch.tensor([0.1, 0.0, 0.9]), torch.tensor([0.0, 0.8, 0.2]))
        >>> [tuple(map(int, window.discrete(rule))) for rule in ("argmax", "half", "joint")]
        [(1, 2), (1, 2), (2, 2)]
        """
        check_choice("rule", rule, DISCRETE_RULES)
        self._check_max_width(rule, max_width)
        if self.phi_left.shape[-1] == 0:
            nothing = self.phi_left.new_zeros(self.phi_left.shape[:-1], dtype=torch.long)
            return Span(nothing, nothing - 1)
        window = self._replace(gates=None if self.gates is None else (self.gates >= 0.5).to(self.gates))
        if rule == "argmax":
            left, right = self.phi_left.argmax(-1), self.phi_right.argmax(-1)
        elif rule == "half":
            left, right = window._half()
        else:
            left, right = window._joint(max_width)
        first, last = window._reach()
        start = first.gather(-1, left.minimum(right)[..., None]).squeeze(-1)
        end = last.gather(-1, left.maximum(right)[..., None]).squeeze(-1)
        seen = self._sees_any()
        return Span(start.where(seen, 0), end.where(seen, -1))

    def sample(self) -> "SoftWindow":
        """Draw both boundaries: a window in {0, 1} whose gradients pass straight through to the pointers.

        Its pointers are one-hot, its gates, if any, 0 or 1, and M is exact. The exact M is linear in each of
        them, and they are independent: so the gradient of a sampled M is, on average, that of the exact M.

        >>> window = compose_window(torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0]))
        >>> with torch.no_grad():
        ...     window.sample().values
        tensor([0., 1., 1.])
        """
        if torch.is_grad_enabled() and not (self.phi_left.requires_grad or self.phi_right.requires_grad):
            raise ValueError(
                "the pointers have no gradients, which sample() passes on; use discrete(), or call it under "
                "torch.no_grad() for windows that are only drawn"
            )
        left, right = (_draw(phi) + (phi - phi.detach()) for phi in (self.phi_left, self.phi_right))
        gates = self.gates
        if gates is not None:
            gates = gates.detach().bernoulli() + (gates - gates.detach())
        return compose_window(
            left,
            right,
            mask=self.mask,
            segment_size=self.segment_size,
            segment_origin=self.segment_origin,
            expectation="exact",
            sinks=self.sinks,
            gates=gates,
        )

    def _check_max_width(self, rule: str, max_width: int | None) -> None:
        if max_width is None:
            return
        check_positive("max_width", max_width)
        if rule != "joint":
            raise ValueError(f'max_width={max_width} is for rule="joint", not for {rule!r}; leave it out')
        if self.gates is not None:
            raise ValueError(
                f"max_width={max_width} is for windows by token or segment; a phrase may be longer: leave it "
                "out"
            )
        if max_width < self.segment_size:
            raise ValueError(
                f"max_width={max_width} is below segment_size={self.segment_size}: no window fits"
            )

    def _sees_any(self) -> Bool[Tensor, "..."]:
        """Return which queries see a key."""
        mask = self.phi_left.new_ones((), dtype=torch.bool) if self.mask is None else self.mask
        return mask.expand(self.phi_left.shape).any(-1)

    def _visible(self, x: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead k"]:
        return x if self.mask is None else x.masked_fill(~self.mask, 0.0)

    def _log(self, phi: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead k"]:
        """Return log φ, −inf where hidden; where φ is too small for its type, the log of the smallest."""
        log = phi.clamp(min=torch.finfo(phi.dtype).tiny).log()
        return log if self.mask is None else log.masked_fill(~self.mask, float("-inf"))

    def _reach(self) -> tuple[Int[Tensor, "*lead k"], Int[Tensor, "*lead k"]]:
        """Return where a window starts, and where it ends, with a boundary at each key."""
        if self.gates is None:
            first, last = segments_of(self.phi_left, self.segment_size, self.segment_origin)
        else:
            first, last = (x.unsqueeze(-2).expand_as(self.phi_left) for x in phrase_bounds(self.gates >= 0.5))
        by_token = self.gates is None and self.segment_size == 1
        if self.mask is None or by_token or not first.shape[-1]:
            return first, last
        # a segment may go on before or after what the query sees
        lowest, highest = _outermost(self.mask.expand_as(self.phi_left))
        return first.maximum(lowest[..., None]), last.minimum(highest[..., None])

    def _edges(self) -> tuple[Float[Tensor, "*lead k"], Float[Tensor, "*lead k"]]:
        """Return the probability that the window starts, and that it ends, at each key."""
        left, right = self.phi_left, self.phi_right
        both = left * right
        earlier = left * leftward(right) + right * leftward(left) - both
        later = left * rightward(right) + right * rightward(left) - both
        if self.gates is not None:
            return self._phrase_edges(earlier, later)
        if self.segment_size == 1:
            return earlier, later
        first, last = self._reach()
        zeros = torch.zeros_like(both)
        return zeros.scatter_add(-1, first, earlier), zeros.scatter_add(-1, last, later)

    def _phrase_edges(
        self, earlier: Float[Tensor, "*lead k"], later: Float[Tensor, "*lead k"]
    ) -> tuple[Float[Tensor, "*lead k"], Float[Tensor, "*lead k"]]:
        """Return where the window starts and ends, from where its earlier and its later boundary are.

        It starts at a key if the earlier boundary is in its phrase, at it or after it, and a phrase ended
        before it; and at the first key that the query sees if it would start before that.
        """
        assert self.gates is not None
        if not earlier.shape[-1]:
            return earlier, later
        together = functional.share_phrase(self.gates.to(earlier.dtype))
        ends = self.gates.to(earlier.dtype).unsqueeze(-2)
        starts, stops = F.pad(ends, (1, 0), value=1.0), F.pad(ends, (0, 1), value=1.0)
        if self.mask is not None:
            lowest, highest = (x[..., None] for x in _outermost(self.mask.expand_as(earlier)))
            key = torch.arange(earlier.shape[-1], device=earlier.device)
            starts = torch.where(key == lowest, 1.0, starts) * (key >= lowest)
            stops = torch.where(key == highest, 1.0, stops) * (key <= highest)
        return earlier @ together.tril() * starts, later @ together.triu() * stops

    def _segment_mass(self, phi: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead k"]:
        """Return for each key the sum of φ over its segment or, on average, its phrase."""
        if self.gates is not None:
            return phi @ functional.share_phrase(self.gates.to(phi.dtype)) if phi.shape[-1] else phi
        if self.segment_size == 1:
            return phi
        first, _ = segments_of(phi, self.segment_size, self.segment_origin)
        return torch.zeros_like(phi).scatter_add(-1, first, phi).gather(-1, first)

    def _half(self) -> tuple[Int[Tensor, "*lead"], Int[Tensor, "*lead"]]:
        exact = functional.soft_window(
            self.phi_left,
            self.phi_right,
            segment_size=self.segment_size,
            segment_origin=self.segment_origin,
            expectation="exact",
            gates=self.gates,
        )
        exact = self._visible(exact)
        inside = exact >= 0.5
        (first, last), some, peak = _outermost(inside), inside.any(-1), exact.argmax(-1)
        return first.where(some, peak), last.where(some, peak)

    def _joint(self, max_width: int | None) -> tuple[Int[Tensor, "*lead"], Int[Tensor, "*lead"]]:
        left, right = self._log(self.phi_left), self._log(self.phi_right)
        # within a segment the order of l and r is free: the window is the same
        first, high = self._reach()
        low = torch.zeros_like(high)
        if max_width is not None:
            limit = (high - max_width + 1).clamp(min=0)
            low = limit.where(first.gather(-1, limit) >= limit, high.gather(-1, limit) + 1)
        best_right = (_range_max(left, low, high) + right).argmax(-1, keepdim=True)
        key = torch.arange(left.shape[-1], device=left.device)
        allowed = (low.gather(-1, best_right) <= key) & (key <= high.gather(-1, best_right))
        return left.masked_fill(~allowed, float("-inf")).argmax(-1), best_right.squeeze(-1)


class Maps(NamedTuple):
    """What an attention does with each pair of query and key: its weights and, if it has one, its window."""

    weights: Float[Tensor, "*lead q k"]
    window: SoftWindow | None = None


def compose_window(
    phi_left: Float[Tensor, "*lead k"],
    phi_right: Float[Tensor, "*lead k"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    segment_size: int = 1,
    segment_origin: Int[Tensor, " b"] | None = None,
    expectation: Expectation = "paper",
    window_tolerance: float = 0.0,
    sinks: int = 0,
    gates: Float[Tensor, "*phrases gaps"] | None = None,
) -> SoftWindow:
    """Make a window of its two pointers, which must not point at what the mask hides (Eq. 9, 11).

    >>> compose_window(torch.eye(4)[2], torch.eye(4)[0], expectation="exact").values
    tensor([1., 1., 1., 0.])
    """
    check_pointers(phi_left, phi_right, mask)
    if gates is not None:
        check_gates(gates, phi_left.shape[-1])
        check_probabilities(gates)
    values = functional.soft_window(
        phi_left,
        phi_right,
        segment_size=segment_size,
        segment_origin=segment_origin,
        expectation=expectation,
        window_tolerance=window_tolerance,
        sinks=sinks,
        mask=mask,
        gates=gates,
    )
    return SoftWindow(values, phi_left, phi_right, mask, segment_size, segment_origin, sinks, gates)


def point_window(
    boundaries: Boundaries,
    *,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    segment_size: int = 1,
    segment_origin: Int[Tensor, " b"] | None = None,
    expectation: Expectation = "paper",
    window_tolerance: float = 0.0,
    sinks: int = 0,
    gates: Float[Tensor, "*phrases gaps"] | None = None,
) -> SoftWindow:
    """Point at both boundaries and make the window of the pointers (Eq. 7-11).

    >>> q, k = torch.ones(1, 1, 1, 2), torch.ones(1, 1, 4, 2)
    >>> point_window(Boundaries(q, k, q, k), expectation="exact").width
    tensor([[[2.2500]]])
    """
    q_left, k_left, q_right, k_right = boundaries
    return compose_window(
        functional.boundary(q_left, k_left, mask=mask, scale=scale),
        functional.boundary(q_right, k_right, mask=mask, scale=scale),
        mask=mask,
        segment_size=segment_size,
        segment_origin=segment_origin,
        expectation=expectation,
        window_tolerance=window_tolerance,
        sinks=sinks,
        gates=gates,
    )


def apply_rule(window: SoftWindow, rule: WindowRule) -> SoftWindow:
    """Replace M at test time: by 0 and 1 of a discrete window, or by 1 at all that is seen (rule "none").

    Sinks stay visible.

    >>> apply_rule(compose_window(torch.eye(4)[2], torch.eye(4)[2]), "argmax").values
    tensor([0., 0., 1., 0.])
    """
    if rule == "soft":
        return window
    if rule == "none":
        return window._replace(values=window._visible(torch.ones_like(window.values)))
    hard = discrete_window(*window.discrete(rule), window.values.shape[-1])
    values = functional.show_sinks(hard.to(window.values), window.sinks, window.segment_origin, window.mask)
    return window._replace(values=values)


def _mean_key(probabilities: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead"]:
    key = torch.arange(probabilities.shape[-1], device=probabilities.device)
    # half precision has no odd numbers above 256 (bf16) or 2048
    return (functional.at_least_fp32(probabilities) * key).sum(-1)


def _outermost(mask: Bool[Tensor, "*lead k"]) -> tuple[Int[Tensor, "*lead"], Int[Tensor, "*lead"]]:
    """Return the first and the last True of each row; the ends of a row that has none."""
    first = mask.long().argmax(-1)
    return first, mask.shape[-1] - 1 - mask.flip(-1).long().argmax(-1)


def _draw(phi: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead k"]:
    """Draw a key of each distribution as a one-hot row; zeros stay zeros."""
    if not phi.numel():
        return phi.detach()
    # the key that a race of exponential clocks with rates φ ends first
    drawn = (phi.detach() / torch.empty_like(phi).exponential_()).argmax(-1)
    return F.one_hot(drawn, phi.shape[-1]).to(phi.dtype) * (phi.detach() > 0)


def _range_max(
    values: Float[Tensor, "*lead k"], low: Int[Tensor, "*lead k"], high: Int[Tensor, "*lead k"]
) -> Float[Tensor, "*lead k"]:
    """Return the maximum of the values from low to high, both included, −inf where low > high.

    The maxima of every 1, 2, 4, 8, … values are made first: two of them cover any range.
    """
    maxima, span, size = [values], 1, values.shape[-1]
    while 2 * span <= size:
        shifted = F.pad(maxima[-1][..., span:], (0, span), value=float("-inf"))
        maxima.append(maxima[-1].maximum(shifted))
        span *= 2
    lengths = (high - low + 1).clamp(min=1)
    level = torch.frexp(lengths.double()).exponent.long() - 1
    table = torch.cat(maxima, dim=-1)
    ends = (table.gather(-1, level * size + at) for at in (low.clamp(max=size - 1), high + 1 - 2**level))
    return torch.maximum(*ends).masked_fill(low > high, float("-inf"))
