"""Windows saved apart from their base, and put back: exactly, and only where they belong."""

import json

import pytest
import torch
from tiny import inputs_of, model_of, open_windows, outputs_of, plan_of
from torch.testing import assert_close

from diffwindow.hf import add_windows, load_windows, save_windows, windows_of
from diffwindow.models.weights import ModelFileError
from diffwindow.models.window_adapter import WindowAdapter

PLAN = "Enc(AW,Dim=2)-Cr(AW,Seg)-Dec(MW,Norm)@all"


@pytest.fixture
def saved(tmp_path):
    model = open_windows(add_windows(model_of("t5"), PLAN, window_tolerance=0.3))
    save_windows(model, tmp_path)
    return tmp_path, model


def test_save_and_load(saved):
    folder, model = saved
    loaded = load_windows(model_of("t5"), folder)
    assert_close(outputs_of("t5", loaded), outputs_of("t5", model))
    windows = [module for module in loaded.modules() if isinstance(module, WindowAdapter)]
    assert {window.options.window_tolerance for window in windows} == {0.3}
    state = model.state_dict()
    assert all(torch.equal(x, state[name]) for name, x in loaded.state_dict().items())
    assert {path.name for path in folder.iterdir()} == {"windows.safetensors", "windows.json"}
    for dtype in (torch.bfloat16, torch.float16):
        half = load_windows(model_of("t5").to(dtype), folder)
        assert {p.dtype for p in half.parameters()} == {dtype}


def test_windows_of_a_base_in_half_precision_fit_the_whole_base(tmp_path):
    save_windows(add_windows(model_of("t5").half(), "Enc(AW)"), tmp_path)
    load_windows(model_of("t5"), tmp_path)


@pytest.mark.usefixtures("unchecked")
def test_another_base_is_refused_unless_asked_for(saved):
    folder, _ = saved
    other = model_of("t5", seed=1)
    with pytest.raises(ModelFileError, match="were trained on another base than this T5For"):
        load_windows(other, folder)
    assert str(windows_of(other)) == "no windows"
    with pytest.raises(TypeError, match="check_base='no' is not a bool"):
        load_windows(other, folder, check_base="no")
    assert len(windows_of(load_windows(other, folder, check_base=False)).rows) == 4


def test_a_base_that_differs_in_one_value_is_refused(saved):
    """A last value of a parameter counts, and in fp32 a change that bf16 would not show."""
    folder, _ = saved
    other = model_of("t5")
    with torch.no_grad():
        other.shared.weight[-1, -1] *= 1 + 1e-6
    with pytest.raises(ModelFileError, match="were trained on another base than this T5For"):
        load_windows(other, folder)
    # rounded, it is the same base
    load_windows(other.bfloat16(), folder)


@pytest.mark.parametrize("loaded_as", [torch.float16, torch.float32])
def test_a_base_in_fp16_is_compared_in_fp16(tmp_path, loaded_as):
    """In bf16, which is coarser, the change would not show."""
    save_windows(add_windows(model_of("t5").half(), "Enc(AW)"), tmp_path)
    other = model_of("t5").half()
    weight = other.shared.weight.data
    changed = (weight.float() * (1 + 2**-10)).half()
    weight.copy_(torch.where(changed.bfloat16() == weight.bfloat16(), changed, weight))
    with pytest.raises(ModelFileError, match="were trained on another base"):
        load_windows(other.to(loaded_as), tmp_path)


def test_parts_of_a_base_in_other_types_are_compared_in_these(tmp_path):
    """A buffer, which decides the experts here, is part of the base; integers are not rounded."""

    def base(offset=0.0):
        model = model_of("deepseek").bfloat16()
        router = model.model.layers[1].mlp
        router.register_buffer("bias", torch.ones(4) + offset)
        router.register_buffer("packed", torch.full((4,), 2**24) + int(offset > 0))
        return model

    save_windows(add_windows(base(), "Dec(AW)"), tmp_path)
    load_windows(base(), tmp_path)
    load_windows(base().float(), tmp_path)
    for other in (base(1e-6), base(1.0).float()):
        with pytest.raises(ModelFileError, match="were trained on another base"):
            load_windows(other, tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama", {"attention_dropout": 0.5, "eos_token_id": 5, "pad_token_id": None}, None),
        ("llama", {"max_position_embeddings": 32}, "max_position_embeddings=64, but this LlamaFor.* has 32"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
            "rope_parameters.rope_theta=10000.0, but this LlamaFor.* has 500000.0",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "attention_factor": 2.0}},
            "rope_parameters.attention_factor=None, but this LlamaFor.* has 2.0",
        ),
        # positions count from it
        ("roberta", {"pad_token_id": 3}, "pad_token_id=0, but this RobertaFor.* has 3"),
    ],
)
def test_a_base_that_computes_something_else_from_the_same_weights_is_refused(
    tmp_path, name, changes, message
):
    save_windows(add_windows(model_of(name), plan_of(name)), tmp_path)
    other = model_of(name)
    vars(other.config).update(changes)
    if message is not None:
        with pytest.raises(ModelFileError, match=f"were trained on a base with {message}"):
            load_windows(other, tmp_path)
    load_windows(other, tmp_path, check_base=message is None)


