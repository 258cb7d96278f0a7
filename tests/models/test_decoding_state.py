"""Cached decoding: the same numbers as the whole sequence at once, for every attention."""

import pytest
import torch
from torch.testing import assert_close

from samples.small_models import DECODER, language_model, notations, tokens, translator

pytestmark = pytest.mark.filterwarnings("ignore:the paper has no segments")
every_translator = pytest.mark.parametrize("attention", notations())
LANGUAGE_MODELS = ["Global", *(f"Dec({k})@all" for k in DECODER)]
every_language_model = pytest.mark.parametrize("kind", LANGUAGE_MODELS)


def padded_sources():
    """A whole source, one padded on the right and one on the left."""
    source = tokens(3, 11)
    source[1, 7:] = 0
    source[2, :4] = 0
    return source


@pytest.mark.parametrize(
    ("attention", "options"),
    [
        *((attention, {}) for attention in notations()),
        ("Enc(AW)-Cr(AW,Seg)-Dec(MW)", {"norm": "pre"}),
        ("Enc(AW)@all-Cr(MW,Norm)@all-Dec(MW,Norm)@all", {"window_tolerance": 0.3}),
        ("Enc(AW)-Cr(AW,Seg)-Dec(MW)", {"positions": "none"}),
        ("Global", {"positions": "rotary"}),
        ("Enc(AW)-Cr(AW,Seg)-Dec(MW)", {"positions": "rotary"}),
        ("Enc(MW,Seg=3)-Dec(AW)@all", {"positions": "rotary", "rotary": "both"}),
    ],
)
def test_steps_equal_the_whole(attention, options):
    model, source, target = translator(attention, **options), padded_sources(), tokens(3, 8)
    state = model.begin(source)
    steps = [model.step(target[:, t : t + 1], state) for t in range(8)]
    assert_close(torch.cat(steps, dim=1), model(source, target))


@every_translator
def test_hypotheses_may_be_reordered_and_sentences_dropped(attention):
    model, source = translator(attention), padded_sources()
    state, generator = model.begin(source), torch.Generator().manual_seed(3)
    prefixes, sentences = torch.empty(3, 1, 0, dtype=torch.long), torch.arange(3)
    widths = [3, 2, 4, 4, 1, 3]
    for step, width in enumerate(widths):
        new = torch.randint(4, 30, (*prefixes.shape[:2], 1), generator=generator)
        prefixes = torch.cat([prefixes, new], dim=-1)
        logits = model.step(new.squeeze(-1), state)
        rows = prefixes.flatten(0, 1)
        whole = model(source[sentences].repeat_interleave(prefixes.shape[1], 0), rows)
        assert_close(logits.flatten(0, 1), whole[:, -1])
        kept = torch.tensor([[0, 1, 2], [2, 0, 1], [0, 2], [1, 0], [0, 1], [1]][step])
        chosen = torch.randint(0, prefixes.shape[1], (len(kept), width), generator=generator)
        state.select(kept, chosen)
        prefixes, sentences = prefixes[kept[:, None], chosen], sentences[kept]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in LANGUAGE_MODELS),
        ("Dec(MW)", {"positions": "rotary"}),
    ],
)
def test_language_model_goes_on_from_a_prompt(kind, options):
    model, text = language_model(kind, **options), tokens(2, 9)
    whole = model(text)
    for prompt in (0, 1, 6):
        state = model.begin(text[:, :prompt])
        steps = [model.step(text[:, t : t + 1], state) for t in range(prompt, 9)]
        assert_close(torch.cat(steps, dim=1), whole[:, prompt:])


@every_language_model
def test_prompts_padded_on_the_left_change_nothing(kind):
    model, text = language_model(kind), tokens(3, 9)
    starts = [0, 3, 5]
    mask = torch.arange(9) >= torch.tensor(starts)[:, None]
    # The last prompt is all padding: it starts with the first step.
    state = model.begin(text[:, :5].masked_fill(~mask[:, :5], 0), mask[:, :5])
    steps = [model.step(text[:, 5:6], state)]
    state.select(torch.tensor([2, 0, 1]), torch.tensor([[0, 0]] * 3))
    order = text[[2, 0, 1]]
    steps += [model.step(order[:, t : t + 1].expand(3, 2), state)[:, 1:] for t in range(6, 9)]
    for row, start in enumerate(starts):
        alone = model(text[row : row + 1, start:])[0, 5 - start :]
        moved = [2, 0, 1].index(row)
        cached = torch.stack([steps[0][row, 0], *(step[moved, 0] for step in steps[1:])])
        assert_close(cached, alone)


def test_a_prompt_padded_on_the_right_is_refused():
    mask = torch.tensor([[True, True, False]])
    with pytest.raises(ValueError, match="pad prompts on the left"):
        language_model("Global").begin(tokens(1, 3), mask)


def test_a_step_takes_one_token_a_hypothesis():
    model = translator("Global")
    state = model.begin(padded_sources())
    with pytest.raises(ValueError, match=r"\[3, 2\].*3 sentences with 1 hypotheses"):
        model.step(tokens(3, 2), state)


@pytest.mark.parametrize("attention", ["Global", "Enc(AW)-Cr(AW,Seg)-Dec(MW)"])
def test_a_step_projects_one_token_and_no_source(attention):
    model, projected = translator(attention), []
    state = model.begin(padded_sources())
    for layer in model.decoder.layers:
        layer.self_attention.attention.in_proj.register_forward_hook(
            lambda _module, inputs, _output: projected.append(inputs[0].shape)
        )
        # Cross-attention slices its stacked projection; its keys may not be asked for again.
        layer.cross_attention.attention.project_keys = None
    for t in range(5):
        model.step(tokens(3, 5)[:, t : t + 1], state)
    assert projected == [(3, 1, 16)] * 10


def test_source_keys_are_kept_once_a_sentence():
    model = translator("Cr(AW)@all")
    state = model.begin(padded_sources())
    model.step(tokens(3, 1), state)
    state.select(torch.arange(3), torch.zeros(3, 5, dtype=torch.long))
    model.step(tokens(3, 5), state)
    assert [list(keys.shape) for keys in state.memory] == [[3, 11, 5 * 16]] * 2
    assert [list(cache.buffer.shape[::2]) for cache in state.caches] == [[15, 2 * 16]] * 2
