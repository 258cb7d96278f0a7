import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import stdtrit

from diffwindow.data.synthetic import agreement, reorder
from diffwindow.decoding import Decoding
from diffwindow.evaluation.evaluate import compare, evaluate_model
from diffwindow.evaluation.windows import _fit, _measure, gold_windows, read_at_verbs, window_fits
from diffwindow.ops import Maps, SoftWindow
from diffwindow.tasks.entries import TaskOptions
from diffwindow.tasks.model_folder import ModelFolder
from diffwindow.view.capture import capture
from samples.tiny_tasks import of

GREEDY = Decoding(beam=1)


def saved(task, folder, *, seed=0):
    torch.manual_seed(seed)
    ModelFolder.of(task, task.build_model(), folder).write()
    return ModelFolder.read(folder)


def test_a_loaded_model_reads_its_corpus_as_it_was_trained_to(agreement_store, text_store, tmp_path):
    for task in (of(agreement_store, max_length=4), of(text_store, block_size=16, label_smoothing=0.1)):
        trained = saved(task, tmp_path / task.store.task)
        assert trained.task(task.store) == task


def test_accuracy_is_the_share_of_right_predictions_overall_and_by_group(agreement_store, tmp_path):
    task = of(agreement_store, attention="Enc(MW)")
    trained = saved(task, tmp_path / "model")
    found = evaluate_model(trained, task, "test", GREEDY)
    model = trained.model.eval()
    examples = list(agreement(200, part="test"))
    tokenizer = agreement_store.tokenizer
    with torch.no_grad():
        right = [
            int(model(torch.tensor([[*tokenizer.encode(one.text), 2]])).argmax()) == one.label
            for one in examples
        ]
    assert found.metrics["accuracy"]["correct"] == sum(right)
    assert found.right.tolist() == right
    for count, group in found.metrics["by_attractors"].items():
        among = [ok for ok, one in zip(right, examples, strict=True) if one.attractors == int(count)]
        assert (group["correct"], group["total"]) == (sum(among), len(among))
    sizes = {
        ("by_length", "0-10", "11-20", "21-40"): [len(tokenizer.encode(one.text)) + 1 for one in examples],
        ("by_distance", "0-10", "11-20"): [one.distance for one in examples],
    }
    for (by, *ranges), values in sizes.items():
        for text in ranges:
            first, last = map(int, text.split("-"))
            among = [ok for ok, value in zip(right, values, strict=True) if first <= value <= last]
            group = found.metrics[by][text]
            assert (group["correct"], group["total"]) == (sum(among), len(among))
        assert sum(group["total"] for group in found.metrics[by].values()) == len(right)
    assert json.loads(json.dumps(found.metrics)) == found.metrics


def test_windows_that_a_cut_text_may_not_show_are_not_measured(agreement_store, tmp_path):
    task = of(agreement_store, max_length=4)
    found = evaluate_model(saved(task, tmp_path / "model"), task, "test", GREEDY)
    assert "windows" not in found.metrics


def test_distances_that_are_not_known_are_left_out(agreement_store, tmp_path, monkeypatch):
    task = of(agreement_store)
    trained, split = saved(task, tmp_path / "model"), task.store.split("test")
    unknown = np.full_like(split.columns["distance"], -1)
    monkeypatch.setitem(split.columns, "distance", unknown)
    monkeypatch.setattr(type(task.store), "split", lambda *_: split)
    assert "by_distance" not in evaluate_model(trained, task, "test", GREEDY).metrics
    unknown[:3] = 4
    (group,) = evaluate_model(trained, task, "test", GREEDY).metrics["by_distance"].values()
    assert group["total"] == 3


def test_windows_are_measured_at_the_verb_against_the_gold_ones(agreement_store):
    """A window that is the gold one overlaps fully; uniform attention has what chance has."""
    split = agreement_store.split("test")
    starts, verbs = (split.columns[name][:3].astype(np.int64) for name in ("subject_start", "verb_position"))
    keys = int(verbs.max()) + 1
    gold = gold_windows(starts, verbs, keys)
    window, weights = torch.zeros(3, 2, keys, keys), torch.zeros(3, 2, keys, keys)
    for row, verb in enumerate(verbs):
        window[row, 1, verb] = torch.tensor(gold[row])
        weights[row, :, verb, : verb + 1] = 0.3
    maps = Maps(weights, SoftWindow(window, window, window))
    fit = _fit(1, [_measure(maps, verbs, gold, verbs + 1)])
    assert fit.overlap_by_head == [0.0, 1.0]
    assert (fit.overlap, fit.best_head) == (0.5, 1.0)
    assert (
        fit.attention_inside
        == pytest.approx(fit.chance)
        == pytest.approx(float((gold.sum(1) / (verbs + 1)).mean()))
    )
    plain = _fit(1, [_measure(Maps(weights), verbs, gold, verbs + 1)])
    assert (plain.overlap, plain.best_head, plain.overlap_by_head) == (None, None, [])


