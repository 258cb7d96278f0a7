"""What a trained model looks at in a text: an AttentionTrace with the names of its tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from diffwindow.attention.window_module import use_window_rule, window_modules
from diffwindow.checks import WINDOW_RULES, WindowRule, check_text
from diffwindow.data import trees
from diffwindow.data.store import Store
from diffwindow.decoding import Decoding
from diffwindow.decoding.beam import beam_search
from diffwindow.decoding.search import limit_lengths, start_translation
from diffwindow.evaluation.windows import GOLD_COLUMNS, has_gold_windows
from diffwindow.models.classifier import Classifier
from diffwindow.models.model import evaluating
from diffwindow.models.translator import Translator
from diffwindow.special_tokens import BOS, EOS, PAD
from diffwindow.tasks.model_folder import ModelFolder
from diffwindow.view.capture import capture
from diffwindow.view.payload import page_data
from diffwindow.view.trace import AttentionTrace, GoldSpan

DECODING = Decoding()


@dataclass(frozen=True)
class Example:
    """A sentence as token ids without begin or end, with its translation, gold span and tree where known.

    The tree has the distance of each token from the next, as a store keeps it.
    """

    ids: list[int]
    title: str
    target: list[int] | None = None
    gold: GoldSpan | None = None
    tree: list[int] | None = None


def attention_trace(
    trained: ModelFolder, text: str, *, target: str | None = None, decoding: Decoding = DECODING
) -> AttentionTrace:
    """Trace a model on a text; a translator reads `target`, or else its own translation."""
    return trace_example(trained, complete(trained, text_example(trained, text, target=target), decoding))


def text_example(trained: ModelFolder, text: str, *, target: str | None = None) -> Example:
    """Encode a text as the model's corpus was."""
    check_text("text", text)
    translates = isinstance(trained.model, Translator)
    if target is not None:
        check_text("target", target)
        if not translates:
            raise ValueError(f"a {trained.model.config.model} reads one text; leave the target out")
    (ids,) = trained.encode([text], "source" if translates else "text")
    if not ids:
        raise ValueError("there is no word in the text")
    return Example(ids, text.strip(), None if target is None else trained.encode([target], "target")[0])


def row_example(trained: ModelFolder, store: Store, split: str, row: int) -> Example:
    """Return a sentence of a corpus, with its translation or gold span where it has one."""
    # raises unless the store is of the model's task and vocabulary
    trained.task(store)
    rows = store.split(split)
    if not 0 <= row < len(rows):
        raise ValueError(f"row {row} is not in {split}, which has rows 0 to {len(rows) - 1}")
    translates = isinstance(trained.model, Translator)
    ids = rows.sequences["source" if translates else "text"][row].tolist()[:-1]
    target = rows.sequences["target"][row].tolist()[:-1] if translates else None
    gold = None
    if has_gold_windows(store, trained.record.options.max_length):
        first, last = (int(rows.columns[name][row]) for name in GOLD_COLUMNS)
        gold = GoldSpan("Enc", last, first, last)
    tree = rows.sequences[trees.FIELD][row].tolist()[: len(ids)] if trees.FIELD in rows.sequences else None
    return Example(ids, trained.tokenizer.decode(ids), target, gold, tree)


def complete(trained: ModelFolder, example: Example, decoding: Decoding = DECODING) -> Example:
    """Fill in a translator's own translation, by beam search and in one piece, where the example has none."""
    model = trained.model
    if not isinstance(model, Translator) or example.target is not None:
        return example
    with evaluating(model) as device:
        start = start_translation(model, torch.tensor([[*example.ids, EOS]], device=device))
        searched = Decoding(beam=decoding.beam, length_penalty=decoding.length_penalty)
        ((best,),) = beam_search(model, start, searched)
    return replace(example, target=list(best.tokens))


def for_other(example: Example, trained: ModelFolder, other: ModelFolder) -> Example:
    """Encode an example of one model for another: the same ids if they have one vocabulary."""
    kinds = [one.model.config.model for one in (trained, other)]
    if kinds[0] != kinds[1]:
        raise ValueError(f"a {kinds[0]} and a {kinds[1]} do not read the same; compare two of a kind")
    example = complete(trained, example)
    if other.vocabulary == trained.vocabulary:
        return example
    target = None if example.target is None else trained.tokenizer.decode(example.target)
    return text_example(other, example.title, target=target)


