"""Windows added to plain models of ours and of torch.nn: nothing changes at first, and all can be undone."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from diffwindow import Translator, WindowAttention
from diffwindow.models.added_windows import add_windows, remove_windows
from samples.small_models import classifier, language_model, tokens, translator

BEST = "Enc(AW)-Cr(AW,Seg)-Dec(MW)"
MODELS = {
    "translator": (translator, BEST, lambda: (tokens(3, 7), tokens(3, 5, seed=1))),
    "language_model": (language_model, "Dec(MW)@1-Dec(AW)@2", lambda: (tokens(3, 7),)),
    "classifier": (classifier, "Enc(MW,Seg=3)@all", lambda: (tokens(3, 7),)),
}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def randomise(model):
    """Open the windows: large parameters everywhere."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)


def same_state(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", MODELS)
def test_our_models_keep_their_outputs_and_can_be_undone(name):
    build, attention, inputs = MODELS[name]
    model, x = build("Global"), inputs()
    before, state = model(*x), copy.deepcopy(model.state_dict())
    assert add_windows(model, attention) is model
    assert_close(model(*x), before)
    windows = [module for module in model.modules() if isinstance(module, WindowAttention)]
    assert all(window.dropout == 0.0 and not window.training for window in windows)
    model(*x).square().sum().backward()
    for window in windows:
        rows = window.in_proj.weight.grad[window.local_query_rows()]
        assert (rows if window.window == "additive" else window.gate.grad).abs().max() > 0
    assert remove_windows(model) is model
    assert model.config.attention == "Global"
    assert same_state(model.state_dict(), state)
    assert torch.equal(model(*x), before)


def test_a_windowed_model_is_one_of_ours(tmp_path):
    model = add_windows(translator("Global"), BEST, layers="all", boundary_dim=2)
    assert model.config.attention == "Enc(AW,Dim=2)@all-Cr(AW,Seg,Dim=2)@all-Dec(MW,Dim=2,Gate)@all"
    randomise(model)
    model.save_pretrained(tmp_path)
    source, target = tokens(3, 7), tokens(3, 5, seed=1)
    loaded = Translator.from_pretrained(tmp_path)
    assert same_state(loaded.state_dict(), model.state_dict())
    assert_close(loaded(source, target), model(source, target))


@pytest.mark.parametrize("rotary", ["scores", "pointers", "both"])
@pytest.mark.parametrize("attention", ["Enc(AW)@all", "Enc(MW)@all"])
def test_rotary_positions_stay(rotary, attention, tmp_path):
    model, x = classifier("Global", positions="rotary", rotary=rotary), tokens(3, 7)
    before = model(x)
    assert_close(add_windows(model, attention)(x), before)
    randomise(model)
    model.save_pretrained(tmp_path)
    assert_close(type(model).from_pretrained(tmp_path)(x), model(x))
    remove_windows(model).save_pretrained(tmp_path / "plain")
    assert_close(type(model).from_pretrained(tmp_path / "plain")(x), model(x))


def test_what_multihead_attention_lacks_is_not_dropped():
    with pytest.raises(ValueError, match="has no rotary positions"):
        remove_windows(WindowAttention(8, 2, rotary="scores"))
    with pytest.raises(ValueError, match=r"has relative positions .* which would be lost with it"):
        remove_windows(WindowAttention(8, 2, relative_size=4))
    with pytest.raises(ValueError, match=r"has relative positions .* which would be lost with it"):
        remove_windows(classifier("Enc(AW,Dist)"))
    with pytest.raises(ValueError, match="has relative positions"):
        add_windows(nn.MultiheadAttention(8, 2), "Enc(AW,Dist)")


def test_the_paper_start_is_not_the_identity():
    model, x = classifier("Global"), tokens(3, 7)
    before = model(x)
    assert add_windows(model, "Enc(MW)", init="paper").config.attention == "Enc(MW)"
    assert not torch.allclose(model(x), before)


TORCH = {
    "Transformer": lambda: nn.Transformer(8, 2, 2, 2, 16, batch_first=True),
    "TransformerEncoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 3),
    "TransformerDecoder": lambda: nn.TransformerDecoder(
        nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, bias=False, norm_first=True), 2
    ),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
}


def call(model, x, y):
    causal = nn.Transformer.generate_square_subsequent_mask(6)
    if isinstance(model, nn.Transformer):
        return model(x, y, tgt_mask=causal)
    if isinstance(model, nn.TransformerDecoder):
        return model(y, x, tgt_mask=causal, tgt_is_causal=True)
    return model(x)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", TORCH)
