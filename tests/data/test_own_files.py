"""Files of one's own: labelled text in three formats, languages, and a vocabulary that suits the corpus."""

import gzip
import json
import lzma

import pytest

from diffwindow.data import lines
from diffwindow.data.lines import Audit, CorpusError
from diffwindow.data.own_files import labelled_recipe, tsv_pairs
from diffwindow.data.prepare import prepare
from diffwindow.data.readers import Columns
from diffwindow.data.recipe import Recipe
from diffwindow.data.store import Store

ROWS = [
    ('it "was" bad', "not so good"),
    ("good, really", "très bon"),
    ("so so", "很好"),
    ("bad", "not so good"),
]
LABELS = ("not so good", "très bon", "很好")


def tsv(rows, header=None):
    return "".join("\t".join(row) + "\n" for row in ([header] if header else []) + rows)


def csv(rows):
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows]
    return "text,label\n" + "\n".join(quoted) + "\n"


def jsonl(rows):
    return "".join(json.dumps({"label": label, "text": text, "id": 1}) + "\n" for text, label in rows)


def rows_of(recipe, split="train"):
    return [(row["text"], recipe.labels[row["label"]]) for row in recipe.splits[split].read(Audit())]


def write(path, content):
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "content"), [
    ("a.tsv", tsv(ROWS)),
    ("a.tsv", tsv(ROWS, ("text", "label"))),
    ("a.txt", tsv(ROWS, ("Sentence", "Label"))),
    ("a.csv", csv(ROWS)),
    ("a.jsonl", jsonl(ROWS)),
])  # fmt: skip
def test_labels_with_spaces_and_unicode_in_every_format(tmp_path, name, content):
    recipe = labelled_recipe({"train": write(tmp_path / name, content)})
    assert recipe.labels == LABELS
    assert rows_of(recipe) == ROWS
    store = prepare(recipe, tmp_path / "store")
    assert Store.open(store.folder).labels == LABELS
    assert [LABELS[row["label"]] for row in store.split("train")] == [label for _, label in ROWS]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_blank_lines_marks_and_line_ends_of_other_systems_do_not_matter(tmp_path, name):
    content = {"a.tsv": tsv(ROWS, ("text", "label")), "a.csv": csv(ROWS), "a.jsonl": jsonl(ROWS)}[name]
    lines = content.splitlines()
    text = "\ufeff" + "\r\n".join(["", lines[0], "  ", *lines[1:], "", ""])
    (tmp_path / name).write_bytes(text.encode())
    assert rows_of(labelled_recipe({"train": tmp_path / name})) == ROWS