def trace_example(trained: ModelFolder, example: Example) -> AttentionTrace:
    """Run a model on a sentence and keep what its attentions do."""
    model, example = trained.model, complete(trained, example)
    if example.target is not None:
        read = [[*example.ids, EOS], [BOS, *example.target]]
    elif isinstance(model, Classifier):
        read = [[*example.ids, EOS][: trained.record.options.max_length]]
    else:
        read = [[trained.opening, *example.ids]]
    with evaluating(model) as device, capture(model) as trace:
        inputs = [torch.tensor([ids], device=device) for ids in read]
        if model.config.has_phrases:
            model(*inputs, gates=_gates(trained, example)[:, : len(read[0]) - 1].to(device))
        else:
            model(*inputs)
    if example.target is not None:
        trace = _name_translation(trained, trace, example.ids, example.target)
    else:
        trace = trace.with_tokens(trained.tokenizer.tokens(read[0]))
    return replace(trace, label=model.config.attention, title=example.title, gold=example.gold)


def _gates(trained: ModelFolder, example: Example) -> Float[Tensor, "1 gaps"]:
    """Return where the phrases of a sentence end, for a model that was trained with given phrases."""
    attention, options = trained.model.config.attention, trained.record.options
    if example.tree is None:
        raise ValueError(f"{attention} needs the phrases of the sentence; give a row of a corpus of trees")
    if options.phrase_placebo:
        raise ValueError(
            f"{trained.path} was trained with task.phrase_placebo={options.phrase_placebo}, so its phrases "
            "depend on the other texts of the corpus; look at a model without a placebo"
        )
    return torch.tensor([example.tree]).gt(options.phrase_height).float()


def trace_rules(trained: ModelFolder, example: Example) -> dict[WindowRule, AttentionTrace]:
    """Trace a model with other windows at test time, by rule; a model without windows has none."""
    if not window_modules(trained.model):
        return {}
    example, traces = complete(trained, example), {}
    for rule in WINDOW_RULES[1:]:
        with use_window_rule(trained.model, rule):
            traces[rule] = trace_example(trained, example)
    return traces


def translation_steps(trained: ModelFolder, example: Example) -> Iterator[tuple[list[int], AttentionTrace]]:
    """Translate greedily; after each token return all so far and where the step looked in the source."""
    model, tokenizer = trained.model, trained.tokenizer
    assert isinstance(model, Translator)
    labels, written = tokenizer.tokens([*example.ids, EOS]), list[int]()
    with evaluating(model) as device:
        source = torch.tensor([[*example.ids, EOS]], device=device)
        limit = int(limit_lengths(torch.tensor([source.shape[1]])))
        state, token = model.begin(source), torch.tensor([[BOS]], device=device)
    while len(written) < limit:
        with evaluating(model), capture(model) as trace:
            logits = model.step(token, state)[0, 0]
        logits[[PAD, BOS]] = -torch.inf
        token = logits.argmax().view(1, 1)
        if (chosen := int(token)) != EOS:
            written.append(chosen)
        layers = [replace(maps, queries="translation") for maps in trace.layers if maps.role == "Cr"]
        step = AttentionTrace(layers, label=model.config.attention, title=example.title)
        names = {"source": labels, "translation": tokenizer.tokens([chosen])}
        yield list(written), step.with_tokens(names)
        if chosen == EOS:
            return


def live_events(
    trained: ModelFolder, other: ModelFolder | None, *, most_tokens: int
) -> Callable[[str], Iterator[dict[str, Any]]]:
    """Return a function from a text to what a live page shows: the steps of a translation, then all maps."""

    def events(text: str) -> Iterator[dict[str, Any]]:
        example = text_example(trained, text)
        if len(example.ids) > most_tokens:
            raise ValueError(f"the sentence has {len(example.ids)} tokens; up to {most_tokens} are shown")
        if isinstance(trained.model, Translator):
            written: list[int] = []
            for written, step in translation_steps(trained, example):
                yield {"text": trained.tokenizer.decode(written), "page": page_data(step)}
            example = replace(example, target=written)
        against = None if other is None else trace_example(other, for_other(example, trained, other))
        rules = trace_rules(trained, example)
        yield {"page": page_data(trace_example(trained, example), against=against, rules=rules)}

    return events


def _name_translation(
    trained: ModelFolder, trace: AttentionTrace, source: Sequence[int], target: Sequence[int]
) -> AttentionTrace:
    """Name the tokens of a translation: the decoder reads `<s> a b` while it writes `a b </s>`.

    Cross-attention is named by what is written, because that is what a reader looks up in the source.
    """
    layers = [replace(maps, queries="translation") if maps.role == "Cr" else maps for maps in trace.layers]
    tokens = trained.tokenizer.tokens
    names = {
        "source": tokens([*source, EOS]),
        "target": tokens([BOS, *target]),
        "translation": tokens([*target, EOS]),
    }
    return replace(trace, layers=layers).with_tokens(names)
