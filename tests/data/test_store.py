import hashlib
import json
import os
import shutil

import numpy as np
import pytest
import torch

from diffwindow.data import prepare, store
from diffwindow.data.batching import TokenBatches, collate, collate_blocks, shift_right
from diffwindow.data.prepare import repeated_share
from diffwindow.data.store import Sequences, Split, Store
from diffwindow.data.synthetic import agreement
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.files import sha256_of
from diffwindow.special_tokens import EOS


@pytest.fixture
def copied(agreement_store, tmp_path):
    ignored = shutil.ignore_patterns(store.MEMORY)
    return shutil.copytree(agreement_store.folder, tmp_path / "store", ignore=ignored)


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
    entry = agreement_store.manifest.splits["train"]
    assert entry.rows == 300
    assert entry.tokens["text"] == len(agreement_store.split("train").stream("text"))
    assert sum(entry.found.labels.values()) == 300
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
    for starts in (np.array([10, 0]), np.array([20, 5, 15])):
        batch = collate_blocks(stream, starts, 5)
        for row, start in enumerate(starts):
            for column in range(5):
                if (target := int(batch["target"][row, column])) != 0:
                    seen[int(start) + column] = (int(batch["input"][row, column]), target)
    assert seen == {i: (int(stream[i - 1]) if i else 1, int(stream[i])) for i in range(23)}


def flip(path, place, bit):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_a_changed_file_is_found_when_its_split_is_used(copied):
    # a label that is another label, a token that is another word: only the hash can tell
    for name in ("train.label.values", "train.text.tokens"):
        flip(copied / name, 0, 0)
        store = Store.open(copied)
        assert len(store.split("test")) == 30
        with pytest.raises(ValueError, match=rf"{name} \(split 'train'\) has changed since"):
            store.split("train")
        flip(copied / name, 0, 0)
        assert len(Store.open(copied).split("train")) == 300


@pytest.mark.parametrize("place", [8, 300 * 8])
def test_a_flipped_offset_is_found_when_the_store_is_opened(copied, place):
    # bit 38: a row of 275 billion tokens
    flip(copied / "train.text.offsets", place + 4, 6)
    with pytest.raises(ValueError, match=r"train\.text\.offsets is damaged: its offsets do not rise from 0"):
        Store.open(copied)


def test_a_label_out_of_range_is_found_when_the_store_is_opened(copied):
    flip(copied / "train.label.values", 3, 6)
    with pytest.raises(
        ValueError, match=r"train\.label\.values is damaged: it has the value 1073741\d+, outs"
    ):
        Store.open(copied)


def rehashed(store, name):
    manifest = json.loads((store / "manifest.json").read_text())
    content = (store / name).read_bytes()
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest["splits"]["train"]["files"][name] = entry
    (store / "manifest.json").write_text(json.dumps(manifest))


def test_a_token_beyond_the_vocabulary_is_found_even_with_the_right_hash(copied):
    flip(copied / "train.text.tokens", 1, 7)
    rehashed(copied, "train.text.tokens")
    with pytest.raises(
        ValueError, match=r"train\.text\.tokens is damaged: it has the token 32\d\d\d in a voc"
    ):
        Store.open(copied).split("train")


def test_files_are_hashed_once_until_they_are_touched(copied, monkeypatch):
    hashed = []

    def counted(path):
        hashed.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(store, "sha256_of", counted)
    Store.open(copied).split("valid")
    assert sorted(hashed) == sorted(["tokenizer.json", *(path.name for path in copied.glob("valid.*"))])
    hashed.clear()
    Store.open(copied).split("valid")
    assert hashed == ["tokenizer.json"]
    # the same size and time of modification do not hide a change
    path = copied / "valid.text.tokens"
    before = path.stat()
    flip(path, 0, 0)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ValueError, match=r"valid\.text\.tokens .* has changed"):
        Store.open(copied).split("valid")


def test_a_store_that_cannot_be_written_is_verified_each_time(copied, monkeypatch):
    def refuse(path, value):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(store, "write_json", refuse)
    assert len(Store.open(copied).split("valid")) == 30
    assert not (copied / store.MEMORY).exists()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("splits",), None),
        (("tokenizer", "sha256"), None),
        (("splits", "train", "files"), []),
        (("splits", "train", "rows"), -1),
        (("splits", "train", "sequences"), ["../text"]),
        (("splits", "train", "found"), None),
        (("task",), None),
    ],
)
def test_a_manifest_with_a_wrong_field_is_named(copied, place, value):
    manifest = json.loads((copied / "manifest.json").read_text())
    section = manifest
    for name in place[:-1]:
        section = section[name]
    section[place[-1]] = value
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=rf"manifest\.json is damaged at '{'.'.join(place)}"):
        Store.open(copied)


def test_the_share_of_repeated_text_is_that_of_whole_rows(monkeypatch):
    def split(*rows):
        tokens = np.array([token for row in rows for token in (*row, EOS)], np.uint16)
        ends = np.cumsum([0, *(len(row) + 1 for row in rows)])
        return Split("some", {"text": Sequences(tokens, ends)}, {})

    # in pieces of about two rows
    monkeypatch.setattr(prepare, "CHUNK_TOKENS", 4)
    train = split((5, 6, 6, 5), (7,), (), (8, 9))
    assert repeated_share(split((8, 9), (6, 5, 5, 6), (5, 6), (9, 8)), train) == 3 / 14
    # every second row
    monkeypatch.setattr(prepare, "SAMPLED_ROWS", 3)
    assert repeated_share(split((7,), (4,), (8, 9), (4,), (4,)), train) == 5 / 7
