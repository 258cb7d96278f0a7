"""SoftWindow against enumeration: all pairs of boundaries of a few keys."""

from itertools import product

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from diffwindow import functional
from diffwindow.checks import check_pointers
from diffwindow.soft_window import SoftWindow, apply_rule, compose_window

KEYS = 7
# by token and by segment; everything visible, causal, left-padded, a row that sees nothing
LAYOUTS = {
    "tokens": {},
    "tokens, masked": {"mask": True},
    "segments of 3": {"segment_size": 3},
    "segments of 3 from an origin": {"segment_size": 3, "segment_origin": tensor([2, 1])},
    "segments of 2, masked": {"segment_size": 2, "segment_origin": tensor([1, 0]), "mask": True},
    "segments longer than the text": {"segment_size": 9, "mask": True},
}


def make_window(layout, *, seed=0, sharpness=2.0, dtype=torch.float64):
    """Return a random window `[2 3 4 7]` of a layout."""
    options = dict(LAYOUTS[layout])
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(2, 2, 3, 4, KEYS, generator=generator, dtype=torch.float64)
    mask = None
    if options.pop("mask", False):
        mask = torch.ones(2, 1, 4, KEYS, dtype=torch.bool).tril(2)
        mask[0, :, :, 0] = False
        mask[1, :, 1] = False
    phi = [functional.masked_softmax(x, mask).to(dtype) for x in logits]
    return compose_window(*phi, mask=mask, **options)


def rows(window):
    """Yield each query's pointers, visible keys, and the first and last key of each key's segment."""
    shape = window.phi_left.shape
    mask = torch.ones(shape, dtype=torch.bool) if window.mask is None else window.mask.expand(shape)
    first, last = functional.segments_of(window.phi_left, window.segment_size, window.segment_origin)
    for row in product(*map(range, shape[:-1])):
        seen = [key for key in range(KEYS) if mask[row][key]]
        yield row, window.phi_left[row], window.phi_right[row], seen, first[row], last[row]