def test_torch_models_keep_their_outputs_and_can_be_undone(name, mode):
    model = TORCH[name]().double()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    model.train(mode == "train")
    x, y = torch.randn(6, 6, 8).double(), torch.randn(6, 6, 8).double()
    before, state = call(model, x, y), copy.deepcopy(model.state_dict())
    attention = {"Encoder": "Enc(AW)", "Decoder": "Cr(AW,Seg)-Dec(MW)"}
    chosen = next((text for part, text in attention.items() if part in name), BEST)
    assert add_windows(model, chosen) is model
    assert any(isinstance(module, WindowAttention) for module in model.modules())
    assert_close(call(model, x, y), before)
    with pytest.raises(ValueError, match="not to WindowAttention"):
        add_windows(model, chosen)
    remove_windows(model)
    assert same_state(model.state_dict(), state)
    assert_close(call(model, x, y), before)


@pytest.mark.parametrize("kind", ["AW", "MW,Seg=2"])
def test_a_single_attention(kind):
    plain = nn.MultiheadAttention(8, 2, bias=False).eval()
    x, y = torch.randn(5, 3, 8), torch.randn(7, 3, 8)
    window = add_windows(plain, f"Cr({kind})")
    for one, other in zip(window(x, y, y), plain(x, y, y), strict=True):
        assert_close(one, other)
    randomise(window)
    assert not torch.allclose(window(x, y, y)[0], plain(x, y, y)[0])
    assert same_state(remove_windows(add_windows(plain, "Enc(AW)")).state_dict(), plain.state_dict())


@pytest.mark.parametrize(
    ("model", "attention", "message"),
    [
        (lambda: classifier("Global"), "Dec(AW)", "for a role that this model does not have; it has Enc"),
        (lambda: classifier("Global"), "Enc(AW)@1-3", "names layer 3, but the model has 2 Enc layers"),
        (lambda: classifier("Global"), "Enc(Rel)", "only AW and MW can be added"),
        (lambda: classifier("Global"), "Global", "Global names no window"),
        (lambda: classifier("Enc(AW)"), "Enc(MW)", "the model has attention='Enc(AW)'"),
        (lambda: nn.Linear(2, 2), "Enc(AW)", "Linear has no layers of torch.nn.TransformerEncoder"),
        (
            TORCH["TransformerEncoder"],
            "Enc(AW)-Dec(AW)",
            "Dec(AW) is for a role that this model does not have",
        ),
        (lambda: nn.MultiheadAttention(8, 2, kdim=4), "Enc(AW)", "with kdim, vdim, add_bias_kv"),
        (lambda: nn.MultiheadAttention(8, 2), "Enc(AW)-Dec(AW)", "has 2 terms; a single attention takes one"),
    ],
)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_what_cannot_be_done_is_said_and_changes_nothing(model, attention, message):
    model = model()
    before = [type(module) for module in model.modules()]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        add_windows(model, attention)
    assert message in str(caught.value)
    assert [type(module) for module in model.modules()] == before


def test_boundaries_have_a_width():
    with pytest.raises(ValueError, match="boundary_dim=0 is not positive"):
        add_windows(translator("Global"), BEST, boundary_dim=0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_torch_encoder_with_a_later_window_reads_padding():
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    encoder, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    with torch.no_grad():
        before = encoder(x, src_key_padding_mask=padding)
        after = add_windows(encoder, "Enc(AW)@2")(x, src_key_padding_mask=padding)
    assert_close(after[~padding], before[~padding])


@pytest.mark.parametrize("heads", [2, 1])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_a_torch_encoder_without_windows_is_the_one_from_before(heads):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, heads, batch_first=True), 2).eval()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False, False, False, True, True]])
    packed = encoder.use_nested_tensor
    with torch.no_grad():
        before = encoder(x, src_key_padding_mask=padding)
        after = remove_windows(add_windows(encoder, "Enc(AW)"))(x, src_key_padding_mask=padding)
    assert_close(after, before)
    assert encoder.use_nested_tensor is packed is (heads == 2)


def test_windows_in_places_that_are_not_known_stay_no_secret():
    with pytest.raises(ValueError, match=r"Sequential has no layers of torch.nn.TransformerEncoder"):
        remove_windows(nn.Sequential(WindowAttention(8, 2)))


def test_an_output_layer_stays_frozen():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2)
    encoder.requires_grad_(False)
    add_windows(encoder, "Enc(AW)")
    trained = [name for name, parameter in encoder.named_parameters() if parameter.requires_grad]
    assert trained == ["layers.0.self_attn.in_proj.weight", "layers.0.self_attn.in_proj.bias"]
    remove_windows(encoder)
    assert not encoder.layers[0].self_attn.out_proj.weight.requires_grad


@pytest.mark.usefixtures("unchecked")
def test_a_plan_that_is_no_notation_is_named():
    with pytest.raises(TypeError, match=r"a notation is a str, as 'Enc\(AW\)', not None"):
        add_windows(nn.MultiheadAttention(8, 2), None)
