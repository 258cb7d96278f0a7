import gzip
import lzma

import pytest

from diffwindow.data import parallel, readers
from diffwindow.data.lines import Audit, BadRowError, CorpusError

OPENERS = {"": open, ".gz": gzip.open, ".xz": lzma.open}


def write(path, content):
    with OPENERS[path.suffix if path.suffix in OPENERS else ""](path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return path


def rows(reader, *arguments, **options):
    return list(reader(*arguments, Audit(), **options))


def skipping(reader, *arguments, **options):
    audit = Audit(skip_bad=True)
    return list(reader(*arguments, audit, **options)), dict(audit.skipped)


@pytest.mark.parametrize("suffix", OPENERS)
def test_two_files_in_any_packing(tmp_path, suffix):
    # a Unicode line separator and a carriage return inside a line do not end it
    left = write(tmp_path / f"a.en{suffix}", "one\u2028more\r\ntwo\rx\n")
    right = write(tmp_path / f"a.de{suffix}", "eins\nzwei")
    assert rows(parallel.parallel_files, left, right) == [
        {"source": "one\u2028more", "target": "eins"},
        {"source": "two\rx", "target": "zwei"},
    ]


@pytest.mark.parametrize(("left", "right", "problem", "where"), [
    ("a\n \nc\n", "x\ny\nz\n", "empty source", r"a\.en, line 2"),
    ("a\nb\n", "x\n\n", "empty target", r"a\.de, line 2"),
    (b"a\nb\xff\n", "x\ny\n", "invalid UTF-8", r"a\.en, line 2: invalid UTF-8: byte 0xff at column 2"),
])  # fmt: skip
def test_parallel_text_is_not_lost_quietly(tmp_path, left, right, problem, where):
    files = write(tmp_path / "a.en", left), write(tmp_path / "a.de", right)
    with pytest.raises(CorpusError, match=where):
        rows(parallel.parallel_files, *files)
    kept, skipped = skipping(parallel.parallel_files, *files)
    assert set(skipped) == {problem}
    lines = max(len((s if isinstance(s, bytes) else s.encode()).splitlines()) for s in (left, right))
    assert len(kept) + skipped[problem] == lines


@pytest.mark.parametrize("skip_bad", [False, True])
def test_files_of_different_length_are_no_bad_rows(tmp_path, skip_bad):
    short, long = write(tmp_path / "short", "a\n"), write(tmp_path / "long", "x\ny\nz\n")
    for sides in ((short, long), (long, short)):
        with pytest.raises(
            CorpusError, match=r"long has a line 2, but \S+short ends after line 1; align"
        ) as e:
            list(parallel.parallel_files(*sides, Audit(skip_bad=skip_bad)))
        # `prepare` recommends --skip-bad for a BadRowError
        assert not isinstance(e.value, BadRowError)


SGM_REFERENCE = """<refset setid="newstest2014" srclang="any" trglang="de">
<doc docid="a" origlang="en">
<p>
<seg id="1">Erstens &amp; &quot;zweitens&quot;.</seg>
<seg id="2">Drittens.</seg>
</p>
</doc>
</refset>
"""


@pytest.mark.parametrize("suffix", OPENERS)
def test_segments_of_sgm_beside_lines(tmp_path, suffix):
    left = write(tmp_path / "newstest2014.en", "First & second.\nThird.\n")
    right = write(tmp_path / f"newstest2014-deen-ref.de.sgm{suffix}", SGM_REFERENCE)
    assert rows(parallel.parallel_files, left, right) == [
        {"source": "First & second.", "target": 'Erstens & "zweitens".'},
        {"source": "Third.", "target": "Drittens."},
    ]


def test_mistakes_in_sgm_name_file_and_line(tmp_path):
    left = write(tmp_path / "a.en", "one\ntwo\n")
    empty = write(tmp_path / "empty.sgm", "<refset>\n</refset>\n")
    with pytest.raises(CorpusError, match=r"empty\.sgm, line 1: an SGM file has its sentences in <seg>"):
        rows(parallel.parallel_files, left, empty)
    with pytest.raises(CorpusError, match=r"b\.sgm has a segment 3, but \S+a\.en ends after segment 2"):
        rows(parallel.parallel_files, left, write(tmp_path / "b.sgm", "<seg>x</seg>\n" * 3))
    open_ = write(tmp_path / "open.sgm", "<seg>x</seg>\n<seg>y\n")
    with pytest.raises(BadRowError, match=r"open\.sgm, line 2: a <seg> that does not close on its line"):
        rows(parallel.parallel_files, left, open_)
    kept, skipped = skipping(parallel.parallel_files, left, open_)
    assert kept == [{"source": "one", "target": "x"}]
    assert skipped == {"a <seg> that does not close on its line": 1}


def test_subwords_are_joined_and_detokenised(tmp_path):
    left = write(tmp_path / "train.tok.clean.bpe.32000.en", "the Bro@@ thers Co@@ en &apos;s film .\n")
    right = write(tmp_path / "train.tok.clean.bpe.32000.de", "der Film der Bro@@ thers .\n")
    assert rows(parallel.wmt_files, left, right, languages=("en", "de")) == [
        {"source": "the Brothers Coen's film.", "target": "der Film der Brothers."}
    ]


def test_a_subword_that_never_closes_is_named(tmp_path):
    left = write(tmp_path / "a.tok.bpe.32000.en", "good\nthe Bro@@\n")
    right = write(tmp_path / "a.tok.bpe.32000.de", "gut\nder Bruder\n")
    problem = r"a\.tok\.bpe\.32000\.en, line 2: a subword that never closes: 'Bro@@' ends the line; fix"
    with pytest.raises(BadRowError, match=problem):
        rows(parallel.wmt_files, left, right, languages=("en", "de"))
    kept, skipped = skipping(parallel.wmt_files, left, right, languages=("en", "de"))
    assert (len(kept), skipped) == (1, {"a subword that never closes": 1})


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_truncated_archive_is_an_error(tmp_path, suffix):
    import random

    rng = random.Random(0)
    whole = write(tmp_path / f"w.txt{suffix}", "".join(f"{rng.random()}\n" for _ in range(20_000)))
    cut = tmp_path / f"cut.txt{suffix}"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(CorpusError, match=r"cut\.txt.*line \d+: the archive is truncated or damaged"):
        rows(readers.text, cut, blank="keep")
    audit = Audit(skip_bad=True)
    kept = len(list(readers.text(cut, audit, blank="keep")))
    assert 0 < kept < 20_000
    assert audit.skipped == {"the archive is truncated or damaged": 1}


def test_a_text_file_named_gz_is_an_error(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(b"plain text\n")
    with pytest.raises(CorpusError, match="archive is truncated or damaged"):
        rows(readers.text, path, blank="keep")


def test_parallel_tsv(tmp_path):
    path = write(tmp_path / "a.tsv", "one\teins\ntwo\tzwei\textra\n")
    with pytest.raises(CorpusError, match=r"a\.tsv, line 2: wrong number of columns: 3 instead of 2"):
        rows(parallel.parallel_tsv, path)
    kept, skipped = skipping(parallel.parallel_tsv, path)
    assert kept == [{"source": "one", "target": "eins"}]
    assert skipped == {"wrong number of columns": 1}


TREE = "(4 (2 It) (3 (2 's) (0 (3 so) (1 bad))))"


def test_sst_sentences_and_phrases(tmp_path):
    path = write(tmp_path / "trees.txt", f"{TREE}\n(2 (2 Fine) (2 .))\n{TREE}\n")
    five = rows(readers.sst_trees, path, labels="five")
    assert five == [
        {"text": "It 's so bad", "label": 4},
        {"text": "Fine .", "label": 2},
        {"text": "It 's so bad", "label": 4},
    ]
    assert [row["label"] for row in rows(readers.sst_trees, path, labels="binary")] == [1, 1]
    phrases = {
        row["text"]: row["label"] for row in rows(readers.sst_trees, path, labels="binary", phrases=True)
    }
    assert phrases == {"It 's so bad": 1, "'s so bad": 1, "so bad": 0, "bad": 0, "so": 1}
    # distinct phrases: the repeated sentence adds none
    assert len(rows(readers.sst_trees, path, labels="five", phrases=True)) == 7 + 3


@pytest.mark.parametrize("tree", ["(7 (2 a) (2 b))", "(2 (2 a) (2 b)", "no brackets", "(2 a))", "(2)", ""])
def test_a_broken_tree_is_named(tmp_path, tree):
    path = write(tmp_path / "trees.txt", f"{TREE}\n{tree}\n")
    with pytest.raises(CorpusError, match=r"trees\.txt, line 2: not a labelled tree"):
        rows(readers.sst_trees, path, labels="five")
    kept, skipped = skipping(readers.sst_trees, path, labels="five")
    assert (len(kept), skipped) == (1, {"not a labelled tree": 1})


def test_glue(tmp_path):
    path = write(tmp_path / "train.tsv", "sentence\tlabel\nvery good \t1\nbad\t0\nodd\t2\n")
    with pytest.raises(CorpusError, match=r"line 4: unknown label: '2' is not 0 or 1"):
        rows(readers.glue, path)
    assert len(skipping(readers.glue, path)[0]) == 2
    marked = tmp_path / "marked.tsv"
    marked.write_bytes(b"\xef\xbb\xbfsentence\tlabel\nvery good \t1\n")
    assert len(rows(readers.glue, marked)) == 1
    with pytest.raises(CorpusError, match="the header lacks sentence, label; it has text, score"):
        rows(readers.glue, write(tmp_path / "other.tsv", "text\tscore\n"))


def test_imdb_folder_and_table(tmp_path):
    for label, content in {"neg": "Bad.<br />Really.", "pos": "Good."}.items():
        (tmp_path / "train" / label).mkdir(parents=True)
        write(tmp_path / "train" / label / "0_1.txt", content)
    expected = [{"text": "Bad.<br />Really.", "label": 0}, {"text": "Good.", "label": 1}]
    assert rows(readers.imdb, tmp_path / "train") == expected
    table = write(tmp_path / "train.tsv", "0\t1\t0\tBad.<br />Really.\n1\t9\t0\tGood.\n")
    assert rows(readers.imdb, table) == expected
    (tmp_path / "train" / "pos" / "0_1.txt").unlink()
    with pytest.raises(CorpusError, match=r"pos holds no \.txt review"):
        rows(readers.imdb, tmp_path / "train")


def test_a_stray_quote_loses_its_own_row_alone(tmp_path):
    rows = ['"two', 'lines",yes', "fine,no", '"open,yes', *["good,yes"] * 300, 'so "so",no', '"a, b",yes']
    path = write(tmp_path / "a.csv", "\n".join(["text,label", *rows]))
    with pytest.raises(CorpusError, match=r"a\.csv, line 5: not CSV"):
        list(readers.labelled_cells(path, Audit(), readers.ANY_COLUMNS))
    audit = Audit(skip_bad=True)
    cells = list(readers.labelled_cells(path, audit, readers.ANY_COLUMNS))
    assert cells[:2] == [(2, "two\nlines", "yes"), (4, "fine", "no")]
    assert cells[2:-2] == [(6 + number, "good", "yes") for number in range(300)]
    assert cells[-2:] == [(306, 'so "so"', "no"), (307, "a, b", "yes")]
    assert (audit.skipped, audit.first_skipped) == ({"not CSV": 1}, {"not CSV": f"{path}, line 5"})


def test_lines_of_a_csv_file_are_counted_past_bad_ones(tmp_path):
    path = write(tmp_path / "a.csv", b"text,label\n\xff,no\nfine,yes\n")
    audit = Audit(skip_bad=True)
    assert list(readers.labelled_cells(path, audit, readers.ANY_COLUMNS)) == [(3, "fine", "yes")]


def test_a_csv_row_without_one_of_its_lines_is_left_out(tmp_path):
    path = write(tmp_path / "a.csv", b'text,label\n"a fine\ncaf\xe9 not\nfilm",no\nfine,yes\n')
    audit = Audit(skip_bad=True)
    assert list(readers.labelled_cells(path, audit, readers.ANY_COLUMNS)) == [(5, "fine", "yes")]
    assert audit.skipped["not CSV"] == 1


def test_the_text_of_a_label_has_no_spaces_around_it(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\n a fine film , yes\n")
    assert list(readers.labelled_cells(path, Audit(), readers.ANY_COLUMNS)) == [(2, "a fine film", "yes")]


def test_a_cell_of_a_csv_file_may_be_as_long_as_a_line(tmp_path):
    path = write(tmp_path / "a.csv", f'text,label\n"{"long " * 40_000}",yes\n')
    ((_, text, _),) = readers.labelled_cells(path, Audit(), readers.ANY_COLUMNS)
    assert len(text) == 199_999


LINZEN_HEADER = (
    "sentence\torig_sentence\tsubj\tverb_pos\tsubj_index\tverb_index\tn_diff_intervening\tdistance\n"
)


def test_linzen_counts_the_verb_from_one(tmp_path):
    path = write(tmp_path / "agr.tsv", LINZEN_HEADER + "the keys to it are here\t-\tkeys\tVBP\t2\t5\t0\t3\n")
    assert rows(readers.linzen, path) == [
        {"text": "the keys to it", "label": 1, "attractors": 0, "distance": 3}
    ]


def test_a_verb_outside_the_sentence_is_named(tmp_path):
    path = write(tmp_path / "agr.tsv", LINZEN_HEADER + "the keys are\t-\tkeys\tVBP\t2\t9\t0\t3\n")
    with pytest.raises(CorpusError, match="line 2: verb position outside the sentence: '9' of 3 words"):
        rows(readers.linzen, path)


def test_agreement_subset(tmp_path):
    lines = ("VBZ NA train x key", "VBP 3 dev x keys", "VBP many dev x a", "VBD 0 test x a")
    subset = write(tmp_path / "all.tsv", "\n".join(lines).replace(" ", "\t"))
    assert rows(readers.agreement_subset, subset, split="train") == [
        {"text": "key", "label": 0, "attractors": -1, "distance": -1}
    ]
    with pytest.raises(CorpusError, match="line 3: attractors is not a whole number: 'many'"):
        rows(readers.agreement_subset, subset, split="dev")
    with pytest.raises(CorpusError, match="line 4: unknown label: 'VBD' is neither VBZ nor VBP"):
        rows(readers.agreement_subset, subset, split="test")


def test_text_blank_lines(tmp_path):
    path = write(tmp_path / "wiki.txt", " \n = Title = \n")
    assert [row["text"] for row in rows(readers.text, path, blank="keep")] == ["", "= Title ="]
    with pytest.raises(CorpusError, match="line 1: empty text"):
        rows(readers.text, path, blank="error")