def spans(seen, first, last):
    """Yield every pair l, r of visible keys, and the visible first and last key of its window."""
    for left, right in product(seen, repeat=2):
        start, end = int(first[min(left, right)]), int(last[max(left, right)])
        yield left, right, max(start, seen[0]), min(end, seen[-1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_expectations_are_sums_over_all_pairs_of_boundaries(layout):
    window = make_window(layout)
    for row, phi_left, phi_right, seen, first, last in rows(window):
        expected = {"start": 0.0, "end": 0.0, "width": 0.0}
        cuts = torch.zeros(KEYS + 1, dtype=torch.float64)
        for left, right, start, end in spans(seen, first, last):
            p = phi_left[left] * phi_right[right]
            for name, value in {"start": start, "end": end, "width": end - start + 1}.items():
                expected[name] += p * value
            cuts[start] += p
            cuts[end + 1] += p
        for name, value in expected.items():
            assert_close(getattr(window, name)[row], torch.as_tensor(value, dtype=torch.float64))
        # the first and the last lie outside of all keys
        assert_close(window.cut_probabilities[row], cuts[1:-1])


def test_the_width_by_token_is_the_sum_of_the_exact_window():
    window = make_window("tokens, masked")
    exact = functional.soft_window(window.phi_left, window.phi_right, expectation="exact")
    assert_close(window.width, exact.sum(-1))
    distance = (torch.arange(KEYS)[:, None] - torch.arange(KEYS)).abs().double()
    expected = torch.einsum("...l,...r,lr->...", window.phi_left, window.phi_right, distance)
    assert_close(window.width, expected + window.phi_left.sum(-1))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("max_width", [None, 1, 2, 3, 5, 30])
def test_joint_is_the_best_ordered_pair(layout, max_width):
    window = make_window(layout, seed=1)
    if max_width is not None and max_width < window.segment_size:
        with pytest.raises(ValueError, match=f"max_width={max_width} is below segment_size"):
            window.discrete("joint", max_width=max_width)
        return
    span = window.discrete("joint", max_width=max_width)
    for row, phi_left, phi_right, seen, first, last in rows(window):
        best = {}
        for left, right, start, end in spans(seen, first, last):
            # within a segment l and r have no order
            in_order = left <= right or first[left] == first[right]
            if in_order and (max_width is None or end - start + 1 <= max_width):
                best[start, end] = max(best.get((start, end), 0.0), float(phi_left[left] * phi_right[right]))
        expected = max(best, key=best.__getitem__) if seen else (0, -1)
        assert (int(span.start[row]), int(span.end[row])) == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_argmax_takes_each_pointer_in_either_order(layout):
    window = make_window(layout, seed=2)
    span = window.discrete("argmax")
    for row, phi_left, phi_right, seen, first, last in rows(window):
        ends = {(left, right): (a, b) for left, right, a, b in spans(seen, first, last)}
        expected = ends[int(phi_left.argmax()), int(phi_right.argmax())] if seen else (0, -1)
        assert (int(span.start[row]), int(span.end[row])) == expected


@pytest.mark.parametrize("sharpness", [0.3, 4.0])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_half_holds_every_key_that_is_likely_inside(layout, sharpness):
    window = make_window(layout, seed=3, sharpness=sharpness)
    span = window.discrete("half")
    for row, phi_left, phi_right, seen, first, last in rows(window):
        exact = torch.zeros(KEYS, dtype=torch.float64)
        for left, right, start, end in spans(seen, first, last):
            exact[start : end + 1] += phi_left[left] * phi_right[right]
        exact[[key for key in range(KEYS) if key not in seen]] = 0.0
        inside = [key for key in range(KEYS) if exact[key] >= 0.5]
        if not inside and seen:
            inside = [key for key in range(KEYS) if exact[key] > exact.max() - 1e-12]
        assert (int(span.start[row]), int(span.end[row])) == ((inside[0], inside[-1]) if seen else (0, -1))


def test_half_spans_holes_in_the_set_of_likely_keys():
    # l is at 0 or 4, r at 0 or 4: each end is inside with probability 3/4, the middle with 1/2 less a little
    phi = tensor([0.51, 0.0, 0.0, 0.0, 0.49])
    window = compose_window(phi, phi)
    exact = functional.soft_window(phi, phi, expectation="exact")
    assert exact[2] < 0.5 < exact[0]
    assert tuple(map(int, window.discrete("half"))) == (0, 4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_log_prob_is_that_of_both_pointers(layout):
    window = make_window(layout)
    for left, right in product(range(KEYS), repeat=2):
        found = window.log_prob(left, tensor(right)).exp()
        for row, phi_left, phi_right, seen, first, last in rows(window):
            if not seen:
                assert found[row] == 1.0
                continue
            mass = (
                phi_left[first[left] : last[left] + 1].sum() * phi_right[first[right] : last[right] + 1].sum()
            )
            hidden = left not in seen or right not in seen
            assert_close(found[row], torch.zeros(()).double() if hidden else mass)


def test_log_prob_takes_a_span_per_query_and_has_gradients():
    logits = torch.randn(2, 5, KEYS, dtype=torch.float64, requires_grad=True)
    left = torch.arange(5)

    def loss(x):
        return compose_window(x.softmax(-1), (2 * x).softmax(-1)).log_prob(left, left + 2)

    assert loss(logits).shape == (2, 5)
    assert torch.autograd.gradcheck(loss, logits)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_right_and_those_of_hidden_rows_zero(layout):
    options = dict(LAYOUTS[layout])
    mask = torch.ones(2, 4, KEYS, dtype=torch.bool).tril(2)
    mask[0, 1] = False
    options["mask"] = mask if options.get("mask") else None
    logits = torch.randn(2, 4, KEYS, dtype=torch.float64, requires_grad=True)
    values = torch.randn(2, KEYS, 3, dtype=torch.float64, requires_grad=True)

    def measures(x, v):
        pointers = (functional.masked_softmax(y, options["mask"]) for y in (x, x.flip(-1).sin()))
        window = compose_window(*pointers, **options)
        return window.start, window.end, window.width, window.cut_probabilities, window.pool(v)

    assert torch.autograd.gradcheck(measures, (logits, values))
    # a masked sum is zero where nothing is seen
    for x in measures(logits, values) if options["mask"] is not None else ():
        assert not x[0, 1].any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pool_is_the_mean_of_the_visible_values_by_m(layout):
    window = make_window(layout)
    values = torch.randn(2, KEYS, 3, dtype=torch.float64)
    by_head = values[:, None].expand(-1, 3, -1, -1)
    pooled = window.pool(values)
    assert_close(pooled, window.pool(by_head))
    for (b, h, q), *_, seen, _, _ in rows(window):
        weights = window.values[b, h, q][seen]
        expected = (weights[:, None] * values[b, seen]).sum(0) / weights.sum() if seen else torch.zeros(3)
        assert_close(pooled[b, h, q], expected.double())


def test_pooling_leaves_out_what_is_hidden_even_nan():
    window = make_window("segments of 2, masked")
    values = torch.ones(2, KEYS, 1, dtype=torch.float64)
    values[0, 0] = torch.nan
    assert_close(window.pool(values)[0], torch.ones(3, 4, 1, dtype=torch.float64))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_samples_are_discrete_windows_with_the_gradients_of_the_exact_one(layout):
    window = make_window(layout)
    phi = [x.clone().requires_grad_() for x in (window.phi_left, window.phi_right)]
    torch.manual_seed(0)
    weight = torch.randn(KEYS, dtype=torch.float64)
    many = window._replace(
        phi_left=phi[0][None].expand(4000, -1, -1, -1, -1),
        phi_right=phi[1][None].expand(4000, -1, -1, -1, -1),
        segment_origin=None,
    )
    sampled = many.sample()
    assert sampled.values.eq(0).logical_or(sampled.values.eq(1)).all()
    assert (sampled.phi_left.sum(-1) <= 1).all()
    exact = functional.soft_window(*phi, segment_size=window.segment_size, expectation="exact")
    assert_close(sampled.values.mean(0), exact, atol=0.05, rtol=0)
    (mean,) = torch.autograd.grad((sampled.values.mean(0) * weight).sum(), phi[0])
    (true,) = torch.autograd.grad((exact * weight).sum(), phi[0])
    assert_close(mean, true, atol=0.15, rtol=0)


def test_rules_replace_m_and_keep_the_pointers():
    window = make_window("tokens, masked")
    assert apply_rule(window, "soft") is window
    assert_close(apply_rule(window, "none").values, window.mask.expand(2, 3, 4, KEYS).double())
    hard = apply_rule(window, "joint")
    span = window.discrete("joint")
    assert_close(hard.values.sum(-1), (span.end - span.start + 1).double())
    assert hard.phi_left is window.phi_left


def test_windows_without_keys_are_empty():
    nothing = torch.zeros(2, 3, 0)
    window = compose_window(nothing, nothing)
    assert window.width.tolist() == [[0.0] * 3] * 2
    for rule in ("argmax", "half", "joint"):
        assert window.discrete(rule).end.eq(-1).all()
    assert apply_rule(window, "argmax").values.shape == (2, 3, 0)
    with torch.no_grad():
        assert window.sample().values.shape == (2, 3, 0)


def test_pointers_too_small_for_their_type_stay_finite():
    phi = tensor([1.0, 0.0, 0.0], requires_grad=True)
    window = compose_window(phi, phi)
    loss = window.log_prob(2, 1)
    loss.backward()
    assert loss.isfinite()
    assert phi.grad.isfinite().all()
    assert tuple(map(int, window.discrete("joint"))) == (0, 0)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: w.discrete("agmax"), r"rule='agmax' is not one of .*; did you mean 'argmax'\?"),
        (lambda w: w.discrete("joint", max_width=0), "max_width=0 is not positive"),
        (lambda w: w.discrete("half", max_width=3), "max_width=3 is for rule=\"joint\", not for 'half'"),
        (lambda w: w.log_prob(0, 9), "right has 9, which is not a key: there are 5, counted from 0"),
        (lambda w: w.log_prob(tensor([-1]), 2), "left has -1, which is not a key"),
        (lambda w: w.log_prob(tensor([0.5]), 2), "left is torch.float32; pass integers"),
        (lambda w: w.pool(torch.ones(4, 3)), r"values have shape \[4, 3\], not \[\.\.\., 5 keys, width\]"),
        (lambda w: w.pool([1.0]), "values is of type list; pass a torch.Tensor"),
        (lambda w: w.sample(), r"the pointers have no gradients, .* use discrete\(\)"),
    ],
)
def test_mistakes_get_a_sentence(call, message):
    phi = torch.full((1, 5), 0.2)
    with pytest.raises((ValueError, TypeError), match=message):
        call(SoftWindow(phi, phi, phi))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_places_of_pointers_in_half_precision_are_exact(dtype):
    pointer = torch.zeros(4000, dtype=dtype)
    pointer[3001] = 1
    window = compose_window(pointer, pointer)
    assert (window.start.item(), window.end.item(), window.width.item()) == (3001, 3001, 1)


@pytest.mark.parametrize(
    ("pointers", "mask", "message"),
    [
        (((3, 4), (4,)), None, r"phi_left has shape \[3, 4\] and phi_right \[4\]; pass both"),
        (((4,), (4,)), torch.ones(4), "mask is torch.float32; pass a boolean mask"),
        (((4,), (4,)), torch.ones(3, dtype=torch.bool), r"mask has shape \[3\], which does not broadcast"),
        (((4,), (4,)), torch.ones(5, 4, dtype=torch.bool), r"mask has shape \[5, 4\], which does not"),
    ],
)
def test_pointers_and_their_mask_must_fit(pointers, mask, message):
    with pytest.raises((TypeError, ValueError), match=message):
        check_pointers(*map(torch.rand, pointers), mask)
