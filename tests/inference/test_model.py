"""load(): texts in, texts out, against the models that are underneath."""

import math

import pytest
import torch

import diffwindow
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.decoding import Decoding
from diffwindow.decoding.sampling import sample
from diffwindow.decoding.search import start_continuation
from samples.model_folders import SENTENCES, save_model

TEXTS = ["the old keys", "", "my lamp fell .", "the boats found the old cabinet here ."]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    kinds = {"classifier": 0, "translator": 0, "language": 0}
    made = {kind: save_model(root / kind, kind, seed=seed) for kind, seed in kinds.items()}
    made["second"] = save_model(root / "second", "translator", seed=1)
    other = Tokenizer.train_words([*SENTENCES, "more words"])
    made["other words"] = save_model(root / "other", "translator", tokenizer=other)
    return made


def test_predict_has_a_probability_for_each_label(folders):
    model = diffwindow.load(folders["classifier"])
    found = model.predict(TEXTS)
    network, tokenizer = model.members[0].model, model.tokenizer
    for text, prediction in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            expected = network(torch.tensor([[*tokenizer.encode(text), 2]])).softmax(-1)[0].tolist()
        assert list(prediction.probabilities.values()) == pytest.approx(expected, abs=1e-6)
        assert prediction.probabilities[prediction.label] == max(prediction.probabilities.values())


def test_a_language_model_scores_each_token_and_the_end(folders):
    model = diffwindow.load(folders["language"])
    network, tokenizer = model.members[0].model, model.tokenizer
    for text, score in zip(TEXTS, model.score(TEXTS), strict=True):
        ids = tokenizer.encode(text)
        with torch.no_grad():
            log_probs = network(torch.tensor([[1, *ids]]))[0].log_softmax(-1)
        expected = [log_probs[i, token].item() for i, token in enumerate([*ids, 2])]
        assert score.token_log_probs == pytest.approx(expected, abs=1e-5)
        assert score.log_prob == pytest.approx(sum(expected), abs=1e-5)
        assert score.tokens == tokenizer.tokens([*ids, 2])


def test_continuations_come_likeliest_first(folders):
    model = diffwindow.load(folders["language"])
    network, ids = model.members[0].model, model.tokenizer.encode("my")
    start = start_continuation(network, torch.tensor([[1, *ids]]), limit=12)
    (drawn,) = sample(network, start, Decoding(seed=0, n_best=8, temperature=1.0))
    by_probability = sorted(drawn, key=lambda one: -one.log_prob)
    assert by_probability != drawn
    expected = [model.tokenizer.decode([*ids, *one.tokens]) for one in by_probability]
    assert (
        model.generate("my", Decoding(n_best=8, max_new_tokens=12, temperature=1.0, length_penalty=0.0))
        == expected
    )


def test_a_translation_scores_as_the_search_says(folders):
    model = diffwindow.load(folders["translator"])
    source = TEXTS[3]
    (best,) = model.translations([source], Decoding(n_best=3, length_penalty=0.0))
    pairs = [(source, one.text) for one in best]
    found = [score.log_prob for score in model.score(pairs)]
    assert found == pytest.approx([one.score for one in best], abs=1e-4)


def test_an_ensemble_averages_the_probability_of_each_token(folders):
    paths = [folders["translator"], folders["second"]]
    pair = [("my lamp fell .", "the boats found")]
    alone = [diffwindow.load(path).score(pair)[0].token_log_probs for path in paths]
    (both,) = diffwindow.load(paths).score(pair)
    expected = [math.log((math.exp(a) + math.exp(b)) / 2) for a, b in zip(*alone, strict=True)]
    assert both.token_log_probs == pytest.approx(expected, abs=1e-5)
    assert len(diffwindow.load(paths).translate(TEXTS)) == len(TEXTS)


def test_translate_keeps_order_and_empty_texts(folders):
    model = diffwindow.load(folders["translator"])
    together = model.translate(TEXTS)
    assert together == [model.translate([text])[0] for text in TEXTS]
    assert together[1] == ""
    assert model.translate([]) == []


def test_samples_depend_on_the_seed_and_not_on_the_batch(folders):
    model = diffwindow.load(folders["translator"])
    drawn = Decoding(temperature=1.0, n_best=3, seed=4)
    many = model.translations(TEXTS, drawn)
    assert many == model.translations(TEXTS, drawn)
    alone = model.translations(TEXTS[:1], drawn)
    assert [one.text for one in many[0]] == [one.text for one in alone[0]]
    assert many != model.translations(TEXTS, Decoding(temperature=1.0, n_best=3, seed=5))


def test_constraints_reach_the_search(folders):
    translator = diffwindow.load(folders["translator"])
    search = Decoding(min_new_tokens=6, no_repeat_ngram=1)
    (text,) = translator.translate(["my lamp fell ."], search)
    words = text.split()
    assert len(words) >= 6
    assert len(set(words)) == len(words)
    language = diffwindow.load(folders["language"])
    sampling = Decoding(
        n_best=3, max_new_tokens=8, min_new_tokens=8, no_repeat_ngram=1, temperature=1.0, length_penalty=0.0
    )
    for text in language.generate("my", sampling):
        assert len(set(text.split()[1:])) == len(text.split()[1:]) == 8


def test_nothing_keeps_gradients_and_the_mode_stays(folders):
    model = diffwindow.load(folders["language"])
    assert not any(parameter.requires_grad for parameter in model.members[0].model.parameters())
    before = torch.is_grad_enabled()
    model.score(TEXTS)
    assert torch.is_grad_enabled() == before


