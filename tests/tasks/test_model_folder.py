"""ModelFolder: written once, averaged, and refused where it is not what it should be."""

import os
from collections import Counter

import pytest
import torch

from diffwindow.models import weights
from diffwindow.models.classifier import Classifier, ClassifierConfig
from diffwindow.models.weights import CheckpointError, ModelFileError, write_folder
from diffwindow.tasks.model_folder import ModelFolder, Record
from samples.tiny_tasks import of

SMALL = {"vocab_size": 12, "embed_dim": 8, "ffn_dim": 16, "num_heads": 2}


def model(attention="Enc(AW)"):
    return Classifier(ClassifierConfig(**SMALL, attention=attention))


def test_files_are_hashed_and_flushed_once(agreement_store, tmp_path, monkeypatch):
    task, hashed, flushed = of(agreement_store), Counter(), Counter()
    sha256_of, fsync = weights.sha256_of, os.fsync

    def count_hash(path):
        hashed[path.name] += 1
        return sha256_of(path)

    def count_flush(descriptor):
        flushed[os.fstat(descriptor).st_ino] += 1
        fsync(descriptor)

    monkeypatch.setattr(weights, "sha256_of", count_hash)
    monkeypatch.setattr(os, "fsync", count_flush)
    folder = tmp_path / "model"
    write_folder(folder, lambda path: ModelFolder.of(task, task.build_model(), path).write(), {})
    files = {path.name: flushed[path.stat().st_ino] for path in folder.iterdir()}
    assert files == dict.fromkeys([*hashed, "checkpoint.json"], 1)
    names = ["config.json", "model.safetensors", "task.json", "tokenizer.json"]
    assert hashed == dict.fromkeys(names, 1)
    assert Record.read(folder) == Record.of(task)


def test_the_average_is_the_mean_of_each_weight(tmp_path):
    models = [model() for _ in range(3)]
    for name, one in zip("abc", models, strict=True):
        one.save_pretrained(tmp_path / name)
    first = [tmp_path / "a", tmp_path / "b" / "model.safetensors"]
    for sources, averaged in ((first, models[:2]), ([tmp_path / "b", tmp_path / "c"], models[1:])):
        # the second replaces the first
        ModelFolder.average(sources, tmp_path / "average")
        for name, tensor in Classifier.from_pretrained(tmp_path / "average").state_dict().items():
            a, b = (one.state_dict()[name] for one in averaged)
            torch.testing.assert_close(tensor, (a + b) / 2)


def test_what_cannot_be_averaged_is_refused(tmp_path):
    model().save_pretrained(tmp_path / "a")
    model("Enc(MW)").save_pretrained(tmp_path / "b")
    with pytest.raises(ModelFileError, match="is not of the same model as"):
        ModelFolder.average([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    with pytest.raises(ModelFileError, match="nothing to average"):
        ModelFolder.average([], tmp_path / "c")
    with pytest.raises(ValueError, match="b holds something other than the model of a run; choose another"):
        ModelFolder.average([tmp_path / "a"], tmp_path / "b")
    (tmp_path / "a/config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"a/config\.json is damaged"):
        ModelFolder.average([tmp_path / "a"], tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_record_of_another_version_is_refused_by_name(tmp_path):
    (tmp_path / "task.json").write_text('{"corpus": "sst2", "moses": {}, "options": {}}')
    with pytest.raises(ValueError, match=r"task\.json is damaged, or another version of diffwindow wrote it"):
        Record.read(tmp_path)
