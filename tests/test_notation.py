"""The notation: what it means, its canonical form, and where its errors point."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffwindow.notation import (
    GLOBAL,
    KINDS,
    OPTIONS,
    ROLES,
    Attention,
    NotationError,
    Plan,
    Term,
    parse_attention,
)

BEST = "Enc(AW)-Cr(AW,Seg)-Dec(MW)"


def test_the_best_model_of_the_paper():
    plan = parse_attention(BEST)
    assert plan.attentions("Enc", 6) == (Attention("AW"),) * 3 + (GLOBAL,) * 3
    assert plan.attentions("Cr", 6) == (Attention("AW", segment_size=5),) * 3 + (GLOBAL,) * 3
    assert plan.attentions("Dec", 6) == (Attention("MW"),) * 3 + (GLOBAL,) * 3
    with pytest.raises(ValueError, match="role='Foo' is not one of 'Enc', 'Cr', 'Dec'"):
        plan.attentions("Foo", 6)


@pytest.mark.parametrize(("num_layers", "windowed"), [(1, 1), (2, 1), (3, 2), (5, 3), (6, 3)])
def test_the_default_is_the_first_half_rounded_up(num_layers, windowed):
    layers = parse_attention("Enc(AW)").attentions("Enc", num_layers)
    assert [attention.kind for attention in layers] == ["AW"] * windowed + ["Global"] * (
        num_layers - windowed
    )


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (BEST, BEST),
        ("Dec(MW)-Enc(AW)", "Enc(AW)-Dec(MW)"),
        (" Enc (AW, Seg = 5) @ 1 - 3 ", "Enc(AW,Seg)@1-3"),
        ("Enc(MW,Seg=1)", "Enc(MW)"),
        ("Enc(AW,Exact,Seg=3)@2-2", "Enc(AW,Seg=3,Exact)@2"),
        ("Enc(MW,Norm,Ordered)", "Enc(MW,Ordered,Norm)"),
        ("Enc(AW,Dim=8,Seg)", "Enc(AW,Seg,Dim=8)"),
        ("Dec(MW,Gate,Dim=8)", "Dec(MW,Dim=8,Gate)"),
        ("Enc(MW,Dim=8,Norm,Exact,Seg=3)", "Enc(MW,Seg=3,Exact,Norm,Dim=8)"),
        ("Dec(MW,Gate,Norm)@all", "Dec(MW,Norm,Gate)@all"),
        ("Dec(MW,Sink=4,Gate,Dim=8,Norm)@all", "Dec(MW,Norm,Dim=8,Sink=4,Gate)@all"),
        ("Enc(MW)@3-Enc(AW)@1-2", "Enc(AW)@1-2-Enc(MW)@3"),
        ("Enc(Rel=16)@all-Cr(Gauss=8)", "Enc(Rel)@all-Cr(Gauss=8)"),
        ("Global", "Global"),
    ],
)
def test_canonical_form(text, canonical):
    assert str(parse_attention(text)) == canonical


def test_layers_of_several_terms():
    plan = parse_attention("Enc(AW)@1-2-Enc(Rel)@4")
    assert [str(attention) for attention in plan.attentions("Enc", 4)] == ["AW", "AW", "Global", "Rel"]
    assert plan.attentions("Dec", 2) == (GLOBAL, GLOBAL)


def attentions(role):
    options = {
        "segment_size": st.just(1) if role == "Dec" else st.integers(1, 9),
        "expectation": st.sampled_from(["paper", "exact"]),
        "boundary_dim": st.none() | st.integers(1, 99),
        "relative_size": st.none() if role == "Cr" else st.none() | st.integers(1, 99),
    }
    windows = st.builds(Attention, st.just("AW"), **options)
    flags = {"gate": st.booleans(), "normalize": st.booleans(), "sinks": st.integers(0, 99)}
    windows |= st.builds(Attention, st.just("MW"), **options, **flags)
    sized = [name for name, kind in KINDS.items() if role in kind.roles and kind.size is not None]
    return windows | st.builds(Attention, st.sampled_from(sized), st.integers(1, 99)) if sized else windows


@given(st.data())
def test_print_and_parse_are_inverse(data):
    roles = data.draw(st.lists(st.sampled_from(ROLES), unique=True))
    ranges = st.tuples(st.integers(1, 9), st.integers(0, 3)).map(lambda pair: (pair[0], sum(pair)))
    layers = st.none() | st.just("all") | ranges
    terms = [Term(role, data.draw(attentions(role)), data.draw(layers)) for role in ROLES if role in roles]
    plan = Plan(tuple(terms))
    assert parse_attention(str(plan)) == plan


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("Enc(AV)", 4, "'AV' is not an attention; did you mean 'AW'?"),
        ("Enc(Global)", 4, "'Global' is not an attention"),
        ("enc(AW)", 0, "did you mean 'Enc'?"),
        ("Enc(AW)-Dce(MW)", 8, "'Dce' is not a role; did you mean 'Dec'?"),
        ("Enc(AW,Sge)", 7, "did you mean 'Seg'?"),
        ("Enc(AW,Seg=x)", 11, "expected a whole number for Seg"),
        ("Enc(AW,Seg=0)", 11, "Seg is 0"),
        ("Enc(AW,Dim)", 10, 'expected "=" and a number after Dim, as Dim=8'),
        ("Enc(AW,Seg=2,Seg)", 13, "Seg is there twice"),
        ("Enc(AW,Exact,Ordered)", 13, "Ordered and Exact exclude each other"),
        ("Enc(AW,Dim=0)", 11, "Dim is 0"),
        ("Enc(AW,Gate)", 7, "to a trained model, which AW does not have"),
        ("Enc(AW,Norm)", 7, "divided by their sum, which AW does not have"),
        ("Enc(AW,Sink=2)", 7, "always visible, which AW does not have"),
        ("Enc(MW,Sink)", 11, 'expected "=" and a number after Sink'),
        ("Enc(AW", 6, 'expected ")"'),
        ("Enc AW", 4, 'expected "(" after Enc'),
        ("Enc(AW)Dec(MW)", 7, 'expected "-" between two terms'),
        ("Enc(AW)-", 8, "expected a role; choose from Enc, Cr, Dec"),
        ("", 0, "expected a role"),
        ("Enc(AW)@3-1", 8, "layers 3-1 run backwards"),
        ("Enc(AW)@0", 8, "is 0, but counts from 1"),
        ("Enc(AW)@first", 8, "(or @all)"),
        ("Dec(Loc)", 4, "Yang et al. 2018), bidirectional only, for Enc and not for Dec"),
        ("Enc(Gauss)", 4, "for Cr and not for Enc"),
        ("Cr(Rel)", 3, "for Enc and Dec and not for Cr"),
        ("Enc(Rel,Seg)", 8, "which Rel does not have"),
        ("Enc(AW)-Enc(MW)@all", 8, "share a layer"),
        ("Enc(AW)@1-3-Enc(MW)@3-4", 12, "share a layer"),
        ("Enc(AW)-Enc(MW)@1", 8, "share a layer"),
    ],
)
def test_errors_point_at_the_place(text, column, message):
    with pytest.raises(NotationError) as caught:
        parse_attention(text)
    reason, quoted, caret = str(caught.value).split("\n")
    assert message in reason
    assert quoted == "  " + text
    assert caret == " " * (2 + column) + "^"


def test_layers_beyond_the_model_are_an_error():
    with pytest.raises(ValueError, match=r"Enc\(AW\)@1-4 names layer 3, but the model has 2 Enc layers"):
        parse_attention("Enc(AW)@1-4").attentions("Enc", 2)
    with pytest.raises(ValueError, match="gives Enc layer 2 two attentions"):
        parse_attention("Enc(AW)-Enc(MW)@2").attentions("Enc", 4)


def test_segments_in_a_decoder_are_allowed_with_a_warning():
    with pytest.warns(UserWarning, match="no segments in decoder self-attention"):
        plan = parse_attention("Dec(MW,Seg)")
    assert plan.attentions("Dec", 1) == (Attention("MW", segment_size=5),)


def test_options_and_kinds_have_distinct_names():
    assert not set(OPTIONS) & set(KINDS)


def test_a_window_may_have_relative_positions_of_its_own():
    assert str(parse_attention("Enc(AW, Seg, Dist=16)-Dec(MW,Dist=4)")) == "Enc(AW,Seg,Dist)-Dec(MW,Dist=4)"
    assert parse_attention("Enc(AW,Dist)").attentions("Enc", 1)[0].relative_size == 16
    with pytest.raises(NotationError, match="for Enc and Dec and not for Cr"):
        parse_attention("Cr(AW,Dist)")


@pytest.mark.parametrize("kind", ["Fox", "Stick"])
def test_causal_kinds_are_for_decoders_alone(kind):
    assert str(parse_attention(f"Dec({kind})@all")) == f"Dec({kind})@all"
    with pytest.raises(NotationError, match="for Dec and not for Enc"):
        parse_attention(f"Enc({kind})")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: parse_attention(3), TypeError, "a notation is a str, as 'Enc(AW)', not 3"),
        (lambda: Plan("Enc(AW)"), TypeError, "terms='Enc(AW)' is not a tuple of Term"),
        (lambda: Term("Enc", "AW"), TypeError, "attention='AW' is not an Attention"),
        (lambda: Term("enc", Attention("AW")), ValueError, "did you mean 'Enc'?"),
        (lambda: Attention("WA"), ValueError, "kind='WA' is not one of"),
        (lambda: Attention("MW", gate="no"), TypeError, "gate='no' is not a bool"),
        (lambda: Attention("AW", boundary_dim=True), TypeError, "boundary_dim=True is not an integer"),
        (lambda: Plan().attentions("Enc", "3"), TypeError, "num_layers='3' is not an integer"),
    ],
)
def test_what_is_no_notation_is_named(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert message in str(caught.value)
