"""Distances of trees, the files they are read from, and phrases in a store."""

import numpy as np
import pytest

from diffwindow.data.encoding import Encoder
from diffwindow.data.lines import Audit, BadRowError, CorpusError
from diffwindow.data.own_files import labelled_recipe
from diffwindow.data.prepare import prepare
from diffwindow.data.store import Sequences
from diffwindow.data.synthetic import agreement
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.data.trees import (
    baseline_trees,
    distances_of,
    phrase_ends,
    phrases_of,
    read_trees,
    tree_f1,
    tree_of,
    without_punctuation,
)


@pytest.mark.parametrize(
    ("tree", "words", "distances"),
    [
        ("(3 (2 It) (4 (2 's) (4 good)))", "It 's good", [2, 1, 3]),
        ("( (S (NP-SBJ (-NONE- *)) (VP (VB go) (NP (NN home)))) )", "go home", [1, 2]),
        ("(S (NP a b c) (VP d))", "a b c d", [1, 1, 2, 3]),
        ("(NN one)", "one", [1]),
    ],
)
def test_distance_is_the_height_of_the_smallest_common_phrase(tree, words, distances):
    assert distances_of(tree) == (words.split(), distances)


@pytest.mark.parametrize("tree", ["(S (NP a)", "(S a))", "a", "(S (-NONE- *))", "(S a) (S b)", ""])
def test_what_is_no_tree_is_refused(tree):
    with pytest.raises(ValueError, match=r"brackets|words|tree"):
        distances_of(tree)


def test_trees_on_several_lines_and_chunk_columns_are_read(tmp_path):
    trees = tmp_path / "wsj.mrg"
    trees.write_text("\n( (S (NP a)\n   (VP b (NP c d))) )\n(S e)\n")
    assert [distances_of(str(row["text"]))[1] for row in read_trees(trees, Audit())] == [[3, 2, 1, 4], [1]]
    chunks = tmp_path / "chunks.txt"
    chunks.write_text("He PRP B-NP\nsaw VBD B-VP\nthe DT B-NP\ndog NN I-NP\n( ( O\n\n. . O\n")
    rows = [distances_of(str(row["text"])) for row in read_trees(chunks, Audit())]
    assert rows == [(["He", "saw", "the", "dog", "-LRB-"], [2, 2, 1, 2, 3]), (["."], [1])]
    chunks.write_text("He PRP B-NP\nsaw\n")
    with pytest.raises(BadRowError, match=r"chunks.txt, line 2: not a word, a tag and a chunk"):
        list(read_trees(chunks, Audit()))


def test_the_grammar_knows_the_tree_of_its_text():
    for example in agreement(50, seed=1):
        words, distances = distances_of(example.tree)
        assert " ".join(words) == example.text
        # the subject is whole only in the sentence
        if example.subject_start:
            assert distances[example.subject_start - 1] == max(distances[:-1])


def test_a_store_has_the_distances_of_its_tokens(tmp_path):
    split = prepare("agreement-trees", tmp_path / "store").split("valid")
    for row, example in zip(range(20), agreement(20, part="valid"), strict=True):
        *_, top = distances = distances_of(example.tree)[1]
        assert split[row]["phrases"].tolist() == [*distances, top]


def test_placebos_keep_words_whole_and_the_lengths_of_phrases():
    # four texts of words of one or two tokens, the last of which ends the text
    rows = [[1, 0, 2, 1, 3, 3], [0, 1, 2, 1, 4, 4], [2, 0, 1, 2, 3, 3], [5, 5]]
    offsets = np.cumsum([0, *map(len, rows)])
    distances = Sequences(np.concatenate(rows), offsets)
    gold = phrase_ends(distances, 1)
    assert gold[0].tolist() == [0, 0, 1, 0, 1, 1]
    for placebo in ("shuffled", "random"):
        other = phrase_ends(distances, 1, placebo)
        assert not other.tokens[distances.tokens == 0].any()
        assert all(other[row][-2:].tolist() == [1, 1] for row in range(3))
    assert [phrase_ends(distances, 1, "random")[row].sum() for row in range(4)] == [
        gold[row].sum() for row in range(4)
    ]


def test_a_row_that_is_no_tree_is_named(tmp_path):
    path = tmp_path / "texts.tsv"
    path.write_text("text\tlabel\n(S (NP a) b)\tx\n(S (NP a) b))\ty\n")
    with pytest.raises(BadRowError, match=r"texts.tsv, row 2: not a bracketed tree: '\)' is outside"):
        prepare(labelled_recipe({"train": path}).read_phrases(), tmp_path / "store")


def test_a_tree_that_does_not_match_its_text_is_named():
    encoder = Encoder(Tokenizer.train_words(["my lamp fell"]))
    with pytest.raises(
        CorpusError, match="a tree of 2 words does not match its text, which has 3: 'my lamp fell"
    ):
        encoder.encode_phrases(["my lamp fell"], ["1 2"])


def test_trees_are_split_at_their_largest_distances():
    generator = np.random.default_rng(0)
    for gaps in range(1, 12):
        words = [f"w{index}" for index in range(gaps + 1)]
        for distances in baseline_trees(gaps, generator).values():
            tree = tree_of(words, distances).replace("(", "(S ")
            same, heights = distances_of(tree)
            assert same == words
            assert phrases_of(heights[:-1]) == phrases_of(distances)
            assert tree_f1(heights[:-1], distances) == 1.0


def test_a_tree_may_be_deep_and_have_words_with_brackets():
    words = ["(sic)", *map(str, range(1500))]
    tree = tree_of(words, range(1500, 0, -1))
    assert tree.startswith("(-LRB-sic-RRB- (0 (1 ")
    assert tree.endswith("1499" + ")" * 1500)


def test_f1_of_trees_by_hand():
    words, heights = distances_of("(S (NP -LRB- the man -RRB-) (VP saw (NP 5 %)) .)")
    gold = without_punctuation(words, heights[:-1])
    # (the man) (saw (5 %))
    assert sorted(phrases_of(gold)) == [(0, 1), (0, 4), (2, 4), (3, 4)]
    trees = baseline_trees(4, np.random.default_rng(0))
    # the (man (saw (5 %))): two of three
    assert tree_f1(gold, trees["right-branching"]) == pytest.approx(2 / 3)
    # (((the man) saw) 5) %: one of three
    assert tree_f1(gold, trees["left-branching"]) == pytest.approx(1 / 3)