@pytest.mark.usefixtures("unchecked")
def test_damage_is_found(saved):
    folder, _ = saved
    weights = (folder / "windows.safetensors").read_bytes()
    (folder / "windows.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(ModelFileError, match=r"windows.safetensors is missing or damaged"):
        load_windows(model_of("t5"), folder)
    (folder / "windows.safetensors").write_bytes(weights)
    description = json.loads((folder / "windows.json").read_text())
    for change, message in (
        ({"format": 1}, "has format 1, and this version reads 2"),
        ({"base": {}}, "windows.json is damaged: base.name: Field required; save the windows again"),
        ({"base": 5}, "windows.json is damaged: base=5: "),
        ({"base": description["base"] | {"config": {}}}, r"windows.json is damaged: base.config=\{\}: "),
        ({"base": description["base"] | {"fingerprints": {"x": "y"}}}, "trained on another base"),
        ({"window_tolerance": "wide"}, "windows.json is damaged: window_tolerance='wide': "),
        ({"window_tolerance": -1}, "windows.json is damaged: window_tolerance=-1: .* than or equal to 0"),
        ({"plan": 5}, "is damaged: plan=5: "),
        # a plan with tensors of the same shapes
        (
            {"plan": description["plan"].replace("Seg", "Seg=3")},
            r"describes Enc.*Seg=3.* but .*windows.safetensors was saved with Enc.*,Seg\)",
        ),
    ):
        (folder / "windows.json").write_text(json.dumps(description | change))
        with pytest.raises(ModelFileError, match=message):
            load_windows(model_of("t5"), folder)
    (folder / "windows.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"windows.json is damaged: Expecting"):
        load_windows(model_of("t5"), folder)
    with pytest.raises(ModelFileError, match="there is no folder"):
        load_windows(model_of("t5"), folder / "nowhere")
    with pytest.raises(TypeError, match="None is not a folder of windows; pass its path"):
        load_windows(model_of("t5"), None)
    (folder / "windows.json").unlink()
    with pytest.raises(ModelFileError, match="holds no windows"):
        load_windows(model_of("t5"), folder)


def test_windows_that_do_not_fit_change_nothing(saved):
    folder, _ = saved
    model = model_of("bart")
    with pytest.raises(ModelFileError, match=r"the tensor .* that BartFor.* needs"):
        load_windows(model, folder, check_base=False)
    assert str(windows_of(model)) == "no windows"


@pytest.mark.parametrize("max_shard_size", ["5GB", "10KB"])
def test_a_checkpoint_of_transformers(tmp_path, max_shard_size):
    """`from_pretrained` leaves windows out; `load_windows` puts them back."""
    model = open_windows(add_windows(model_of("llama"), "Dec(MW)@all"))
    model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    plain = type(model).from_pretrained(tmp_path)
    assert not any(isinstance(module, WindowAdapter) for module in plain.modules())
    assert "was saved with Dec(MW,Gate)@all; load_windows puts them back" in str(windows_of(plain))
    loaded = load_windows(plain, tmp_path)
    assert_close(loaded(**inputs_of("llama")).logits, model(**inputs_of("llama")).logits)
    shard = min(tmp_path.glob("model*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match=r"model.*safetensors is not a complete safetensors file"):
        load_windows(model_of("llama"), tmp_path)


def test_nothing_to_save_is_said(tmp_path):
    with pytest.raises(ValueError, match="has no windows to save"):
        save_windows(model_of("t5"), tmp_path)


def test_a_checkpoint_under_the_names_of_older_versions_has_its_windows(tmp_path):
    model = open_windows(add_windows(model_of("vit"), "Enc(AW)"))
    model.save_pretrained(tmp_path)
    base = type(model).from_pretrained(tmp_path)
    assert_close(outputs_of("vit", load_windows(base.eval(), tmp_path)), outputs_of("vit", model))


def test_a_model_with_offloaded_layers_takes_windows_without_a_check_of_its_base(tmp_path):
    model = open_windows(add_windows(model_of("gpt2"), "Dec(AW)@1"))
    save_windows(model, tmp_path)
    offloaded = model_of("gpt2")
    offloaded.transformer.h[1].to("meta")
    with pytest.raises(ValueError, match="are offloaded, so that its weights cannot be compared"):
        load_windows(offloaded, tmp_path)
    loaded = load_windows(offloaded, tmp_path, check_base=False)
    name, wanted = next((n, p) for n, p in model.named_parameters() if "added_window" in n)
    assert torch.equal(dict(loaded.named_parameters())[name], wanted)


def test_a_model_without_its_weights_is_refused(saved):
    folder, _ = saved
    with torch.device("meta"):
        model = model_of("t5")
    with pytest.raises(ValueError, match="on the meta device has no weights yet; load them first"):
        load_windows(model, folder)
