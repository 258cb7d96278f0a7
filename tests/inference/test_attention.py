from dataclasses import replace

import numpy as np
import pytest
import torch

from diffwindow.data.corpora import recipe_of
from diffwindow.data.prepare import prepare
from diffwindow.data.store import Store
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.decoding import Decoding
from diffwindow.decoding.translate import translate
from diffwindow.inference.attention import (
    attention_trace,
    complete,
    for_other,
    live_events,
    row_example,
    text_example,
    trace_example,
    translation_steps,
)
from diffwindow.inference.model import LoadedModel
from diffwindow.special_tokens import EOS
from diffwindow.tasks.model_folder import ModelFolder
from diffwindow.view.capture import capture
from diffwindow.view.trace import GoldSpan
from samples.model_folders import SENTENCES, save_model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {
        kind: ModelFolder.read(save_model(root / kind, kind))
        for kind in ("classifier", "plain", "translator", "language")
    }


def test_a_classifier_reads_the_text_and_its_end(models):
    trace = attention_trace(models["classifier"], " the old keys ")
    assert (trace.tokens, trace.title) == ({"text": ["the", "old", "keys", "</s>"]}, "the old keys")
    assert trace.label == "Enc(AW)@all"
    ids = [[*models["classifier"].tokenizer.encode("the old keys"), EOS]]
    model = models["classifier"].model.eval()
    with torch.no_grad(), capture(model) as expected:
        model(torch.tensor(ids))
    np.testing.assert_allclose(trace["Enc", 2].window, expected["Enc", 2].window, atol=1e-6)


def test_a_language_model_reads_from_the_beginning(models):
    trace = attention_trace(models["language"], "my lamp fell")
    assert trace.tokens == {"text": ["<s>", "my", "lamp", "fell"]}
    assert (trace["Dec", 1].kind, trace["Dec", 1].queries) == ("MW", "text")


def test_a_translator_is_named_by_what_it_reads_and_writes(models):
    trace = attention_trace(models["translator"], "my lamp fell", target="the boats")
    assert trace.tokens == {
        "source": ["my", "lamp", "fell", "</s>"],
        "target": ["<s>", "the", "boats"],
        "translation": ["the", "boats", "</s>"],
    }
    assert (trace["Cr", 1].queries, trace["Dec", 1].queries) == ("translation", "target")
    assert trace["Cr", 1].segment_size == 5


def test_without_a_target_a_translator_writes_its_own(models):
    example = complete(models["translator"], text_example(models["translator"], "my lamp fell"))
    assert complete(models["translator"], example) is example
    trace = attention_trace(models["translator"], "my lamp fell")
    assert trace.tokens["translation"] == models["translator"].tokenizer.tokens([*example.target, EOS])


def test_steps_of_a_translation_are_rows_of_the_whole(models):
    trained = models["translator"]
    example = text_example(trained, "my lamp fell")
    steps = list(translation_steps(trained, example))
    written = steps[-1][0]
    assert [len(tokens) for tokens, _ in steps[:3]] == [1, 2, 3]
    whole = attention_trace(trained, "my lamp fell", target=trained.tokenizer.decode(written))
    for place, (_, step) in enumerate(steps[:5]):
        np.testing.assert_allclose(step["Cr", 1].window[:, 0], whole["Cr", 1].window[:, place], atol=1e-5)


def test_a_model_keeps_its_mode(models):
    models["classifier"].model.train()
    attention_trace(models["classifier"], "my lamp")
    assert models["classifier"].model.training


def test_mistakes_are_told(models):
    with pytest.raises(ValueError, match="there is no word in the text"):
        attention_trace(models["classifier"], "  ")
    with pytest.raises(ValueError, match="a classifier reads one text; leave the target out"):
        attention_trace(models["classifier"], "my lamp", target="the boats")
    with pytest.raises(ValueError, match="a classifier and a translator do not read the same"):
        for_other(text_example(models["classifier"], "my"), models["classifier"], models["translator"])


def test_another_model_reads_the_same_ids_or_encodes_the_text_itself(models, tmp_path):
    trained = models["classifier"]
    example = text_example(trained, "my old lamp")
    assert for_other(example, trained, models["plain"]) is example
    subwords = Tokenizer.train_bpe(SENTENCES, 300)
    other = ModelFolder.read(save_model(tmp_path / "other", "plain", tokenizer=subwords))
    found = for_other(example, trained, other)
    assert other.tokenizer.decode(found.ids) == "my old lamp"
    assert found.ids != example.ids
    # words that only the other one knows are not lost
    unknown = text_example(trained, "my purple lamp")
    assert other.tokenizer.decode(for_other(unknown, trained, other).ids) == "my purple lamp"