def test_window_fits_do_not_depend_on_how_rows_are_batched(agreement_store):
    task = of(agreement_store, attention="Enc(AW)", settings={"num_layers": 2})
    torch.manual_seed(0)
    model = task.build_model()
    small = of(agreement_store, attention="Enc(AW)", settings={"num_layers": 2}, valid_tokens=64)
    for one, other in zip(window_fits(task, model, "test"), window_fits(small, model, "test"), strict=True):
        assert one.attention_inside == pytest.approx(other.attention_inside, rel=1e-5)
        assert (one.overlap is None) == (one.layer == 2)
        if one.overlap is not None:
            assert one.overlap == pytest.approx(other.overlap, rel=1e-5)


def test_readings_are_what_a_sentence_alone_shows_at_its_verb(agreement_store):
    task = of(agreement_store, attention="Enc(MW)")
    torch.manual_seed(0)
    model = task.build_model().eval()
    readings = read_at_verbs(task, model, "test")
    example = next(agreement(1, part="test"))
    with torch.no_grad(), capture(model) as trace:
        model(task.collate("test", np.array([0])).tokens)
    maps, length = trace["Enc", 1], example.verb_position + 1
    for read, shown in ((readings.attention, maps.weights), (readings.window, maps.window)):
        np.testing.assert_allclose(read[0, :length], shown.mean(0)[example.verb_position], atol=1e-6)
        assert not read[0, length:].any()
    assert readings.on_subject[0] == readings.attention[0, example.subject_head]
    plain = of(agreement_store)
    assert read_at_verbs(plain, plain.build_model(), "test").window is None


def test_translations_are_scored_against_the_text_of_the_corpus(reorder_store, tmp_path):
    task = of(reorder_store)
    found = evaluate_model(saved(task, tmp_path / "model"), task, "test", GREEDY)
    assert found.references == [example.target for example in reorder(200, part="test")]
    assert len(found.hypotheses) == found.metrics["sentences"] == 200
    assert found.metrics["unknown_in_references"] == 0
    for way in ("bleu", "bleu_tokenized", "bleu_compound_split", "chrf"):
        assert 0 <= found.metrics[way]["value"] <= 100
        assert "version:" in found.metrics[way]["signature"]
    comparison = compare(found, found, samples=20)
    ways = {"bleu", "bleu_tokenized", "bleu_compound_split", "chrf"}
    assert set(comparison) == {*ways, "perplexity_by_token"}
    assert comparison["perplexity_by_token"] == {"ratio": 1.0, "low": 1.0, "high": 1.0}


def test_the_perplexity_of_translations_is_that_of_validation(reorder_store, tmp_path):
    task = of(reorder_store, label_smoothing=0.1)
    trained = saved(task, tmp_path / "model")
    found = evaluate_model(trained, task, "test", GREEDY)
    assert found.metrics["perplexity_by_token"] == pytest.approx(
        task.validate(trained.model, "test")["perplexity"], rel=1e-5
    )
    assert found.nll[:, 1].tolist() == task.lengths("test")[1].tolist()


def test_a_ratio_of_perplexities_has_an_interval_where_both_read_the_same(text_store, tmp_path):
    task = of(text_store)
    first, second = (
        evaluate_model(saved(task, tmp_path / str(seed), seed=seed), task, "test", GREEDY) for seed in (0, 1)
    )
    found = compare(first, second)["perplexity"]
    assert found["ratio"] == pytest.approx(first.metrics["perplexity"] / second.metrics["perplexity"])
    assert found["low"] < found["ratio"] < found["high"]
    # every row a third more: the ratio is known, and no row says otherwise
    nll = second.nll + second.nll[:, 1:] * [np.log(4 / 3), 0.0]
    assert compare(replace(second, nll=nll), second)["perplexity"] == pytest.approx(
        dict.fromkeys(found, 4 / 3)
    )
    # perplexities too large for a float have a ratio inside of its interval
    hard = [replace(one, nll=one.nll * [1000.0, 1.0]) for one in (first, second)]
    found = compare(*hard)["perplexity"]
    assert found["low"] < found["ratio"] < found["high"]
    # one text in other blocks
    other = replace(second, nll=second.nll[::-1])
    assert set(compare(first, other)["perplexity"]) == {"ratio"}
    # nothing can be said from one row
    one = replace(first, nll=first.nll[:1])
    assert set(compare(one, one)["perplexity"]) == {"ratio"}


def test_an_interval_of_a_ratio_counts_the_words_of_each_row(text_store, tmp_path):
    """By the variance of a ratio of two sums over rows, to first order."""
    task = of(text_store)
    first, second = (
        evaluate_model(saved(task, tmp_path / str(seed), seed=seed), task, "test", GREEDY) for seed in (0, 1)
    )
    words = np.array([len(example.sentence.split()) + 1 for example in agreement(100, part="test")])
    differences = first.nll[:, 0] - second.nll[:, 0]
    ratio = differences.sum() / words.sum()
    error = np.std(differences - ratio * words) * len(words) ** 0.5 / words.sum()
    found = compare(first, second)["perplexity"]
    assert np.log(found["ratio"]) == pytest.approx(ratio)
    assert np.log(found["high"] / found["low"]) == pytest.approx(2 * stdtrit(99, 0.975) * error, rel=0.05)


