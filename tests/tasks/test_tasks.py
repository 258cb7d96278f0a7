"""What the training loop relies on, for all three tasks alike."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from diffwindow.data.corpora import recipe_of
from diffwindow.data.own_files import labelled_recipe
from diffwindow.data.prepare import prepare
from diffwindow.data.store import Store
from diffwindow.data.synthetic import agreement
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.decoding.translate import Output
from diffwindow.evaluation.windows import window_fits
from diffwindow.special_tokens import BOS, EOS, PAD
from diffwindow.tasks import translation
from diffwindow.tasks.entries import TaskOptions
from diffwindow.tasks.model_folder import ModelFolder
from diffwindow.tasks.task import model_config, sweep, task_of
from samples.tiny_tasks import of


@pytest.fixture(params=["translation", "classification", "rows", "blocks"])
def task(request, reorder_store, agreement_store, text_store):
    return {
        "translation": lambda: of(reorder_store, label_smoothing=0.1),
        "classification": lambda: of(agreement_store),
        "rows": lambda: of(text_store),
        "blocks": lambda: of(text_store, block_size=64),
    }[request.param]()


def test_every_example_is_swept_once_and_batches_stay_within_the_limit(task):
    lengths = task.lengths("valid")
    limited = replace(task, options=task.options.model_copy(update={"valid_tokens": 500}))
    swept = sweep(limited, task.build_model(), "valid", lambda _, batch: batch)
    assert sorted(np.concatenate([indices for indices, _ in swept])) == list(range(len(lengths[0])))
    for indices, _ in swept:
        assert len(indices) * max(field[indices].max() for field in lengths) <= 500


def test_the_loss_is_a_sum_over_units(task):
    """Two halves of a batch sum to the whole: accumulation and ranks then lose nothing."""
    torch.manual_seed(0)
    model = task.build_model().double()
    indices = np.arange(12)
    whole, *halves = (task.collate("train", part) for part in (indices, indices[:5], indices[5:]))
    assert whole.units == sum(half.units for half in halves)
    torch.testing.assert_close(task.loss(model, whole), sum(task.loss(model, half) for half in halves))


def test_validation_is_the_mean_over_units_in_evaluation_mode(task):
    torch.manual_seed(0)
    model = task.build_model().train()
    # a part that is frozen stays so
    part = next(model.children()).eval()
    found = task.validate(model, "valid")
    assert tuple(found) == tuple(name for name in task.metrics if name != "bleu")
    assert model.training
    assert not part.training
    model.eval()
    limited = replace(task, options=task.options.model_copy(update={"valid_tokens": 300}))
    swept = sweep(limited, model, "valid", lambda _, batch: (task.loss(model, batch), batch.units))
    losses, units = zip(*(result for _, result in swept), strict=True)
    mean = sum(loss.item() for loss in losses) / sum(units)
    assert found["loss"] == pytest.approx(mean, rel=1e-5)
    assert all(math.isfinite(value) for value in found.values())


def test_a_saved_folder_gives_the_model_and_its_tokenizer_back(task, tmp_path):
    model = task.build_model()
    ModelFolder.of(task, model, tmp_path / "model").write()
    loaded = type(model).from_pretrained(tmp_path / "model")
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in model.state_dict().items())
    assert loaded.config == task.config
    tokenizer = Tokenizer.load(tmp_path / "model/tokenizer.json")
    assert tokenizer.vocab_size == task.store.tokenizer.vocab_size


def test_a_saved_folder_records_every_option(reorder_store, agreement_store, text_store, tmp_path):
    for store, options in (
        (reorder_store, {"label_smoothing": 0.1, "valid_tokens": 100, "bleu_sentences": 7}),
        (agreement_store, {"max_length": 5, "class_weights": "balanced"}),
        (text_store, {"block_size": 37}),
    ):
        task = of(store, **options)
        ModelFolder.of(task, task.build_model(), tmp_path / store.task).write()
        loaded = ModelFolder.read(tmp_path / store.task)
        assert loaded.record.options == TaskOptions(**options)
        assert loaded.task(store) == task


def test_translation_labels_are_the_token_after_each_target(reorder_store):
    batch = of(reorder_store).collate("train", np.array([0, 1, 2]))
    assert batch.target[:, 0].tolist() == [BOS] * 3
    assert torch.equal(batch.target[:, 1:], batch.labels[:, :-1])
    for row, source in zip(batch.labels, batch.source, strict=True):
        assert row[row != PAD][-1] == EOS
        assert source[source != PAD][-1] == EOS


def test_blocks_predict_every_token_of_the_stream_once(text_store):
    task = of(text_store, block_size=37)
    stream = text_store.split("test").stream("text")
    batch = task.collate("test", np.arange(len(task.lengths("test")[0])))
    assert batch.labels[batch.labels != PAD].tolist() == stream.tolist()
    assert batch.tokens[0, 0] == BOS
    assert batch.tokens.flatten()[1 : len(stream)].tolist() == stream[:-1].tolist()
    assert sum(task.lengths("test")[0]) == len(stream)


def test_a_split_is_decoded_once_to_count_its_words(text_store, monkeypatch):
    task, decoded = of(text_store), []
    decode = Tokenizer.decode
    monkeypatch.setattr(Tokenizer, "decode", lambda *call: decoded.append(1) or decode(*call))
    assert task.words("valid").sum() == task.words("valid").sum()
    assert len(decoded) == len(text_store.split("valid"))


def test_words_are_those_of_each_row_and_blocks_share_those_of_the_texts_they_cut(text_store):
    texts = [example.sentence for example in agreement(100, part="test")]
    words = [len(text.split()) + 1 for text in texts]
    assert of(text_store).words("test").tolist() == words
    lengths = text_store.split("test").lengths("text")
    shares = [count / length for count, length in zip(words, lengths, strict=True) for _ in range(length)]
    blocks = [sum(shares[start : start + 37]) for start in range(0, len(shares), 37)]
    assert of(text_store, block_size=37).words("test") == pytest.approx(blocks)


def test_only_the_first_tokens_of_a_long_text_are_read(agreement_store):
    task = of(agreement_store, max_length=5)
    assert task.lengths("train")[0].max() == 5
    assert task.collate("train", np.arange(20)).tokens.shape == (20, 5)


def test_wrong_options_models_and_vocabularies_are_refused(agreement_store, reorder_store):
    with pytest.raises(ValueError, match="block_size=8 is not an option of classification"):
        of(agreement_store, block_size=8)
    with pytest.raises(ValueError, match="is for translation, which a ClassifierConfig cannot do"):
        task_of(reorder_store, of(agreement_store).config)
    other = of(agreement_store).config.model_copy(update={"vocab_size": 7})
    with pytest.raises(ValueError, match=r"has a vocabulary of 7, but that of .* has"):
        task_of(agreement_store, other)
    fewer = of(agreement_store).config.model_copy(update={"num_classes": 1})
    with pytest.raises(ValueError, match=r"the model has 1 classes, but .* has 2"):
        task_of(agreement_store, fewer)
    poetry = reorder_store.manifest.model_copy(update={"task": "poetry"})
    with pytest.raises(ValueError, match=r"store: task='poetry' is not one of 'translation'"):
        model_config(Store(reorder_store.folder, poetry, reorder_store.tokenizer, {}), {})
    with pytest.raises(ValueError, match="did you mean 'num_heads'"):
        model_config(agreement_store, {"num_head": 2})


def test_bleu_is_computed_on_a_spread_sample_if_it_is_watched(reorder_store, monkeypatch):
    """A model that copies the references has BLEU 100, one that says nothing 0."""
    task = of(reorder_store, bleu_sentences=7)
    rows, model = reorder_store.split("valid"), task.build_model()
    assert "bleu" not in task.validate(model, "valid")
    sources = [rows.sequences["source"][index][:-1].tolist() for index in range(len(rows))]
    asked = []

    def copies(model, tokenizer, chosen, search, *, progress):
        asked.extend(sources.index(source) for source in chosen)
        progress(len(chosen), len(chosen))
        targets = [rows.sequences["target"][sources.index(source)].tolist() for source in chosen]
        return [[Output(tokenizer.decode(target), 0.0)] for target in targets]

    shown = []
    monkeypatch.setattr(translation, "translate", copies)
    found = task.validate(model, "valid", watch="bleu", progress=lambda stage, share: shown.append(stage))
    assert found["bleu"] == pytest.approx(100.0)
    assert len(asked) == 7
    assert max(asked) > 0.8 * len(rows)
    assert {"validation", "validation BLEU"} == set(shown)
    monkeypatch.setattr(translation, "translate", lambda m, t, chosen, s, progress: [[Output("", 0.0)]] * 7)
    assert task.bleu(model, "valid") == 0.0


def test_balanced_weights_make_rare_classes_count_as_much(tmp_path):
    (tmp_path / "a.tsv").write_text("one\tyes\ntwo\tyes\nthree\tyes\nfour\tno\n")
    store = prepare(labelled_recipe({"train": tmp_path / "a.tsv"}), tmp_path / "store")
    plain, weighted = of(store), of(store, class_weights="balanced")
    model = plain.build_model().eval()
    batch = plain.collate("train", np.arange(4))
    nll = [plain.loss(model, plain.collate("train", np.array([row]))).item() for row in range(4)]
    # labels no and yes: 4 / (2 * 1) and 4 / (2 * 3)
    expected = sum(2.0 * x if label == 0 else 2 / 3 * x for x, label in zip(nll, batch.labels, strict=True))
    assert weighted.loss(model, batch).item() == pytest.approx(expected, rel=1e-5)
    assert weighted.validate(model, "train") == plain.validate(model, "train")


def test_windows_of_phrases_get_those_of_the_trees(agreement_store, tmp_path):
    store = prepare(recipe_of("agreement-trees", rows=30), tmp_path / "store")
    settings = {"embed_dim": 16, "num_heads": 2, "ffn_dim": 16, "attention": "Enc(AW,Phr)"}
    task = task_of(store, model_config(store, settings), TaskOptions(phrase_height=1))
    model, batch = task.build_model().eval(), task.collate("train", np.arange(9))
    for row, (tokens, gates) in enumerate(zip(batch.tokens, batch.gates, strict=True)):
        heights = store.split("train")[row]["phrases"][: len(gates)]
        assert gates.tolist()[: len(heights)] == [float(height > 1) for height in heights]
        assert len(gates) == len(tokens) - 1
    assert [fit.layer for fit in window_fits(task, model, "valid")] == [1, 2]
    assert task.loss(model, batch) != task.loss(model, replace(batch, gates=1 - batch.gates))
    without = task_of(agreement_store, model_config(agreement_store, settings))
    with pytest.raises(ValueError, match=r"Enc\(AW,Phr\) needs the phrases of texts"):
        without.collate("train", np.arange(2))