def test_rows_of_a_corpus_have_gold_spans(tmp_path):
    prepare(recipe_of("agreement", rows=20, seed=1), tmp_path / "store")
    store = Store.open(tmp_path / "store")
    trained = ModelFolder.read(save_model(tmp_path / "model", "classifier", tokenizer=store.tokenizer))
    example = row_example(trained, store, "train", 3)
    row = store.split("train")
    first, last = (int(row.columns[name][3]) for name in ("subject_start", "verb_position"))
    assert example.gold == GoldSpan("Enc", last, first, last)
    trace = trace_example(trained, example)
    # the verb's place is that of the end
    assert trace.tokens["text"][last] == "</s>"
    assert trace.gold == example.gold
    with pytest.raises(ValueError, match="row 20 is not in train, which has rows 0 to 19"):
        row_example(trained, store, "train", 20)


def test_windows_of_given_phrases_read_the_tree_of_a_row(tmp_path):
    store = prepare(recipe_of("agreement-trees", rows=20, seed=1), tmp_path / "store")
    trained = ModelFolder.read(save_model(tmp_path / "model", "phrases", tokenizer=store.tokenizer))
    example = row_example(trained, store, "train", 3)
    batch = trained.task(store).collate("train", np.array([3]))
    with torch.no_grad(), capture(trained.model) as expected:
        trained.model(batch.tokens, gates=batch.gates)
    np.testing.assert_array_equal(trace_example(trained, example)["Enc", 1].window, expected["Enc", 1].window)
    # a plain model may be beside it, and it beside a plain model
    plain = ModelFolder.read(save_model(tmp_path / "plain", "plain", tokenizer=store.tokenizer))
    beside = for_other(row_example(plain, store, "train", 3), plain, trained)
    np.testing.assert_array_equal(trace_example(trained, beside)["Enc", 1].window, expected["Enc", 1].window)
    with pytest.raises(ValueError, match=r"Enc\(AW,Phr\)@all needs the phrases of the sentence; give a row"):
        attention_trace(trained, example.title)
    options = trained.record.options.model_copy(update={"phrase_placebo": "random"})
    placebo = replace(trained, record=trained.record.model_copy(update={"options": options}))
    with pytest.raises(ValueError, match=r"trained with task\.phrase_placebo=random"):
        trace_example(placebo, example)


def test_rows_of_another_vocabulary_or_task_are_refused(models, tmp_path):
    prepare(recipe_of("agreement", rows=20, seed=1), tmp_path / "store")
    store = Store.open(tmp_path / "store")
    with pytest.raises(ValueError, match=r"store has another vocabulary than .*classifier"):
        row_example(models["classifier"], store, "train", 3)
    translator = ModelFolder.read(save_model(tmp_path / "model", "translator", tokenizer=store.tokenizer))
    with pytest.raises(ValueError, match="is for classification, which a TranslatorConfig cannot do"):
        row_example(translator, store, "train", 3)


def test_the_translation_is_that_of_the_search(tmp_path):
    trained = ModelFolder.read(save_model(tmp_path / "model", "translator", seed=1))
    example = text_example(trained, "my lamp fell")
    targets = []
    for search in (Decoding(), Decoding(beam=1)):
        (expected,) = translate(trained.model, trained.tokenizer, [example.ids], search)
        target = complete(trained, example, search).target
        assert trained.tokenizer.decode(target) == expected[0].text
        trace = LoadedModel([trained], search).attention("my lamp fell")
        assert trace.tokens["translation"] == trained.tokenizer.tokens([*target, EOS])
        targets.append(target)
    assert targets[0] != targets[1]


def test_live_events_end_with_the_whole_page(models):
    (event,) = live_events(models["classifier"], models["plain"], most_tokens=5)("the old keys")
    assert [run["label"] for run in event["page"]["runs"]] == ["Enc(AW)@all", "Global"]
    with pytest.raises(ValueError, match="the sentence has 6 tokens; up to 5 are shown"):
        list(live_events(models["classifier"], None, most_tokens=5)("the old keys to the cabinet"))
    *steps, last = live_events(models["translator"], None, most_tokens=5)("my lamp fell")
    roles = [{layer["role"] for layer in step["page"]["runs"][0]["snapshots"][0]["layers"]} for step in steps]
    assert roles == [{"Cr"}] * len(steps)
    assert {layer["role"] for layer in last["page"]["runs"][0]["snapshots"][0]["layers"]} == {
        "Enc",
        "Cr",
        "Dec",
    }
    # the words of the last step, and the end
    written = steps[-1]["text"].split()
    assert last["page"]["runs"][0]["tokens"]["translation"]["labels"] == [*written, "</s>"]
