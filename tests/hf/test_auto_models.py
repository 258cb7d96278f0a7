"""Our models as transformers models: the same numbers, the same searches, and the Auto classes."""

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from diffwindow import (
    Classifier,
    ClassifierConfig,
    LanguageModel,
    LanguageModelConfig,
    Translator,
    TranslatorConfig,
)
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.decoding import Decoding
from diffwindow.decoding.beam import beam_search
from diffwindow.decoding.search import start_continuation, start_translation
from diffwindow.files import write_json
from diffwindow.hf.auto_models import as_transformers, transformers_tokenizer
from diffwindow.inference.model import load
from diffwindow.models.added_windows import add_windows
from diffwindow.special_tokens import EOS, PAD

SIZES = {"vocab_size": 12, "embed_dim": 16, "ffn_dim": 24, "num_heads": 2}


def sharpened(model, seed=0):
    """Weights large enough that no two continuations are about equally probable."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return model.eval()


def translator(**settings):
    attention = "Enc(AW)-Cr(AW,Seg=2)-Dec(MW)"
    config = TranslatorConfig(**SIZES, encoder_layers=2, decoder_layers=2, attention=attention, **settings)
    return sharpened(Translator(config))


def language_model(**settings):
    config = LanguageModelConfig(**SIZES, num_layers=2, attention="Dec(MW)@1-Dec(AW)@2", **settings)
    return sharpened(LanguageModel(config))


def classifier(**settings):
    return sharpened(Classifier(ClassifierConfig(**SIZES, num_classes=3, attention="Enc(AW)", **settings)))


def tokens(batch, length, seed=0):
    return torch.randint(3, 12, (batch, length), generator=torch.Generator().manual_seed(seed))


def sources():
    """Two sources, the second one shorter, and which tokens are real."""
    source = tokens(2, 6)
    source[1, 4:] = 0
    return source, (source != 0).long()


def cut(row):
    """What comes before the end."""
    row = row.tolist()
    return row[: row.index(2)] if 2 in row else row


def test_the_forward_pass_is_ours():
    model, (source, mask), target = translator(), sources(), tokens(2, 5, seed=1)
    wrapped = as_transformers(model)
    found = wrapped(source, attention_mask=mask, decoder_input_ids=target).logits
    assert_close(found, model(source, target))
    loss = wrapped(source, attention_mask=mask, labels=target).loss
    moved = torch.cat([torch.full((2, 1), 1), target[:, :-1]], 1)
    ours = model.loss(source, moved, target)
    assert_close(loss, ours.total / ours.num_tokens)


@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_translation_is_ours(use_cache):
    model, (source, mask) = translator(), sources()
    ours = beam_search(model, start_translation(model, source, ratio=0.0, extra=12), Decoding(beam=1))
    found = as_transformers(model).generate(
        source, attention_mask=mask, max_new_tokens=12, do_sample=False, use_cache=use_cache
    )
    assert [cut(row[1:]) for row in found] == [list(hypothesis.tokens) for (hypothesis,) in ours]


def end_at_limit(input_ids, scores):
    """Leave only the end after two tokens, with its own log-probability, as our search does at its limit."""
    if input_ids.shape[1] == 3:
        ends = scores[:, 2].clone()
        scores = torch.full_like(scores, float("-inf"))
        scores[:, 2] = ends
    return scores


@pytest.mark.parametrize("use_cache", [True, False])
def test_exhaustive_beams_agree(use_cache):
    """Beams that hold every prefix find the same best output: log p / length^α, ended by the end."""
    model, (source, mask) = translator(), sources()
    ours = beam_search(model, start_translation(model, source, ratio=0.0, extra=2), Decoding(beam=200))
    found = as_transformers(model).generate(
        source, attention_mask=mask, max_new_tokens=3, do_sample=False, use_cache=use_cache, num_beams=120,
        length_penalty=0.6, early_stopping="never", return_dict_in_generate=True, output_scores=True,
        logits_processor=transformers.LogitsProcessorList([end_at_limit]),
    )  # fmt: skip
    for row, score, (best, *_) in zip(found.sequences, found.sequences_scores, ours, strict=True):
        assert cut(row[1:]) == list(best.tokens)
        assert score.item() == pytest.approx(best.score, abs=1e-4)


@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_continuation_is_ours(use_cache):
    """Prompts of several lengths, padded on the left."""
    model, prompt = language_model(), tokens(3, 5)
    mask = torch.ones_like(prompt)
    mask[1, :2] = 0
    start = start_continuation(model, prompt, mask.bool(), limit=10)
    ours = beam_search(model, start, Decoding(beam=1))
    found = as_transformers(model).generate(
        prompt, attention_mask=mask, max_new_tokens=10, do_sample=False, use_cache=use_cache
    )
    assert [cut(row[5:]) for row in found] == [list(hypothesis.tokens) for (hypothesis,) in ours]


ROTARY = {"positions": "rotary", "rotary": "both"}


@pytest.mark.parametrize("positions", [{}, ROTARY])
def test_a_prefix_in_pieces_is_a_prefix(positions):
    """Several tokens after a cache see what they see without one, from where they stand."""
    model = as_transformers(language_model(**positions))
    x, mask = tokens(2, 7), torch.ones(2, 7).long()
    mask[1, :2] = 0
    whole = model(x, attention_mask=mask).logits
    first = model(x[:, :4], attention_mask=mask[:, :4], use_cache=True)
    second = model(x[:, 4:], attention_mask=mask, past_key_values=first.past_key_values)
    assert_close(second.logits, whole[:, 4:])


@pytest.mark.parametrize("positions", [{}, ROTARY])
def test_a_translation_in_pieces_is_a_translation(positions):
    model, (source, mask), target = as_transformers(translator(**positions)), sources(), tokens(2, 7, seed=1)
    whole = model(source, attention_mask=mask, decoder_input_ids=target).logits
    first = model(source, attention_mask=mask, decoder_input_ids=target[:, :4], use_cache=True)
    second = model(
        attention_mask=mask, encoder_outputs=(first.encoder_last_hidden_state,),
        decoder_input_ids=target[:, 4:], past_key_values=first.past_key_values,
    )  # fmt: skip
    assert_close(second.logits, whole[:, 4:])


@pytest.mark.parametrize("build", [translator, language_model])
def test_a_static_cache_generates_the_same(build):
    model, (source, mask) = as_transformers(build()), sources()
    if build is language_model:
        source, mask = source.flip(1), mask.flip(1)
    expected, found = (
        model.generate(source, attention_mask=mask, max_new_tokens=8, do_sample=False, **cache)
        for cache in ({"use_cache": False}, {"cache_implementation": "static", "disable_compile": True})
    )
    assert torch.equal(found, expected)


def test_a_mask_by_query_is_refused():
    with pytest.raises(ValueError, match=r"has shape \[2, 1, 7, 7\], not \[batch, length\]"):
        as_transformers(language_model())(tokens(2, 7), attention_mask=torch.ones(2, 1, 7, 7))


@pytest.mark.parametrize("build", [translator, language_model])
def test_padding_in_the_labels_counts_no_more_than_ignored_labels(build):
    model, (row, mask) = as_transformers(build(dropout=0.0)), sources()
    counted = [row, row.masked_fill(row == 0, -100)]
    # a Trainer counts what is not -100; a language model predicts all but the first
    first = 1 if build is language_model else 0
    losses = [
        model(
            row, attention_mask=mask, labels=labels, num_items_in_batch=(labels[:, first:] != -100).sum()
        ).loss
        for labels in counted
    ]
    assert_close(*losses)
    assert_close(losses[0], model(row, attention_mask=mask, labels=row).loss)


class Rows(torch.utils.data.Dataset):
    """Two texts of different lengths; a model trains on them at once or one by one."""

    def __init__(self, *, per_text):
        self.per_text = per_text

    def __len__(self):
        return 2

    def __getitem__(self, index):
        row = tokens(1, 6, seed=index)[0]
        row[6 - 3 * index :] = 0
        labels = row.masked_fill(row == 0, -100)
        return {"input_ids": row, "attention_mask": row != 0, "labels": index if self.per_text else labels}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("build", [language_model, classifier])
def test_a_trainer_that_accumulates_gradients_trains_as_with_the_whole_batch(build, tmp_path):
    pytest.importorskip("accelerate")

    def trained(batch_size, accumulated):
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=batch_size, optim="sgd",
            gradient_accumulation_steps=accumulated, learning_rate=0.1, lr_scheduler_type="constant",
            max_grad_norm=0.0, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
            logging_strategy="no", dataloader_pin_memory=False,
        )  # fmt: skip
        model = as_transformers(build(dropout=0.0))
        trainer = transformers.Trainer(model, arguments, train_dataset=Rows(per_text=build is classifier))
        trainer.train()
        return dict(model.named_parameters())

    whole, accumulated = trained(2, 1), trained(1, 2)
    for name, parameter in whole.items():
        assert_close(accumulated[name], parameter, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "auto"),
    [
        (translator, "AutoModelForSeq2SeqLM"),
        (language_model, "AutoModelForCausalLM"),
        (classifier, "AutoModelForSequenceClassification"),
    ],
)
def test_the_auto_classes_load_what_was_saved(build, auto, tmp_path):
    model = build()
    as_transformers(model).save_pretrained(tmp_path)
    loaded = getattr(transformers, auto).from_pretrained(tmp_path)
    state = model.state_dict()
    assert all(torch.equal(x, state[name]) for name, x in loaded.model.state_dict().items())
    assert loaded.model.config == model.config
    if auto == "AutoModelForSequenceClassification":
        assert loaded.config.num_labels == 3
    else:
        assert loaded.generation_config.suppress_tokens == [0, 1]


def saved(model, tokenizer, folder, **options):
    """Save a model, its tokenizer and its task as training does; return the first two for transformers."""
    model.save_pretrained(folder, tokenizer)
    record = {"corpus": "mine", "moses": {}, "languages": {}, "labels": [], "options": options}
    write_json(folder / "task.json", record)
    return as_transformers(model), transformers_tokenizer(folder)


@pytest.mark.parametrize("block_size", [None, 8])
def test_a_pipeline_generates_as_our_own(block_size, tmp_path):
    tokenizer = Tokenizer.train_bpe(["the key is here", "the keys are here"], 270)
    sizes = SIZES | {"vocab_size": tokenizer.vocab_size}
    for seed in range(50):
        model = sharpened(
            LanguageModel(LanguageModelConfig(**sizes, num_layers=1, attention="Dec(AW)")), seed
        )
        wrapped, fast = saved(model, tokenizer, tmp_path, block_size=block_size)
        (ours,) = load(tmp_path).generate("the key", Decoding(temperature=0, max_new_tokens=4, beam=1))
        # whole letters only: a pipeline decodes the prompt and its continuation apart
        if ours.isascii() and len(tokenizer.encode(ours)) == len(tokenizer.encode("the key")) + 4:
            break
    else:
        raise AssertionError("no model of these writes whole letters")
    pipe = transformers.pipeline("text-generation", model=wrapped, tokenizer=fast, device="cpu")
    (found,) = pipe("the key", max_new_tokens=4, do_sample=False)
    assert found["generated_text"] == ours


def test_a_pipeline_classifies_as_our_own(tmp_path):
    tokenizer = Tokenizer.train_bpe(["the key is here", "the keys are here"], 270)
    sizes = SIZES | {"vocab_size": tokenizer.vocab_size}
    model = sharpened(Classifier(ClassifierConfig(**sizes, num_classes=3)))
    wrapped, fast = saved(model, tokenizer, tmp_path)
    pipe = transformers.pipeline("text-classification", model=wrapped, tokenizer=fast, device="cpu")
    found = pipe("the keys are", top_k=None)
    (ours,) = load(tmp_path).predict(["the keys are"])
    assert {one["label"]: one["score"] for one in found} == pytest.approx(
        {f"LABEL_{label}": probability for label, probability in ours.probabilities.items()}, abs=1e-5
    )


def test_a_source_has_its_end(tmp_path):
    tokenizer = Tokenizer.train_bpe(["the key is here"], 262)
    _, fast = saved(translator(), tokenizer, tmp_path)
    assert fast("the key")["input_ids"] == [*tokenizer.encode("the key"), 2]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (language_model, "position_ids"),
        (language_model, "inputs_embeds"),
        (classifier, "position_ids"),
        (translator, "decoder_attention_mask"),
    ],
)
def test_an_argument_that_would_be_ignored_is_an_error(make, name):
    model = as_transformers(make())
    labels = {"labels": tokens(2, 5)} if make is translator else {}
    with pytest.raises(ValueError, match=f"does not take {name}; leave it out"):
        model(tokens(2, 5), **labels, **{name: torch.zeros(2, 5)})


def test_windows_that_are_added_after_wrapping_are_saved(tmp_path):
    plain = sharpened(LanguageModel(LanguageModelConfig(**SIZES, num_layers=2)))
    wrapped = as_transformers(plain)
    add_windows(plain, "Dec(MW)")
    wrapped.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.model.config.attention == "Dec(MW,Gate)"
    assert_close(loaded(tokens(2, 5)).logits, wrapped(tokens(2, 5)).logits)


def test_a_head_for_other_labels_is_initialised(tmp_path):
    as_transformers(classifier()).save_pretrained(tmp_path)
    auto = transformers.AutoModelForSequenceClassification
    loaded = auto.from_pretrained(tmp_path, num_labels=5, ignore_mismatched_sizes=True)
    assert loaded(tokens(2, 5)).logits.shape == (2, 5)
    assert 0 < loaded.model.output.weight.abs().max() < 2
    assert not loaded.model.output.bias.any()
    assert torch.equal(loaded.model.embedding.weight, classifier().embedding.weight)


def test_parameters_that_a_checkpoint_lacks_start_as_our_own(tmp_path):
    as_transformers(classifier()).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lost = {"model.embedding.weight", "model.output.bias", "model.encoder.norm.weight"} & weights.keys()
    kept = {name: value for name, value in weights.items() if name not in lost}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert loaded(tokens(2, 5)).logits.isfinite().all()
    embedding = loaded.model.embedding.weight
    assert not embedding[PAD].any()
    assert embedding.std().item() == pytest.approx(embedding.shape[1] ** -0.5, rel=0.3)
    assert len(lost) >= 2
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in kept.items())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_labels": 1}, "num_labels=1: a classifier tells two labels apart"),
        ({"problem_type": "multi_label_classification"}, "a text has one label here"),
    ],
)
def test_other_problems_than_one_of_several_labels_are_refused(settings, sentence, tmp_path):
    as_transformers(classifier()).save_pretrained(tmp_path)
    auto = transformers.AutoModelForSequenceClassification
    with pytest.raises(ValueError, match=sentence):
        auto.from_pretrained(tmp_path, **settings, ignore_mismatched_sizes=True)(tokens(2, 5))


def test_a_translation_needs_a_source():
    with pytest.raises(ValueError, match="input_ids is missing; give it, or encoder_outputs"):
        as_transformers(translator())(decoder_input_ids=tokens(2, 5))


@pytest.mark.parametrize("text", ["the </s> key <s>", "<pad> the key"])
def test_names_of_special_tokens_in_a_text_are_text(text, tmp_path):
    tokenizer = Tokenizer.train_bpe(["the key is here"], 262)
    _, fast = saved(translator(), tokenizer, tmp_path)
    assert fast(text)["input_ids"] == [*tokenizer.encode(text), EOS]


def test_a_fresh_model_starts_as_our_own():
    wrapped = as_transformers(classifier())
    torch.manual_seed(3)
    fresh = transformers.AutoModelForSequenceClassification.from_config(wrapped.config).model.state_dict()
    torch.manual_seed(3)
    ours = Classifier(wrapped.model.config).state_dict()
    assert all(torch.equal(fresh[name], value) for name, value in ours.items())


@pytest.mark.parametrize(
    "wish", [{"output_hidden_states": True}, {"output_attentions": True}, {"return_dict": False}]
)
def test_what_would_not_be_returned_is_refused(wish):
    wrapped = as_transformers(language_model())
    with pytest.raises(ValueError, match="|".join(wish)):
        wrapped(tokens(2, 5), **wish)
    for name, value in wish.items():
        setattr(wrapped.config, name, value)
    with pytest.raises(ValueError, match="|".join(wish)):
        wrapped(tokens(2, 5))
