"""Windows in every family of transformers: nothing changes at first, gradients flow, all can be undone."""

import copy
from functools import partial

import pytest
import torch
import transformers
from tiny import (
    MODELS,
    bert,
    gemma2,
    gpt2,
    gpt_oss,
    inputs_of,
    llama,
    mamba,
    mistral,
    model_of,
    open_windows,
    outputs_of,
    plan_of,
    tokens,
)
from torch import nn
from torch.testing import assert_close

import diffwindow
from diffwindow import Classifier, ClassifierConfig, LanguageModel, LanguageModelConfig, hf
from diffwindow.hf import (
    add_windows,
    as_transformers,
    freeze_base,
    load_windows,
    remove_windows,
    save_windows,
    windows_of,
)
from diffwindow.models.window_adapter import WindowAdapter

KINDS = ["AW", "MW"]


def windows(model):
    return [module for module in model.modules() if isinstance(module, WindowAdapter)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_nothing_changes_at_first_and_all_can_be_undone(name, kind):
    model = model_of(name)
    before, state = outputs_of(name, model), copy.deepcopy(model.state_dict())
    assert add_windows(model, plan_of(name, kind), boundary_dim=3) is model
    assert len(windows(model)) == 2 * len(MODELS[name][1])
    assert_close(outputs_of(name, model), before, rtol=1e-5, atol=2e-6)
    open_windows(model)
    assert not torch.allclose(outputs_of(name, model), before, atol=1e-3)
    assert remove_windows(model) is model
    assert not windows(model)
    after = model.state_dict()
    assert after.keys() == state.keys()
    assert all(torch.equal(after[key], value) for key, value in state.items())
    assert torch.equal(outputs_of(name, model), before)
    assert not hasattr(model.config, "diffwindow")


@pytest.mark.parametrize("role", ["Enc", "Cr", "Dec"])
def test_each_role_is_where_it_should_be(role):
    """A window in one role of a model changes the layers of that role only."""
    model = add_windows(model_of("marian"), f"{role}(MW)")
    names = [name for name, module in model.named_modules() if isinstance(module, WindowAdapter)]
    places = {
        "Enc": "model.encoder.layers.0.self_attn",
        "Dec": "model.decoder.layers.0.self_attn",
        "Cr": "model.decoder.layers.0.encoder_attn",
    }
    assert names == [f"{places[role]}.added_window"]


def test_a_closed_gate_gives_the_stock_outputs_bit_for_bit():
    model = model_of("gpt2")
    before = outputs_of("gpt2", model)
    assert torch.equal(outputs_of("gpt2", add_windows(model, "Dec(MW)@all")), before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_windows_learn_from_the_start_and_the_base_can_be_frozen(name, kind):
    model = freeze_base(add_windows(model_of(name), plan_of(name, kind)))
    trained = [p for p in model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == windows_of(model).parameters
    optimizer = torch.optim.SGD(trained, 10.0)
    for _ in range(2):
        optimizer.zero_grad()
        outputs_of(name, model).square().mean().backward()
        optimizer.step()
    # what opens the window moves in the first step, its boundaries in the second
    for window in windows(model):
        assert all(parameter.grad.abs().max() > 0 for parameter in window.parameters())


def test_a_causal_model_stays_causal():
    for name in ("gpt2", "llama", "t5", "bart"):
        model = open_windows(add_windows(model_of(name), "Dec(MW)@1-Dec(AW)@2"))
        key = "decoder_input_ids" if name in ("t5", "bart") else "input_ids"
        changed = inputs_of(name)[key].clone()
        changed[:, 5:] = 3
        assert_close(outputs_of(name, model)[:, :5], outputs_of(name, model, **{key: changed})[:, :5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_float_masks_of_any_type_hide_keys_from_windows_too(dtype):
    model = open_windows(add_windows(model_of("llama"), plan_of("llama")))
    visible = torch.ones(9, 9, dtype=torch.bool).tril().expand(3, 1, 9, 9)
    added = torch.zeros(3, 1, 9, 9).masked_fill(~visible, torch.finfo(dtype).min)
    assert_close(model(tokens(), attention_mask=added).logits, model(tokens()).logits)
    with pytest.raises(TypeError, match=r"the mask of each query is torch.int64; pass booleans"):
        model(tokens(), attention_mask=visible.long())


def test_another_implementation_does_not_leave_windows_out_in_silence():
    model = add_windows(model_of("bert"), "Enc(AW)")
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match=r"attn_implementation='eager' leaves out; call model.set_attn_impl"):
        outputs_of("bert", model)
    model.set_attn_implementation("diffwindow")
    outputs_of("bert", model)
    remove_windows(copy.deepcopy(model)).set_attn_implementation("eager")
    plain = remove_windows(model)
    plain.set_attn_implementation("eager")
    outputs_of("bert", plain)


def test_the_paper_start_is_not_the_identity():
    model = model_of("bert")
    before = outputs_of("bert", model)
    add_windows(model, "Enc(MW)", init="paper")
    assert windows(model)[0].gate is None
    assert not torch.allclose(outputs_of("bert", model), before, atol=1e-3)


def test_the_table_of_windows():
    model = add_windows(model_of("bart"), "Enc(AW)-Cr(AW,Seg)-Dec(MW)", boundary_dim=2)
    table = windows_of(model)
    # left and right: query and key of 2 or 4 heads, 8 or 4 wide, to 2; AW adds a local pair; MW a gate a head
    encoder, cross, decoder = 4 * 2 * 8 * 2 + 2 * 2 * 8 * 8, 4 * 4 * 4 * 2 + 2 * 4 * 4 * 4, 4 * 4 * 4 * 2 + 4
    assert sorted(row.parameters for row in table.rows) == sorted([encoder, cross, decoder])
    assert all(row.width is None for row in table.rows)
    outputs_of("bart", model)
    table = windows_of(model)
    assert all(1.0 <= row.width <= 9.0 for row in table.rows)
    assert "model.decoder.layers.0.encoder_attn  AW,Seg,Dim=2 " in str(table)
    assert f"{encoder + cross + decoder:,} parameters in 3 windows" in str(table)
    assert str(windows_of(model_of("bart"))) == "no windows"


def test_the_width_is_the_number_of_keys_between_the_boundaries():
    """Uniform pointers over n visible keys are E|l - r| + 1 = (n² - 1)/3n + 1 keys apart."""
    model = add_windows(model_of("gpt2"), "Dec(AW)@1")
    (window,) = windows(model)
    for pair in (window.left, window.right):
        nn.init.zeros_(pair.query)
    outputs_of("gpt2", model)
    widths = [(n * n - 1) / (3 * n) + 1 for n in range(1, 10)]
    assert window.mean_width() == pytest.approx(sum(widths) / 9, rel=1e-5)


def test_widths_are_of_the_last_call_outside_of_transforms():
    """What a transform computes with is gone after it."""
    model = add_windows(model_of("bert"), "Enc(AW)@all")
    model(tokens())
    before = windows_of(model)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(values, row):
        return torch.func.functional_call(model, values, (row[None],)).logits.square().mean()

    torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, tokens(seed=1))
    assert windows_of(model) == before


def test_torch_and_our_models_are_taken_too():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2)
    assert windows_of(add_windows(encoder, "Enc(AW)")).rows[0].parameters == 6 * 8 * 9
    assert windows_of(remove_windows(encoder)).rows == ()
    ours = add_windows(Classifier(ClassifierConfig(vocab_size=9)), "Enc(MW)")
    assert ours.config.attention == "Enc(MW,Gate)"


def test_a_model_that_is_not_in_the_table_goes_by_its_marks():
    config = transformers.Olmo2Config(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0,
    )  # fmt: skip
    model = transformers.Olmo2ForCausalLM(config).eval()
    before = model(tokens()).logits
    assert_close(add_windows(model, "Dec(AW)@all")(tokens()).logits, before, rtol=1e-5, atol=2e-6)
    assert len(windows(model)) == 2


def xlnet():
    """A model whose attention does not go through the interface."""
    return transformers.XLNetModel(transformers.XLNetConfig(vocab_size=9, d_model=8, n_layer=1, n_head=2))


@pytest.mark.parametrize(
    ("build", "attention", "message"),
    [
        (bert, "Dec(AW)", "Dec(AW) is for a role that this model does not have; it has Enc"),
        (bert, "Enc(AW)@3", "names layer 3, but the model has 2 Enc layers"),
        (bert, "Enc(AW,Dim=9)", "has wider boundaries than the heads, which are 4 wide"),
        (bert, "Enc(Rel)", "only AW and MW can be added"),
        (
            lambda: add_windows(bert(), "Enc(AW)"),
            "Enc(AW)",
            "has windows already; remove_windows takes them out",
        ),
        (
            lambda: mistral(4),
            "Dec(AW,Seg)",
            "has a sliding window of 4 keys, along which segments would move",
        ),
        (lambda: mistral(4), "Dec(MW,Sink=2)", "along which sinks would move; leave out Sink"),
        (xlnet, "Enc(AW)", "get_interface, as Bert's do"),
        (gemma2, "Dec(AW)", "(Gemma2Attention) has a cap on its scores (attn_logit_softcapping)"),
        (gpt_oss, "Dec(AW)", "(GptOssAttention) has learned sinks (sinks)"),
        (mamba, "Dec(AW)", "MambaForCausalLM has no attention that windows could be added to"),
    ],
)
@pytest.mark.filterwarnings("ignore:the paper has no segments in decoder")
def test_what_cannot_be_done_is_said_and_changes_nothing(build, attention, message):
    model = build()
    before = [type(module) for module in model.modules()], model.config._attn_implementation
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        add_windows(model, attention)
    assert message in str(caught.value)
    assert ([type(module) for module in model.modules()], model.config._attn_implementation) == before


def test_a_model_on_disk_is_refused(tmp_path):
    """No weight of it is in memory, as in a model that has none yet."""
    llama().save_pretrained(tmp_path / "model")
    model = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "model", device_map={"": "disk"}, offload_folder=tmp_path / "offloaded"
    )
    with pytest.raises(ValueError, match="the weights of a LlamaAttention are offloaded; load the model"):
        add_windows(model, "Dec(AW)")


def test_models_on_one_config_do_not_share_their_windows(tmp_path):
    config = bert().config
    first, second, plain = (transformers.BertForMaskedLM(config) for _ in range(3))
    add_windows(first, "Enc(AW)")
    add_windows(second, "Enc(MW)")
    derived, windowed = (transformers.BertForMaskedLM(second.config) for _ in range(2))
    add_windows(windowed, "Enc(AW)")
    for model in (first, derived, windowed):
        remove_windows(model)
    for model in (plain, first, derived, windowed):
        assert (model.config._attn_implementation, hasattr(model.config, "diffwindow")) == ("sdpa", False)
    outputs_of("bert", second)
    save_windows(second, tmp_path)
    assert second.config.diffwindow["plan"] == "Enc(MW,Gate)"


def test_windows_of_a_part_are_saved_and_removed_there_or_from_the_whole(tmp_path):
    model = bert()
    add_windows(model.bert, "Enc(AW)")
    with pytest.raises(ValueError, match="the windows of BertForMaskedLM were added to a part of it"):
        save_windows(model, tmp_path)
    save_windows(model.bert, tmp_path)
    remove_windows(model)
    assert model.bert.config._attn_implementation == "sdpa"
    assert len(windows_of(load_windows(model.bert, tmp_path)).rows) == 1


def test_removal_restores_the_implementation_of_each_part():
    model = model_of("t5")
    model.encoder.set_attn_implementation("eager")
    parts = (model, model.encoder, model.decoder)
    before, outputs = [part.config._attn_implementation for part in parts], outputs_of("t5", model)
    assert set(before) == {"eager", "sdpa"}
    remove_windows(add_windows(model, plan_of("t5")))
    assert [part.config._attn_implementation for part in parts] == before
    assert torch.equal(outputs_of("t5", model), outputs)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_model_or_no_folder_is_named(tmp_path):
    calls = [remove_windows, windows_of, freeze_base, diffwindow.remove_windows]
    calls += [partial(add, attention="Enc(AW)") for add in (add_windows, diffwindow.add_windows)]
    calls += [partial(save_or_load, folder=tmp_path) for save_or_load in (save_windows, load_windows)]
    for call in calls:
        with pytest.raises(TypeError, match=r"model is None; pass a torch.nn.Module"):
            call(None)
    with pytest.raises(TypeError, match="a Linear is not a transformers model"):
        save_windows(torch.nn.Linear(1, 1), tmp_path)
    with pytest.raises(TypeError, match="None is not a folder of windows; pass its path"):
        save_windows(add_windows(bert(), "Enc(AW)"), None)


def test_a_compiled_model_is_not_taken_for_one_without_windows():
    compiled = torch.compile(add_windows(bert(), "Enc(AW)"), backend="eager")
    for call in (remove_windows, lambda model: add_windows(model, "Enc(AW)")):
        with pytest.raises(ValueError, match=r"OptimizedModule wraps a Bert.*; give the model itself"):
            call(compiled)


def test_windows_of_a_wrapped_model_of_ours_are_those_inside(tmp_path):
    config = LanguageModelConfig(
        vocab_size=9, embed_dim=8, num_heads=2, ffn_dim=8, num_layers=1, attention="Dec(AW)"
    )
    wrapped = as_transformers(LanguageModel(config))
    for call in (remove_windows, freeze_base, lambda model: add_windows(model, "Dec(AW)"),
                 lambda model: save_windows(model, tmp_path)):  # fmt: skip
        with pytest.raises(ValueError, match=r"wraps a model of ours; its windows are those of `.model`"):
            call(wrapped)
    with pytest.raises(ValueError, match=r"for a transformers model use diffwindow.hf"):
        diffwindow.remove_windows(add_windows(bert(), "Enc(AW)"))


def test_queries_of_another_width_than_the_module_says_are_named():
    model = bert()
    attention = model.bert.encoder.layer[0].attention.self
    attention.attention_head_size = 7
    add_windows(model, "Enc(AW)@1")
    attention.attention_head_size = 4
    with pytest.raises(ValueError, match="is for 4 heads of width 7, but the queries have 4 of width 4"):
        model(tokens())


def test_a_missing_family_says_how_to_add_it(monkeypatch):
    monkeypatch.setitem(hf.FAMILIES, "gpt2", hf.Family("nowhere"))
    with pytest.raises(ValueError, match=r"diffwindow.hf.FAMILIES\['gpt2'\] = Family\("):
        add_windows(gpt2(), "Dec(AW)")
    with pytest.raises(ValueError, match="has no windows that can be trained alone; add_windows adds them"):
        freeze_base(gpt2())


def test_windows_of_weights_of_a_byte_can_be_trained():
    model = model_of("llama").bfloat16()
    for name, parameter in model.named_parameters():
        if "self_attn" in name:
            parameter.requires_grad_(False)
            parameter.data = parameter.data.to(torch.float8_e4m3fn)
    add_windows(model, "Dec(MW)")
    assert {p.dtype for window in windows(model) for p in window.parameters()} == {torch.bfloat16}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("layers", [(0, 1), (3, 1), (1,), 2, (True, 2), (1, 2.0), (1, "2")])
def test_layers_that_cannot_be_are_refused(layers):
    model = model_of("llama")
    with pytest.raises(ValueError, match="give the first and the last layer, from 1"):
        add_windows(model, "Dec(MW)", layers=layers)
    assert not windows(model)