def test_perplexities_of_other_words_have_no_ratio(text_store, tmp_path):
    task = of(text_store)
    found = evaluate_model(saved(task, tmp_path / "model"), task, "test", GREEDY)
    for name in ("words", "unknown_words"):
        other = replace(found, metrics=found.metrics | {name: found.metrics[name] + 1})
        assert compare(found, other) == {}


def test_one_translation_has_a_ratio_without_an_interval(reorder_store, tmp_path):
    task = of(reorder_store)
    found = evaluate_model(saved(task, tmp_path / "model"), task, "test", GREEDY)
    one = replace(found, nll=found.nll[:1])
    assert compare(one, one, samples=20)["perplexity_by_token"] == {"ratio": 1.0}


def test_translations_of_other_tokens_have_no_ratio_of_perplexities(reorder_store, tmp_path):
    task = of(reorder_store)
    found = evaluate_model(saved(task, tmp_path / "model"), task, "test", GREEDY)
    other = replace(found, nll=found.nll * [1, 2])
    assert "perplexity_by_token" not in compare(found, other, samples=20)


def test_text_has_its_perplexity_by_word_and_by_token(text_store, tmp_path):
    task = of(text_store)
    found = evaluate_model(saved(task, tmp_path / "model"), task, "test", GREEDY).metrics
    sentences = [example.sentence for example in agreement(100, part="test")]
    assert found["rows"] == 100
    assert found["words"] == sum(len(sentence.split()) + 1 for sentence in sentences)
    by_word, by_token = np.log(found["perplexity"]) * found["words"], np.log(found["perplexity_by_token"])
    assert by_word == pytest.approx(by_token * found["tokens"])


def test_equal_classifiers_do_not_differ_and_different_corpora_do_not_compare(
    agreement_store, reorder_store, tmp_path
):
    task = of(agreement_store)
    found = evaluate_model(saved(task, tmp_path / "a"), task, "test", GREEDY)
    assert compare(found, found) == {"accuracy": {"difference": 0.0, "p": 1.0}}
    other = of(reorder_store)
    with pytest.raises(ValueError, match="different references"):
        compare(evaluate_model(saved(other, tmp_path / "b"), other, "test", GREEDY), found)


def test_another_vocabulary_and_damaged_folders_are_refused(agreement_store, reorder_store, tmp_path):
    trained = saved(of(agreement_store), tmp_path / "model")
    with pytest.raises(ValueError, match="has another vocabulary than"):
        trained.task(reorder_store)
    for damaged in ("{}", "[]", "{"):
        (tmp_path / "model/task.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"task\.json is damaged"):
            ModelFolder.read(tmp_path / "model")
    (tmp_path / "model/config.json").write_text('{"model": "translater"}')
    with pytest.raises(ValueError, match=r"config\.json: model='translater'.*did you mean 'translator'"):
        ModelFolder.read(tmp_path / "model")
    (tmp_path / "model/config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json is damaged: it holds a list"):
        ModelFolder.read(tmp_path / "model")
    with pytest.raises(ValueError, match="there is no folder"):
        ModelFolder.read(tmp_path / "nowhere")
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "broken/model").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"broken/model is damaged: it has no config\.json"):
        ModelFolder.read(tmp_path / "broken")
    with pytest.raises(ValueError, match="has no model yet"):
        ModelFolder.read(tmp_path / "run")
    with pytest.raises(ValueError, match="neither a run folder nor a model folder"):
        ModelFolder.read(tmp_path / "run/checkpoints")


def test_a_model_without_a_record_does_not_take_another_models(agreement_store, tmp_path):
    saved(of(agreement_store, max_length=4), tmp_path / "model")
    saved(of(agreement_store), tmp_path / "other")
    (tmp_path / "other/task.json").unlink()
    assert ModelFolder.read(tmp_path / "other").record.options == TaskOptions()


def test_every_task_shows_its_progress(agreement_store, text_store, reorder_store, tmp_path):
    stages = {}
    for store in (agreement_store, text_store, reorder_store):
        task = of(store)
        shown = stages.setdefault(store.task, {})
        trained = saved(task, tmp_path / store.task)
        evaluate_model(
            trained,
            task,
            "test",
            GREEDY,
            progress=lambda stage, done, shown=shown: shown.update({stage: done}),
        )
    assert stages == {
        "classification": {"evaluation": 1.0},
        "language-model": {"evaluation": 1.0},
        "translation": {"translating": 1.0, "evaluation": 1.0},
    }
