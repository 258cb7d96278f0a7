"""Training beside transformers' own tools: checkpointing, half precision, PEFT, Trainer."""

from functools import partial

import pytest
import torch
from tiny import model_of, open_windows, outputs_of, plan_of, tokens
from torch.testing import assert_close

from diffwindow import use_impl
from diffwindow.hf import add_windows, freeze_base, remove_windows, save_windows, windows_of
from diffwindow.models.window_adapter import WindowAdapter
from samples.kernel_marks import NEEDS_COMPILER

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def windowed(name, kind="AW"):
    return open_windows(add_windows(model_of(name), plan_of(name, kind)))


def gradients(name, model):
    model.zero_grad()
    outputs_of(name, model, use_cache=False).square().mean().backward()
    return {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_gradient_checkpointing_changes_nothing(name):
    model = windowed(name).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    expected = gradients(name, model)
    model.gradient_checkpointing_enable()
    found = gradients(name, model)
    assert found.keys() == expected.keys()
    for key in expected:
        assert_close(found[key], expected[key], rtol=1e-4, atol=1e-6)


@NEEDS_COMPILER
@pytest.mark.parametrize("kind", ["AW", "MW"])
def test_relative_biases_train_in_the_kernels(kind):
    model = windowed("t5", kind)
    found = {}
    for impl in ("reference", "cpu"):
        with use_impl(model, impl):
            found[impl] = gradients("t5", model)
    assert any("relative_attention_bias" in key for key in found["cpu"])
    for key, expected in found["reference"].items():
        assert_close(found["cpu"][key], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["AW", "MW"])
def test_half_precision(kind):
    model = windowed("llama", kind)
    expected = outputs_of("llama", model)
    found = outputs_of("llama", model.bfloat16())
    assert found.dtype == torch.bfloat16
    assert_close(found.float(), expected, rtol=0.1, atol=0.1 * expected.abs().max().item())
    # under autocast the parameters stay in single precision
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(outputs_of("llama", windowed("llama", kind)).float(), found.float(), rtol=0.1, atol=0.5)


# an older PEFT looks for the config of the base model, which was never saved
@pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning")
def test_peft_trains_and_saves_windows_beside_lora(tmp_path):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    base = add_windows(model_of("llama"), "Dec(AW)@all")
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2, modules_to_save=["added_window"])
    model = peft.get_peft_model(base, config)
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    assert any("lora_A" in name for name in names)
    assert any("added_window.modules_to_save" in name for name in names)
    assert all("lora" in name or "added_window" in name for name in names)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.5)
    for _ in range(2):
        optimizer.zero_grad()
        outputs_of("llama", model).square().mean().backward()
        optimizer.step()
    model.eval()
    inside = model.get_base_model()
    for call in (remove_windows, partial(save_windows, folder=tmp_path)):
        with pytest.raises(ValueError, match=r"wraps a LlamaForCausalLM; give the model itself"):
            call(model)
        with pytest.raises(ValueError, match=r"PEFT trains a copy of model.layers.0.self_attn; .*unload"):
            call(inside)
    # the two that are trained, not PEFT's copies of how they began
    assert [row.width is not None for row in windows_of(model).rows] == [True, True]
    model.save_pretrained(tmp_path)
    fresh = add_windows(model_of("llama"), "Dec(AW)@all")
    loaded = peft.PeftModel.from_pretrained(fresh, tmp_path).eval()
    assert_close(outputs_of("llama", loaded), outputs_of("llama", model))
    assert not torch.allclose(outputs_of("llama", loaded), outputs_of("llama", model_of("llama")), atol=1e-4)


class Rows(torch.utils.data.Dataset):
    def __init__(self, *, with_labels):
        self.rows = [
            {"input_ids": row, "labels": row if with_labels else row[:5]} for row in tokens(16, 8, seed=5)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


@pytest.mark.parametrize("name", ["llama", pytest.param("bart", marks=pytest.mark.slow)])
def test_trainer_saves_and_resumes(tmp_path, name):
    """A run cut in the middle ends where an uncut one does."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    seq2seq = name == "bart"
    trainer_class = transformers.Seq2SeqTrainer if seq2seq else transformers.Trainer
    arguments_class = transformers.Seq2SeqTrainingArguments if seq2seq else transformers.TrainingArguments

    def run(folder, resume=None, **options):
        arguments = arguments_class(
            output_dir=str(tmp_path / folder), max_steps=4, save_steps=2, per_device_train_batch_size=4,
            report_to=[], use_cpu=True, seed=1, learning_rate=0.01, disable_tqdm=True, logging_strategy="no",
            dataloader_pin_memory=False, **options,
        )  # fmt: skip
        model = freeze_base(add_windows(model_of(name), "Dec(MW)@1-Dec(AW)@2"))
        trainer = trainer_class(model=model, args=arguments, train_dataset=Rows(with_labels=not seq2seq))
        trainer.train(resume_from_checkpoint=resume)
        return {key: p.detach() for key, p in model.named_parameters() if p.requires_grad}

    torch.manual_seed(0)
    uncut = run("uncut")
    torch.manual_seed(0)
    resumed = run("resumed", resume=str(tmp_path / "uncut" / "checkpoint-2"))
    start = dict(add_windows(model_of(name), "Dec(MW)@1-Dec(AW)@2").named_parameters())
    for key, parameter in uncut.items():
        assert_close(resumed[key], parameter)
    assert any(not torch.equal(uncut[key], start[key]) for key in uncut)


def test_meta_parameters_can_be_reset():
    """A model that is made without memory gets its windows' values when they are reset."""
    with torch.device("meta"):
        model = model_of("bert")
    add_windows(model, "Enc(AW)")
    (window,) = (module for module in model.modules() if isinstance(module, WindowAdapter))
    assert {p.device.type for p in window.parameters()} == {"meta"}
    window.to_empty(device="cpu").reset_parameters()
    assert window.local.query.abs().max() == 0
    assert 0 < window.left.query.abs().max() < 1


def test_offloaded_weights_are_refused():
    model = model_of("bert")
    model.bert.encoder.layer[0].attention.to("meta")
    with pytest.raises(ValueError, match="are offloaded; load the model without offloading"):
        add_windows(model, "Enc(AW)")
