import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from diffwindow.attention.base import watch
from diffwindow.functional import attend
from diffwindow.tasks.presets import NAMES, model_preset
from samples.small_models import DECODER, ENCODER, classifier, language_model, notations, tokens, translator

pytestmark = pytest.mark.filterwarnings("ignore:the paper has no segments")

# The published counts, and those that the authors' logs print.
COUNTS = {
    "Global": 60_915_712,
    "Enc(AW)-Dec(MW)": 68_795_392,
    "Cr(AW,Seg)": 65_643_520,
    "Enc(AW)-Cr(AW,Seg)-Dec(MW)": 73_523_200,
    "Dec(MW)": 64_067_584,
    "Enc(AW,Seg)@all": 70_371_328,
    "Enc(AW)@all-Cr(AW)@all-Dec(AW)@all": 89_282_560,
}


@pytest.mark.parametrize(("attention", "parameters"), COUNTS.items())
def test_base_has_as_many_parameters_as_the_paper(attention, parameters):
    assert model_preset("wmt14-en-de", attention=attention).count_parameters() == parameters


@pytest.mark.parametrize("name", NAMES)
def test_presets_build_and_read_back(name):
    config = model_preset(name)
    assert type(config)(**config.model_dump()) == config
    with torch.device("meta"):
        model = config.build()
    assert model.config is config


def test_tiny_is_the_papers():
    tiny = model_preset("sst2", vocab_size=100)
    assert (tiny.num_layers, tiny.embed_dim, tiny.ffn_dim, tiny.num_heads) == (2, 128, 512, 4)
    # By default a window is in the first half of the layers, here one of two.
    windowed, plain = (model_preset("sst2", attention=name) for name in ("Enc(AW)", "Global"))
    assert windowed.count_parameters() - plain.count_parameters() == 6 * (128 * 128 + 128)


def test_initialisation():
    torch.manual_seed(0)
    model = model_preset("sst2").build()
    rows = model.embedding.weight
    assert rows[0].eq(0).all()
    assert abs(rows[1:].std().item() * 128**0.5 - 1) < 0.01
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert parameter.eq(0).all(), name


def test_initialisation_of_projections_is_a_setting():
    largest = {
        init: model_preset("sst2")
        .model_copy(update={"init": init})
        .build()
        .encoder.layers[0]
        .self_attention.attention.in_proj.weight.abs()
        .max()
        .item()
        for init in ("stacked", "separate")
    }
    assert largest["stacked"] <= (6 / (4 * 128)) ** 0.5 < 0.9 * largest["separate"]


@pytest.mark.parametrize("attention", ["Global", "Enc(AW)"])
def test_without_positions_windows_know_who_is_between_but_not_the_direction(attention):
    model, text = classifier(attention, positions="none"), tokens(2, 7)
    shuffled, backwards = text[:, [0, 2, 4, 6, 1, 3, 5]], text.flip(-1)
    assert torch.allclose(model(text), model(shuffled)) == (attention == "Global")
    # what lies between two boundaries is the same from either end
    assert_close(model(text), model(backwards))


@pytest.mark.parametrize("attention", notations())
def test_every_attention_trains(attention):
    model, source, target = translator(attention).train(), tokens(2, 6), tokens(2, 5)
    model.loss(source, target, target, label_smoothing=0.1).total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        # A bias of keys moves all scores of a query alike, which no softmax sees; a window's do not matter
        # for the same reason. Everything else must learn.
        if not name.endswith("in_proj.bias"):
            assert parameter.grad.ne(0).any(), name


@pytest.mark.parametrize("attention", notations())
def test_every_attention_runs_in_mixed_precision(attention):
    model, source, target = translator(attention).float(), tokens(2, 6), tokens(2, 5)
    expected = model.loss(source, target, target)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(source, target, target)
    loss.total.backward()
    # bfloat16 keeps 8 bits: two or three digits.
    assert_close(loss.total, expected.total, rtol=0.03, atol=0)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_loss_is_the_cross_entropy_of_the_logits():
    model, source, target, labels = translator("Global"), tokens(2, 6), tokens(2, 5), tokens(2, 5, seed=4)
    labels[1, 3:] = 0
    loss = model.loss(source, target, labels, label_smoothing=0.1)
    expected = F.cross_entropy(
        model(source, target).flatten(0, 1),
        labels.flatten(),
        ignore_index=0,
        label_smoothing=0.1,
        reduction="sum",
    )
    assert_close(loss.total, expected)
    text = tokens(2, 5)
    causal = language_model("Global")
    expected = F.cross_entropy(causal(text).flatten(0, 1), labels.flatten(), ignore_index=0, reduction="sum")
    assert_close(causal.loss(text, labels).total, expected)


def test_classifier_takes_the_mean_of_real_tokens():
    model, text = classifier("Global", num_classes=3), tokens(2, 6)
    text[1, 4:] = 0
    mean = model.encode(text)[1, :4].mean(0)
    assert_close(model(text)[1], model.output(mean))


@pytest.mark.parametrize(
    "model",
    [
        *(classifier(f"Enc({kind})@all") for kind in ENCODER if kind != "Rel=3"),
        *(language_model(f"Dec({kind})@all") for kind in DECODER if "Seg" not in kind and kind != "Rel=3"),
    ],
    ids=lambda model: model.config.attention,
)
def test_maps_are_the_attention_that_is_used(model):
    text = tokens(2, 7)
    text[1, 5:] = 0
    block = (model.encoder if "Enc" in model.config.attention else model.decoder).layers[0].self_attention
    inputs, maps = [], []
    handle = block.register_forward_hook(
        lambda _block, args, kwargs, out: inputs.append((*args, out)), with_kwargs=True
    )
    with watch([block.attention], lambda attention, *call: maps.append(attention.maps(*call))):
        model(text, text != 0)
    handle.remove()
    x, _, output = inputs[0]
    values = block.attention.key_heads(block.attention.project_keys(x))[-1]
    assert_close(block.leave(x, block.attention._merge_heads(attend(maps[0].weights, values))), output)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ((None,), TypeError, "tokens is None; pass a torch.Tensor"),
        ((torch.ones(2, 3),), TypeError, "tokens is torch.float32; pass the ids of tokens"),
        ((torch.ones(3).long(),), ValueError, "tokens has shape [3], not [batch, length]"),
        ((torch.full((2, 3), 30),), ValueError, "are from 30 to 30, but the vocabulary has 30"),
        ((tokens(2, 3), torch.ones(2, 3)), TypeError, "the mask of tokens is torch.float32; pass a boolean"),
        ((tokens(2, 3), torch.ones(2, 4).bool()), ValueError, "of tokens has shape [2, 4], not [2, 3]"),
    ],
)
def test_wrong_inputs_are_named(inputs, error, message):
    for model in (classifier("Global"), language_model("Global")):
        with pytest.raises(error) as caught:
            model(*inputs)
        assert message in str(caught.value)


@pytest.mark.usefixtures("unchecked")
def test_wrong_targets_are_named():
    model = translator("Global")
    with pytest.raises(TypeError, match=r"target is of type list; pass a torch.Tensor"):
        model(tokens(2, 3), [[1, 2]])
    with pytest.raises(ValueError, match="there are 2 sources and 3 targets; pass as many of both"):
        model(tokens(2, 3), tokens(3, 4))
