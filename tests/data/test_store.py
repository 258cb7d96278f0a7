import json
import shutil

import numpy as np
import pytest
import torch

from diffwindow.data.batching import BlockBatches, TokenBatches
from diffwindow.data.collate import collate, collate_blocks, shift_right
from diffwindow.data.store import Sequences, Store
from diffwindow.data.synthetic import agreement
from diffwindow.data.tokenizer import EOS, Tokenizer


@pytest.fixture
def copied(agreement_store, tmp_path):
    return shutil.copytree(agreement_store.folder, tmp_path / "store")


def test_rows_are_the_generated_examples(agreement_store):
    train = agreement_store.split("train")
    examples = list(agreement(300, 0, part="train"))
    assert len(train) == 300
    assert len(agreement_store) == 360
    for index in (0, 17, 299, -1):
        row, example = train[index], examples[index]
        assert row["text"][-1] == EOS
        assert agreement_store.tokenizer.decode(row["text"]) == example.text
        assert row["label"] == example.label
        assert (row["subject_start"], row["verb_position"]) == example.window
        # the place of the verb is that of EOS
        assert row["verb_position"] == len(row["text"]) - 1
    assert train.lengths("text").tolist() == [len(e.text.split()) + 1 for e in examples]
    assert len(list(iter(train))) == 300


def test_manifest_counts(agreement_store):
    entry = agreement_store.manifest["splits"]["train"]
    assert entry["rows"] == 300
    assert entry["tokens"]["text"] == len(agreement_store.split("train").stream("text"))
    assert sum(entry["found"]["labels"].values()) == 300
    agreement_store.verify()


def test_unknown_names(agreement_store):
    with pytest.raises(ValueError, match="no split 'dev'; it has train, valid, test"):
        agreement_store.split("dev")
    with pytest.raises(ValueError, match="no text field 'source'; this store has text"):
        agreement_store.split("train").lengths("source")
    with pytest.raises(IndexError):
        agreement_store.split("train")[300]


def test_truncated_file(copied):
    path = copied / "train.text.tokens"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(
        ValueError, match=r"train\.text\.tokens has [\d,]+ bytes instead of [\d,]+: the store is truncated"
    ):
        Store.open(copied)


def test_changed_file(copied):
    path = copied / "train.label.values"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    store = Store.open(copied)
    with pytest.raises(ValueError, match=r"train\.label\.values .* has changed"):
        store.verify()


def test_other_tokenizer(copied):
    Tokenizer.train_words(["other words"]).save(copied / "tokenizer.json")
    with pytest.raises(ValueError, match="is not the tokenizer that"):
        Store.open(copied)


def test_not_a_store(copied, tmp_path):
    with pytest.raises(ValueError, match=r"not a prepared corpus \(no manifest\.json\)"):
        Store.open(tmp_path / "nothing")
    manifest = json.loads((copied / "manifest.json").read_text())
    (copied / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(ValueError, match="format 99"):
        Store.open(copied)
    (copied / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        Store.open(copied)


def test_padded_gather():
    field = Sequences(np.array([5, 6, 2, 7, 2, 2], np.uint16), np.array([0, 3, 5, 6]))
    assert field.padded(np.array([2, 0])).tolist() == [[2, 0, 0], [5, 6, 2]]
    assert field.padded(np.array([], np.int64)).shape == (0, 0)


def test_collate(agreement_store):
    train = agreement_store.split("train")
    for indices in TokenBatches(train.lengths("text"), max_tokens=400):
        batch = collate(train, indices)
        assert set(batch) == set(train.fields)
        assert all(tensor.dtype == torch.int64 for tensor in batch.values())
        for place, index in enumerate(indices):
            row = train[int(index)]
            length = len(row["text"])
            assert batch["text"][place, :length].tolist() == row["text"].tolist()
            assert not batch["text"][place, length:].any()
            assert batch["label"][place] == row["label"]


def test_shifted_targets_lose_nothing():
    target = torch.tensor([[7, 8, 2], [9, 2, 0]])
    shifted = shift_right(target)
    assert shifted[:, 0].tolist() == [1, 1]
    assert torch.equal(shifted[:, 1:], target[:, :-1])


def test_blocks_predict_every_token_once():
    stream = np.arange(10, 33, dtype=np.uint16)
    seen = {}
    for starts in BlockBatches(len(stream), block_size=5, batch_size=2, seed=4):
        batch = collate_blocks(stream, starts, 5)
        for row, start in enumerate(starts):
            for column in range(5):
                if (target := int(batch["target"][row, column])) != 0:
                    seen[int(start) + column] = (int(batch["input"][row, column]), target)
    assert seen == {i: (int(stream[i - 1]) if i else 1, int(stream[i])) for i in range(23)}