@pytest.mark.parametrize(("content", "problem"), [
    ("text\tlabel\n".encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
    (b"PAR1\x15\x04\x15", "is a Parquet file; write its rows as JSON lines, CSV or TSV"),
    (b"ARROW1\0\0\xff", "is an Arrow file"),
    (b"text\tlabel\rfine\tyes\rbad\tno\r", "ends its lines with carriage returns alone"),
    (b"text\tlabel\rfine\tyes\rbad\tno\n", "ends its lines with carriage returns alone"),
    (b"PK\x03\x04\x14", "is a zip archive or a spreadsheet"),
    (gzip.compress(b"fine\tyes\n"), "is compressed; give it a name that ends in .gz"),
    (lzma.compress(b"fine\tyes\n"), "is compressed; give it a name that ends in .xz"),
], ids=["utf-16", "parquet", "arrow", "carriage returns", "and a newline", "zip", "gzip", "xz"])  # fmt: skip
@pytest.mark.parametrize("skip_bad", [False, True])
def test_files_that_are_no_text_are_named(tmp_path, content, problem, skip_bad):
    (tmp_path / "a.tsv").write_bytes(content)
    with pytest.raises(CorpusError, match=rf"a\.tsv {problem}"):
        labelled_recipe({"train": tmp_path / "a.tsv"}, skip_bad=skip_bad)


def test_columns_by_name_and_by_number(tmp_path):
    swapped = [(label, "7", text) for text, label in ROWS]
    named = write(tmp_path / "named.tsv", tsv(swapped, ("class", "id", "review")))
    assert rows_of(labelled_recipe({"train": named}, Columns("review", "class"))) == ROWS
    bare = write(tmp_path / "bare.tsv", tsv(swapped))
    assert rows_of(labelled_recipe({"train": bare}, Columns("3", "1"))) == ROWS
    with pytest.raises(CorpusError, match="there is no column 'text' or 'label', but class, id, review"):
        labelled_recipe({"train": named})


def test_a_number_is_not_looked_for_in_the_first_row(tmp_path):
    rows = [("3", "1", "1"), ("bad", "2", "3"), ("worse", "2", "3")]
    path = write(tmp_path / "a.tsv", tsv(rows))
    assert rows_of(labelled_recipe({"train": path}, Columns("1", "3"))) == [(a, c) for a, _, c in rows]


def test_numbers_of_columns_are_refused_where_a_header_names_them(tmp_path):
    path = write(tmp_path / "a.tsv", tsv([("a", "x", "1"), ("b", "y", "2")], ("Text", "label", "label")))
    for columns in (Columns("1", "3"), Columns("2", "3")):
        with pytest.raises(CorpusError, match=r"line 1: Text, label, label looks like a header, but"):
            labelled_recipe({"train": path}, columns)


def test_an_unknown_header_is_not_taken_for_a_row(tmp_path):
    path = write(tmp_path / "a.tsv", tsv([("a", "yes"), ("b", "no")] * 2, ("review", "verdict")))
    with pytest.raises(CorpusError, match="line 1: the label 'verdict' occurs nowhere else; if this is a"):
        labelled_recipe({"train": path})
    assert labelled_recipe({"train": path}, Columns("review", "verdict")).labels == ("no", "yes")
    assert labelled_recipe({"train": path}, Columns("1", "2")).labels == ("no", "verdict", "yes")


@pytest.mark.parametrize("above", ["", "\n \n"])
def test_a_header_is_noticed_below_blank_lines_and_beside_rare_labels(tmp_path, above):
    rows = [("a", "book"), ("b", "cancel"), ("c", "book")]
    content = above + tsv(rows, ("utterance", "intent"))
    for name in ("a.tsv", "a.csv"):
        path = write(tmp_path / name, content if name == "a.tsv" else content.replace("\t", ","))
        line = 1 + above.count("\n")
        with pytest.raises(CorpusError, match=rf"line {line}: the label 'intent' occurs nowhere else"):
            labelled_recipe({"train": path})


def test_a_rare_label_is_no_header_where_there_is_one_or_can_be_none(tmp_path):
    rows = [("a", "rare"), ("b", "yes"), ("c", "no"), ("d", "no")]
    for name, content in (("a.tsv", "\n" + tsv(rows, ("text", "label"))), ("a.jsonl", jsonl(rows))):
        recipe = labelled_recipe({"train": write(tmp_path / name, content)})
        assert recipe.labels == ("no", "rare", "yes")


def test_a_quoted_line_break_stays_in_its_text(tmp_path):
    path = write(tmp_path / "a.csv", 'text,label\n"two\nlines",yes\none,no\n')
    assert rows_of(labelled_recipe({"train": path})) == [("two\nlines", "yes"), ("one", "no")]


def test_two_hundred_classes_keep_their_names_and_order(tmp_path):
    rows = [(f"text {n}", f"class number {n}") for n in range(200)] * 2
    store = prepare(labelled_recipe({"train": write(tmp_path / "a.tsv", tsv(rows))}), tmp_path / "store")
    assert len(store.labels) == 200
    assert [store.labels[row["label"]] for row in store.split("train")] == [label for _, label in rows]


def test_numerals_are_ordered_by_value(tmp_path):
    path = write(tmp_path / "a.tsv", tsv([("a", "10"), ("b", "9"), ("c", "0"), ("d", "10")]))
    assert labelled_recipe({"train": path}).labels == ("0", "9", "10")


@pytest.mark.parametrize(("name", "content", "sentence"), [
    ("a.tsv", "", "a.tsv has no labelled text; a classifier needs at least two labels"),
    ("a.csv", "id,label,body\n1,a,b\n", "a.csv, line 1: there is no column 'text', but id, label, body"),
    ("a.csv", "text,label\n", "a.csv has no labelled text"),
    ("a.tsv", "fine\tyes\nbad\t\n", "a.tsv, line 2: missing label; fix the file"),
    ("a.tsv", "fine\tyes\nbad\n", "a.tsv, line 2: wrong number of columns: 1 instead of 2"),
    ("a.tsv", "fine\tyes\n \tno\n", "a.tsv, line 2: empty text"),
    ("a.tsv", "fine\tyes\nbad\tyes\n", "has only the label 'yes'"),
    ("a.tsv", "yes\t" + "long " * 50 + "\nno\tb\n", "the label 'long long"),
    ("a.csv", 'text,label\n"open,yes\n', "a.csv, line 2: not CSV"),
    ("a.csv", "text;label\nfine;yes\n", "line 1: a .csv file separates columns by commas"),
    ("a.jsonl", '{"text": "a", "label": "x"}\nnot json\n', "a.jsonl, line 2: not JSON"),
    ("a.jsonl", '{"text": "a"}\n', "a.jsonl, line 1: missing label"),
    ("a.jsonl", '{"body": "a", "label": 1}\n', "a.jsonl, line 1: missing text: it has body, label"),
    ("a.jsonl", '{"text": "a", "label": [1]}\n', "the label is not a text or a whole number"),
    ("a.jsonl", '{"text": "a", "text": "b", "label": 1}\n', "not JSON: the key 'text' occurs twice"),
    ("a.jsonl", '{"text": "a", "sentence": "b", "label": 1}\n', "the columns 'text' and 'sentence' could"),
    ("a.csv", "text,label,text\na,b,c\n", "line 1: the columns 'text' and 'text' could each be the text"),
    ("a.tsv", "Text\tLabel\tlabel\na\tb\tc\n", "'Label' and 'label' could each be the label"),
    ("a.jsonl", "[1]\n", "a.jsonl, line 1: not a JSON object"),
    (
        "a.jsonl",
        '{"text": "a \\ud83d", "label": 1}\n',
        r"a.jsonl, line 1: half of a character: the escape '\ud83d' has no partner; fix the file",
    ),
])  # fmt: skip
def test_mistakes_are_one_sentence(tmp_path, name, content, sentence):
    with pytest.raises(CorpusError) as error:
        labelled_recipe({"train": write(tmp_path / name, content)})
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_mistake_leaves_no_file_open(tmp_path, monkeypatch):
    files = []
    monkeypatch.setattr(lines, "opened", lambda path: files.append(path.open("rb")) or files[-1])
    # the error keeps the readers, and with them what they read
    with pytest.raises(CorpusError, match="line 2: missing label") as _error:
        labelled_recipe({"train": write(tmp_path / "a.tsv", "fine\tyes\nbad\t\n")})
    assert [file.closed for file in files] == [True]


def test_a_label_unseen_in_training_is_named_or_skipped(tmp_path):
    files = {
        "train": write(tmp_path / "a.tsv", "fine\tyes\nbad\tno\n"),
        "valid": write(tmp_path / "v.tsv", "fine\tyes\nodd\tmaybe\n"),
    }
    with pytest.raises(
        CorpusError, match=r"v\.tsv, line 2: a label that does not occur in training: 'maybe'"
    ):
        prepare(labelled_recipe(files), tmp_path / "store")
    kept = prepare(labelled_recipe(files), tmp_path / "kept", skip_bad=True)
    assert len(kept.split("valid")) == 1


@pytest.fixture
def pairs(tmp_path):
    return Recipe(
        "pairs", "translation", {"train": tsv_pairs(write(tmp_path / "p.tsv", "the cat\tle chat\n"))}
    )


def test_languages_are_recorded_and_used_by_moses(pairs, tmp_path):
    known = pairs.adjust(languages={"source": "en", "target": "fr"}, moses="auto")
    store = prepare(known, tmp_path / "store")
    assert store.languages == {"source": "en", "target": "fr"}
    assert store.manifest.settings.moses == store.languages
    assert prepare(pairs, tmp_path / "unknown").languages == {}
    # what Moses is told is known too
    assert pairs.adjust(moses="en,fr").languages == {"source": "en", "target": "fr"}


def test_unknown_and_misspelled_languages_are_named(pairs):
    with pytest.raises(ValueError, match="moses=auto needs the language of target, which is unknown"):
        pairs.adjust(languages={"source": "en"}, moses="auto")
    with pytest.raises(ValueError, match="the language 'French' of the target is not a code such as"):
        pairs.adjust(languages={"target": "French"})


def test_a_small_corpus_gets_a_small_vocabulary(pairs, tmp_path):
    store = prepare(pairs, tmp_path / "store")
    assert store.manifest.settings.vocabulary.size == 1024
    assert prepare(pairs.adjust(vocab_size=300), tmp_path / "other").tokenizer.vocab_size <= 300


@pytest.mark.parametrize("normalization", ["nfc", "none"])
def test_two_spellings_of_a_label_are_one_class(tmp_path, normalization):
    rows = [
        ("a", "caf\N{LATIN SMALL LETTER E WITH ACUTE}"),
        ("b", "cafe\N{COMBINING ACUTE ACCENT}"),
        ("c", "tea"),
    ]
    path = write(tmp_path / "a.tsv", tsv(rows, ("text", "label")))
    recipe = labelled_recipe({"train": path}).adjust(normalization=normalization)
    store = prepare(recipe, tmp_path / "store")
    assert store.labels == (rows[0][1], "tea")
    assert [row["label"] for row in store.split("train")] == [0, 0, 1]
    assert store.manifest.settings.normalization == store.tokenizer.normalization == normalization
