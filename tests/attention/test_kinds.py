"""What every kind of the table has in common."""

import pytest
import torch
from torch.testing import assert_close

from diffwindow.attention.kinds import KINDS, OPTIONS, Attention, build_attention
from diffwindow.attention.visibility import Visibility
from samples.by_hand import HEADS, WIDTH, batch

every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def attention_of(kind):
    attention = build_attention(Attention(kind), WIDTH, HEADS).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return attention


def weights_of(attention, x, visibility):
    return attention.maps(*attention.project_self(x), visibility).weights


@every_kind
def test_a_kind_names_roles_and_options_that_exist(kind):
    assert set(KINDS[kind].roles) <= {"Enc", "Cr", "Dec"}
    assert set(KINDS[kind].options) <= set(OPTIONS)
    assert build_attention(Attention(kind), WIDTH, HEADS).kind == kind


@every_kind
def test_a_kind_without_a_size_is_written_without_one(kind):
    assert str(Attention(kind)) == kind


@every_kind
def test_reset_parameters_initialises_all_of_them(kind):
    attention = build_attention(Attention(kind), WIDTH, HEADS)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.fill_(9.0)
    attention.reset_parameters()
    assert not any((parameter == 9.0).any() for parameter in attention.parameters())


@every_kind
def test_a_bias_of_minus_infinity_hides_a_key(kind):
    attention, (x, _) = attention_of(kind), batch()
    bias = torch.zeros(3, 1, 1, x.shape[1], dtype=x.dtype)
    bias[..., 2] = float("-inf")
    hiding = Visibility(attn_bias=bias)
    assert (weights_of(attention, x, hiding)[..., 2] == 0).all()
    # what a hidden key holds has no effect on the output
    queries, keys = attention.project_self(x)
    changed = keys.clone()
    changed[:, 2] += 1
    assert_close(attention.attend(queries, changed, hiding), attention.attend(queries, keys, hiding))


@pytest.mark.parametrize("kind", ["Global", "AW", "MW", "Rel", "Loc", "Gauss", "Band", "Bell", "Span"])
def test_a_bias_multiplies_the_odds_of_two_keys_by_its_exponential(kind):
    attention, (x, mask) = attention_of(kind), batch()
    bias = torch.randn(3, HEADS, x.shape[1], x.shape[1], dtype=x.dtype)
    plain = Visibility(mask[:, None, None, :])
    before = weights_of(attention, x, plain)
    after = weights_of(attention, x, plain._replace(attn_bias=bias))
    assert ((before == 0) == (after == 0)).all()
    change = (after.log() - before.log() - bias).where(before > 0, torch.nan)
    low, high = change.nan_to_num(torch.inf).amin(-1), change.nan_to_num(-torch.inf).amax(-1)
    seen = (before > 0).any(-1)
    assert_close(low[seen], high[seen])
