import pytest
from pydantic import ValidationError

from diffwindow import ClassifierConfig, LanguageModelConfig, TranslatorConfig
from diffwindow.tasks.presets import model_preset


def test_is_frozen_and_canonical():
    config = TranslatorConfig(vocab_size=10, attention="Dec(MW) - Enc(AW, Seg=5)")
    assert config.attention == "Enc(AW,Seg)-Dec(MW)"
    with pytest.raises(ValidationError, match="frozen"):
        config.vocab_size = 11


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"vocab_size": 10, "num_head": 2}, "TranslatorConfig: there is no field 'num_head'; did you mean"),
        ({}, "TranslatorConfig: vocab_size: Field required"),
        ({"vocab_size": 0}, "vocab_size=0: Input should be greater than or equal to 1"),
        ({"vocab_size": 10, "num_heads": 7}, "embed_dim=512 is not divisible by num_heads=7"),
        ({"vocab_size": 10, "embed_dim": 9, "num_heads": 3}, "embed_dim=9 is odd"),
        ({"vocab_size": 10, "dropout": 2.0}, "dropout=2.0: Input should be less than or equal to 1"),
        ({"vocab_size": 10, "dropout": True}, "TranslatorConfig: dropout=True is not a number"),
        ({"vocab_size": 10, "attention": "Enc(AW)@9"}, "names layer 9, but the model has 6 Enc layers"),
        ({"vocab_size": 10, "attention": "Dec(Loc)"}, "bidirectional only, for Enc and not for Dec"),
        ({"vocab_size": 10, "attention": "Enc(Gauss)"}, "for Cr and not for Enc"),
        ({"vocab_size": 10, "attention": "Cr(Rel)"}, "for Enc and Dec and not for Cr"),
    ],
)
def test_mistakes_are_one_sentence(fields, sentence):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the text is checked next)
        TranslatorConfig(**fields)
    assert sentence in str(error.value)
    assert not isinstance(error.value, ValidationError)


def test_only_sinusoids_need_an_even_width():
    fields = {"vocab_size": 10, "embed_dim": 9, "num_heads": 3}
    assert TranslatorConfig(**fields | {"positions": "none"}).embed_dim == 9


@pytest.mark.parametrize(
    ("config", "attention", "roles"),
    [(LanguageModelConfig, "Enc(AW)", "Dec"), (ClassifierConfig, "Cr(AW)", "Enc")],
)
def test_a_role_that_the_model_lacks_is_an_error(config, attention, roles):
    with pytest.raises(ValueError, match=f"role that this model does not have; it has {roles}"):
        config(vocab_size=10, attention=attention)


def test_the_notations_warning_comes_once():
    with pytest.warns(UserWarning, match="no segments in decoder"):
        config = LanguageModelConfig(vocab_size=10, attention="Dec(MW,Seg)")
    assert config.plan.attentions("Dec", 2)[0].segment_size == 5


def test_an_unknown_preset_is_an_error():
    with pytest.raises(ValueError, match=r"preset='wmt14'.*did you mean"):
        model_preset("wmt14")
