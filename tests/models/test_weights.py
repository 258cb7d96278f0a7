import json
import os
import pickle
import subprocess
import sys

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

from diffwindow.models.classifier import Classifier, ClassifierConfig
from diffwindow.models.language_model import LanguageModel, LanguageModelConfig
from diffwindow.models.translator import Translator, TranslatorConfig
from diffwindow.models.weights import (
    CheckpointError,
    ModelFileError,
    average_weights,
    write_manifest,
)

SMALL = {"vocab_size": 12, "embed_dim": 8, "ffn_dim": 16, "num_heads": 2}
MODELS = {
    "translator": lambda: Translator(
        TranslatorConfig(**SMALL, encoder_layers=2, decoder_layers=2, attention="Enc(AW)-Cr(MW,Seg=3)")
    ),
    "classifier": lambda: Classifier(ClassifierConfig(**SMALL, attention="Enc(Rel)")),
    "language_model": lambda: LanguageModel(LanguageModelConfig(**SMALL, num_layers=2)),
}


@pytest.fixture
def folder(tmp_path):
    MODELS["translator"]().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_loading_a_model_does_not_import_the_compiler(folder):
    """The import would take longer than everything else."""
    code = (
        "import sys, diffwindow; diffwindow.Translator.from_pretrained(sys.argv[1]); "
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, folder], check=True)


@pytest.mark.parametrize("kind", MODELS)
def test_a_folder_gives_back_the_model(kind, tmp_path):
    model = MODELS[kind]()
    model.save_pretrained(tmp_path / "new" / "model")
    loaded = type(model).from_pretrained(str(tmp_path / "new" / "model"))
    assert loaded.config == model.config
    assert not loaded.training
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], tensor, rtol=0, atol=0)
    assert all(parameter.requires_grad and not parameter.is_meta for parameter in loaded.parameters())
    assert sorted(path.name for path in (tmp_path / "new" / "model").iterdir()) == [
        "checkpoint.json",
        "config.json",
        "model.safetensors",
    ]


def test_loading_draws_no_random_numbers_and_trains_on(folder):
    state = torch.get_rng_state()
    model = Translator.from_pretrained(folder)
    assert torch.equal(torch.get_rng_state(), state)
    source = torch.randint(4, 12, (2, 5))
    model.train().loss(source, source, source).total.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    # Training the loaded model must not write through to the file it came from.
    again = Translator.from_pretrained(folder)
    assert not torch.equal(model.embedding.weight, again.embedding.weight)


def test_the_tokenizer_goes_with_the_model(tmp_path):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    MODELS["classifier"]().save_pretrained(tmp_path, tokenizer)
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("a").ids == [1]


