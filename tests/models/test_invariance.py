"""What a model gives for a sequence depends on its real tokens, and a causal one's on the past."""

import pytest
import torch
from torch.testing import assert_close

from samples.small_models import DECODER, ENCODER, classifier, language_model, notations, tokens, translator

pytestmark = pytest.mark.filterwarnings("ignore:the paper has no segments")
SIDES = ("left", "right")
every_translator = pytest.mark.parametrize("attention", notations())


def pad(rows, length, side):
    """Pad a batch of one to a length."""
    missing = torch.zeros(1, length - rows.shape[1], dtype=torch.long)
    return torch.cat([rows, missing] if side == "right" else [missing, rows], dim=1)


@every_translator
def test_translator_ignores_padding_and_company(attention):
    model = translator(attention)
    sources, targets = [tokens(1, n, seed=n) for n in (4, 9)], [tokens(1, n, seed=n) for n in (5, 3)]
    alone = [model(source, target)[0] for source, target in zip(sources, targets, strict=True)]
    for side in SIDES:
        batch = torch.cat([pad(source, 12, side) for source in sources])
        logits = model(batch, torch.cat([pad(target, 6, "right") for target in targets]))
        for row, expected in enumerate(alone):
            assert_close(logits[row, : len(expected)], expected)


@pytest.mark.parametrize("kind", ["Global", *(f"Enc({k})@all" for k in ENCODER)])
def test_classifier_ignores_padding_and_company(kind):
    model, rows = classifier(kind), [tokens(1, n, seed=n) for n in (4, 9)]
    for side in SIDES:
        logits = model(torch.cat([pad(row, 12, side) for row in rows]))
        for row, alone in enumerate(rows):
            assert_close(logits[row], model(alone)[0])


@pytest.mark.parametrize("kind", ["Global", *(f"Dec({k})@all" for k in DECODER)])
def test_language_model_ignores_padding_and_company(kind):
    model, rows = language_model(kind), [tokens(1, n, seed=n) for n in (4, 9)]
    for side in SIDES:
        batch = torch.cat([pad(row, 12, side) for row in rows])
        logits = model(batch, batch != 0)
        for row, alone in enumerate(rows):
            assert_close(logits[row][batch[row] != 0], model(alone)[0])


ROTARY = {"positions": "rotary", "rotary": "both"}


@pytest.mark.parametrize("side", SIDES)
def test_rotary_positions_count_from_anywhere(side):
    """They only know distances, so padding and segments change nothing."""
    source, target, text = tokens(1, 9), tokens(1, 5), tokens(1, 7)
    model = translator("Enc(AW,Seg=3)-Cr(AW,Seg)-Dec(MW)", **ROTARY)
    assert_close(model(pad(source, 12, side), target), model(source, target))
    padded, causal = pad(text, 10, side), language_model("Dec(AW)", **ROTARY)
    assert_close(causal(padded, padded != 0)[padded != 0], causal(text)[0])


@pytest.mark.parametrize("kind", ["Rel", "Loc", "AW,Dist"])
@pytest.mark.parametrize("rotary", ["scores", "both"])
def test_what_is_computed_from_queries_does_not_go_with_rotary_positions(kind, rotary):
    """Turned queries would tell a distance or a centre the place, and so how much padding there is."""
    with pytest.raises(ValueError, match="are computed from the queries"):
        classifier(f"Enc({kind})@all", positions="rotary", rotary=rotary)


def test_pointers_may_turn_beside_relative_positions():
    model, text = classifier("Enc(AW,Dist)@all", positions="rotary", rotary="pointers"), tokens(1, 7)
    padded = pad(text, 10, "left")
    assert_close(model(padded, padded != 0), model(text))


@pytest.mark.parametrize("rotary", ["scores", "pointers", "both"])
def test_rotary_positions_tell_the_order(rotary):
    model, text = classifier("Enc(MW)@all", positions="rotary", rotary=rotary), tokens(2, 7)
    # without positions a window knows what lies between two tokens, but not on which side they stand
    assert (model(text) - model(text.flip(1))).abs().max() > 1e-3


@every_translator
def test_the_future_does_not_leak(attention):
    model, source, target = translator(attention), tokens(2, 6), tokens(2, 8)
    changed = target.clone()
    changed[:, 5:] = 3
    assert_close(model(source, target)[:, :5], model(source, changed)[:, :5], rtol=0, atol=0)
    assert (model(source, target)[:, 5:] != model(source, changed)[:, 5:]).any()


@pytest.mark.parametrize("kind", ["Global", *(f"Dec({k})@all" for k in DECODER)])
def test_padding_on_the_left_gives_finite_gradients(kind):
    model, text = language_model(kind), tokens(2, 7)
    text[0, :4] = 0
    model.loss(text, text, text != 0).total.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
