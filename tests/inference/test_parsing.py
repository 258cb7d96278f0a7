"""Trees of models that learn phrases."""

import pytest
import torch

import diffwindow
from diffwindow.cli import parse as command
from diffwindow.cli.view import view
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.inference.attention import Example
from diffwindow.inference.parsing import draw_tree, score_trees, word_distances
from samples.model_folders import SENTENCES, save_model


@pytest.mark.parametrize(("kind", "opening"), [("parser", []), ("causal parser", [1])])
def test_words_are_as_far_apart_as_the_pieces_beside_their_gap(tmp_path, kind, opening):
    subwords = Tokenizer.train_bpe(SENTENCES, 270)
    model = diffwindow.load(save_model(tmp_path / "model", kind, tokenizer=subwords), device="cpu")
    network, text = model.members[0].model, SENTENCES[0]
    ids = subwords.encode(text)
    starts = subwords.word_starts()
    # `@@` marks a piece that the next continues
    assert [starts[token] for token in ids[1:]] == ["@@" not in shown for shown in subwords.tokens(ids)[:-1]]
    stack = network.encoder if kind == "parser" else network.decoder
    distances = stack.phrases.distances(network.embedding(torch.tensor([[*opening, *ids]])))[
        0, len(opening) :
    ]
    expected = [float(d) for d, token in zip(distances, ids[1:], strict=True) if starts[token]]
    assert word_distances(model.members[0], text.split()) == expected
    (tree,) = model.parse([text])
    assert tree.replace("(", "").replace(")", "") == text
    # the first split is at the largest distance
    largest = expected.index(max(expected)) + 1
    left, right = (" ".join(words) for words in (text.split()[:largest], text.split()[largest:]))
    assert model.parse([left, right, ""]) == [*_halves(tree), ""]


def _halves(tree):
    depth = 0
    for place, sign in enumerate(tree):
        depth += (sign == "(") - (sign == ")")
        if sign == " " and depth == 1:
            return tree[1:place], tree[place + 1 : -1]


def test_the_command_prints_a_tree_or_how_it_agrees_with_others(tmp_path, capsys):
    model = save_model(tmp_path / "model", "parser")
    command.parse(model, "my lamp fell", device="cpu")
    assert capsys.readouterr().out.count("(") == 2
    picture = tmp_path / "tree.svg"
    view(model, "my lamp fell", tree=picture, device="cpu")
    assert capsys.readouterr().out == f"{picture}\n"
    assert picture.read_bytes().startswith(b"<?xml")
    treebank = tmp_path / "trees.txt"
    treebank.write_text("(S (NP my lamp) (VP fell (ADV here)) .)\n(S fell here)\n(S (NP the boats) fell)\n")
    command.parse(model, trees=treebank, device="cpu")
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    names = ["model", "right-branching", "left-branching", "random", "balanced"]
    # two heads in the first of two layers
    assert [line[0] for line in lines] == [*names, "level -0.67", "level 0.67"]
    # one of two phrases of the first tree, and none of the third's; the second is too short
    assert lines[1][1:] == ["25.0 ± 49.0", "2 sentences"]
    scores = score_trees(diffwindow.load(model).members[0], treebank)
    assert scores.f1["balanced"] == [1.0, 1.0]
    low, high = scores.phrase_lengths.values()
    # of eight words in two sentences
    assert 1 < low < high < 4


def test_mistakes_are_named(tmp_path):
    model = save_model(tmp_path / "model", "classifier")
    with pytest.raises(
        ValueError, match=r"has Enc\(AW\)@all, which learns no phrases; train a model with Enc"
    ):
        command.parse(model, "my lamp", device="cpu")
    with pytest.raises(ValueError, match="give a text to parse, or --trees"):
        command.parse(model, device="cpu")
    parser, treebank = save_model(tmp_path / "parser", "parser"), tmp_path / "trees.txt"
    for text, message in [
        ("(S a (X b c))\n(S a b) (S c)\n", "trees.txt, row 2: not a bracketed tree: there is more than one"),
        ("(S (-NONE- *))\n", "trees.txt, row 1: not a bracketed tree: no words"),
        ("(S my lamp)\n", "trees.txt has no tree of three words or more"),
        ("", "trees.txt has no tree of three words or more"),
    ]:
        treebank.write_text(text)
        with pytest.raises(ValueError, match=message):
            command.parse(parser, trees=treebank, device="cpu")


def test_a_picture_has_the_tree_of_the_model_and_that_of_the_corpus(tmp_path):
    subwords = Tokenizer.train_bpe(SENTENCES, 270)
    trained = diffwindow.load(save_model(tmp_path / "model", "parser", tokenizer=subwords)).members[0]
    ids = subwords.encode("my lamp fell")
    starts = [subwords.word_starts()[token] for token in ids[1:]]
    # my (lamp fell), with 0 inside of words
    heights = iter([2, 1])
    tree = [*(next(heights) if start else 0 for start in starts), 3]
    figure = draw_tree(trained, Example(ids, "my lamp fell", tree=tree))
    assert [axes.get_title("left") for axes in figure.axes] == ["Enc(AW,Tree)", "tree of the corpus"]
    assert all(
        [tick.get_text() for tick in axes.get_xticklabels()] == ["my", "lamp", "fell"] for axes in figure.axes
    )
    # a line up from each part of a phrase
    *_, corpus = figure.axes
    lines = [collection.get_segments() for collection in corpus.collections]
    my, lamp, fell = corpus.get_xticks()
    assert [line.tolist() for line in lines[0]] == [[[lamp, 0], [lamp, 1]], [[fell, 0], [fell, 1]]]
    assert [line.tolist() for line in lines[2]] == [
        [[my, 0], [my, 2]],
        [[(lamp + fell) / 2, 1], [(lamp + fell) / 2, 2]],
    ]