def test_saving_again_replaces_the_model_and_leaves_other_files(folder):
    (folder / "notes.txt").write_text("mine")
    model = MODELS["translator"]()
    model.save_pretrained(folder)
    loaded = Translator.from_pretrained(folder)
    assert torch.equal(loaded.embedding.weight, model.embedding.weight)
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_failed_save_leaves_the_old_model(folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def disk_full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("diffwindow.models.weights.save_file", disk_full)
    with pytest.raises(OSError, match="no space left"):
        MODELS["translator"]().save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def edit_config(**fields):
    def edit(folder):
        config = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(json.dumps(config))

    return edit


def edit_weights(change):
    def edit(folder):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return edit


def cut(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("unpickled a model file",))


FAULTS = {
    "no config": (
        lambda f: (f / "config.json").unlink(),
        r"there is no file .*config.json; a model folder has",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"there is no file .*model.safetensors"),
    "cut header": (cut("model.safetensors", 60), r"model.safetensors is not a complete safetensors file"),
    "cut tensors": (cut("model.safetensors", 5000), r"model.safetensors is not a complete safetensors file"),
    "empty weights": (cut("model.safetensors", 0), r"model.safetensors is not a complete safetensors file"),
    "cut config": (cut("config.json", 30), r"config.json is damaged"),
    "binary config": (
        lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"),
        r"config.json is damaged",
    ),
    "deep config": (lambda f: (f / "config.json").write_text("[" * 10**5), r"config.json is damaged"),
    "list config": (
        lambda f: (f / "config.json").write_text("[1]"),
        r"config.json is damaged: it holds a list",
    ),
    "another model": (edit_config(model="classifier"), r"describes a classifier, not a translator"),
    "unknown field": (edit_config(embed_dimm=8), r"no field 'embed_dimm'; did you mean 'embed_dim'\?"),
    "wrong value": (edit_config(num_heads="many"), r"num_heads='many'"),
    "another size": (edit_config(ffn_dim=32), r"config.json has ffn_dim=32 but .* was saved with 16"),
    "another window": (edit_config(attention="Enc(MW)"), r"has attention='Enc\(MW\)@?.*' but"),
    "lost tensor": (
        edit_weights(lambda t: t.pop("embedding.weight")),
        r"lacks the tensor 'embedding.weight' that Translator needs",
    ),
    "strange tensors": (
        edit_weights(lambda t: t.update(b=torch.zeros(2), a=torch.zeros(2))),
        r"has the tensor 'a' and 1 more that Translator has no place for",
    ),
    "wrong shape": (
        edit_weights(lambda t: t.update({"embedding.weight": torch.zeros(3, 8)})),
        r"'embedding.weight' of .* is torch.float32 \[3, 8\], where Translator needs floats \[12, 8\]",
    ),
    "wrong type": (
        edit_weights(lambda t: t.update({"embedding.weight": torch.zeros(12, 8, dtype=torch.long)})),
        r"is torch.int64 \[12, 8\]",
    ),
    "pickle": (
        lambda f: (f / "model.safetensors").write_bytes(pickle.dumps(Bomb())),
        r"is not a complete safetensors file",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_folder_is_refused_in_one_sentence(fault, folder):
    break_it, message = FAULTS[fault]
    # the manifest would find most of these first; a folder may lack it
    (folder / "checkpoint.json").unlink()
    break_it(folder)
    with pytest.raises(ModelFileError, match=message) as caught:
        Translator.from_pretrained(folder)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_average_keeps_the_type_and_sums_in_fp32(tmp_path):
    paths = [tmp_path / f"{index}.safetensors" for index in range(3)]
    for path, value in zip(paths, (256.0, 1.0, 1.0), strict=True):
        save_file({"w": torch.tensor([value], dtype=torch.bfloat16)}, path)
    tensors, _ = average_weights(paths)
    assert tensors["w"].dtype == torch.bfloat16
    # A sum in bfloat16, which has no 257, would lose the ones and give 85.5.
    assert tensors["w"].item() == 86.0


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "checkpoint.json"])
def test_a_flipped_bit_is_not_loaded(folder, name):
    Translator.from_pretrained(folder)
    content = bytearray((folder / name).read_bytes())
    # the last byte of the weights is the sign and exponent of one; of JSON, white space
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged"):
        Translator.from_pretrained(folder)


def test_the_manifest_lists_the_model_alone(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    MODELS["classifier"]().save_pretrained(tmp_path)
    (tmp_path / "notes.txt").write_text("changed")
    Classifier.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "checkpoint.json"])
@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_pipe_in_place_of_a_file_is_refused(folder, name, has_manifest):
    if not has_manifest:
        (folder / "checkpoint.json").unlink()
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ValueError, match=rf"{name} is (missing|damaged|not a regular file)"):
        Translator.from_pretrained(folder)


def test_saving_over_a_trained_model_replaces_its_manifest(folder):
    write_manifest(folder, {"update": 3})
    model = MODELS["translator"]()
    model.save_pretrained(folder)
    loaded = Translator.from_pretrained(folder)
    assert torch.equal(loaded.embedding.weight, model.embedding.weight)