def test_dtype_converts_the_weights(folders):
    model = diffwindow.load(folders["language"], dtype=torch.bfloat16)
    full = diffwindow.load(folders["language"])
    assert model.members[0].model.embedding.weight.dtype == torch.bfloat16
    for low, high in zip(model.score(TEXTS), full.score(TEXTS), strict=True):
        assert low.log_prob == pytest.approx(high.log_prob, rel=0.05)
    with pytest.raises(ValueError, match=r"dtype=torch.int8 is not a floating-point type"):
        diffwindow.load(folders["language"], dtype=torch.int8)


def test_eight_bits_are_close_and_smaller(folders):
    model, full = (diffwindow.load(folders["language"], dtype=dtype) for dtype in ("int8", None))
    for low, high in zip(model.score(TEXTS), full.score(TEXTS), strict=True):
        assert low.log_prob == pytest.approx(high.log_prob, rel=0.05)
        assert low.log_prob != high.log_prob
    classifier = diffwindow.load(folders["classifier"], dtype="int8").predict(TEXTS)
    for low, high in zip(classifier, diffwindow.load(folders["classifier"]).predict(TEXTS), strict=True):
        assert low.probabilities == pytest.approx(high.probabilities, abs=0.05)


def test_a_sentence_in_eight_bits_does_not_depend_on_its_batch(folders):
    model = diffwindow.load([folders["translator"], folders["second"]], dtype="int8")
    decoding = Decoding(beam=3, n_best=2)
    alone = [best for text in TEXTS for best in model.translations([text], decoding)]
    for one, other in zip(alone, model.translations(TEXTS, decoding), strict=True):
        assert [output.text for output in one] == [output.text for output in other]
        assert [output.score for output in one] == pytest.approx([output.score for output in other], abs=1e-5)


def test_eight_bits_change_no_file_and_are_neither_saved_nor_trained(folders, tmp_path):
    before = {path: path.read_bytes() for path in folders["translator"].iterdir()}
    model = diffwindow.load(folders["translator"], dtype="int8").members[0].model
    with pytest.raises(ValueError, match="are not saved; save the model that they were made from"):
        model.save_pretrained(tmp_path / "saved")
    assert not any(tmp_path.glob("saved/*.safetensors"))
    with pytest.raises(ValueError, match="cannot be trained; load the model without dtype='int8'"):
        model.train()
    tokens = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="cannot be trained; load the model without dtype='int8'"):
        model.loss(tokens, tokens, tokens)
    assert {path: path.read_bytes() for path in folders["translator"].iterdir()} == before


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int4"}, "dtype='int4' is unknown; pass 'int8', or a type such as torch.bfloat16"),
        ({"dtype": "int8", "device": "cuda"}, "'int8' is for CPUs, and the device is 'cuda'; pass device="),
    ],
)
def test_types_that_are_not_served_are_named(folders, options, message):
    with pytest.raises(ValueError, match=message):
        diffwindow.load(folders["language"], **options)


def test_attention_is_a_trace(folders):
    trace = diffwindow.load(folders["translator"]).attention("my lamp fell", "the boats")
    assert trace.tokens["translation"] == ["the", "boats", "</s>"]


@pytest.mark.parametrize(
    ("names", "call", "error", "message"),
    [
        (
            ["classifier"],
            lambda m: m.translate(["a"]),
            ValueError,
            "a classifier, which does not translate",
        ),
        (
            ["translator"],
            lambda m: m.predict(["a"]),
            ValueError,
            "a translator, which does not predict labels",
        ),
        (["classifier"], lambda m: m.score(["a"]), ValueError, "holds a classifier, which does not score"),
        (
            ["translator"],
            lambda m: m.generate("a"),
            ValueError,
            "a translator, which does not generate",
        ),
        (["translator"], lambda m: m.score(["a"]), TypeError, r"item 0 is not a pair; .* \(source, target\)"),
        (["language"], lambda m: m.score([("a", "b")]), TypeError, "text 0 is of type tuple; pass a str"),
        (["language"], lambda m: m.score("a"), TypeError, "the texts are 'a'; pass a list of texts"),
        (["classifier"], lambda m: m.predict(None), TypeError, "the texts are None; pass a list of texts"),
        (["translator"], lambda m: m.score(None), TypeError, "the texts are None; pass a list of texts"),
        (["translator"], lambda m: m.score([None]), TypeError, "item 0 is not a pair"),
        (["language"], lambda m: m.generate(None), TypeError, "prompt is None; pass a str"),
        (["classifier"], lambda m: m.attention(b"x"), TypeError, "text is of type bytes; pass a str"),
        (["translator", "second"], lambda m: m.attention("a"), ValueError, "load one of its models"),
        (
            ["translator", "second"],
            lambda m: m.generate("a"),
            ValueError,
            "not generate; load one model",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_mistakes_are_named(folders, names, call, error, message):
    model = diffwindow.load([folders[name] for name in names])
    with pytest.raises(error, match=message):
        call(model)


def test_an_ensemble_has_translators_of_one_vocabulary(folders):
    with pytest.raises(ValueError, match="has another vocabulary"):
        diffwindow.load([folders["translator"], folders["other words"]])
    with pytest.raises(ValueError, match="holds a language model; an ensemble has translators"):
        diffwindow.load([folders["translator"], folders["language"]])
    with pytest.raises(ValueError, match="no folder to load"):
        diffwindow.load([])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("path", [None, 3, [None]])
def test_what_is_no_path_is_named(path):
    with pytest.raises(TypeError, match="is not the folder of a run or a model; pass its path"):
        diffwindow.load(path)
