"""Read parallel text: two aligned files, plain, SGM or with subwords, or one of tab-separated pairs."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from diffwindow.data.lines import (
    Audit,
    CorpusError,
    Row,
    decode_line,
    name_ending,
    raw_lines,
    table_rows,
    text_lines,
)
from diffwindow.data.tokenizer import moses_detokenizer

SGM = ".sgm"
_OPENING = re.compile(r"<seg\b", re.IGNORECASE)
_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.IGNORECASE)


def parallel_files(source: Path, target: Path, audit: Audit) -> Iterator[Row]:
    """Yield {source, target} of two aligned files: one sentence per line, or per segment of an SGM file."""
    for left, right in _aligned(source, target, audit):
        if left.text is not None and right.text is not None:
            yield from _pair(left.text, right.text, (source, target), (left.line, right.line), audit)


class _Sentence(NamedTuple):
    """A sentence and its line; the text is None if it cannot be read."""

    line: int
    text: str | None


def _aligned(source: Path, target: Path, audit: Audit) -> Iterator[tuple[_Sentence, _Sentence]]:
    """Yield the sentences of two files together; raise if one has more."""
    pairs = zip_longest(_sentences(source, audit), _sentences(target, audit))
    for number, (left, right) in enumerate(pairs, 1):
        if left is None or right is None:
            shorter, longer = (source, target) if left is None else (target, source)
            what = "segment" if name_ending(longer) == SGM else "line"
            # never a bad row: one is missing somewhere before, so that pairs do not match
            raise CorpusError(
                f"{longer} has a {what} {number}, but {shorter} ends after {what} {number - 1}; "
                "align the files"
            )
        yield left, right


def _sentences(path: Path, audit: Audit) -> Iterator[_Sentence]:
    """Yield the sentences of a file, also those that cannot be read."""
    if name_ending(path) == SGM:
        return _segments(path, audit)
    lines = enumerate(raw_lines(path, audit), 1)
    return (_Sentence(number, decode_line(raw, path, number, audit)) for number, raw in lines)


def _segments(path: Path, audit: Audit) -> Iterator[_Sentence]:
    """Yield the segments of an SGM file, as WMT publishes test sets; entities are decoded."""
    found = False
    for number, line in text_lines(path, audit):
        segments = _SEGMENT.findall(line)
        found = found or bool(segments)
        if len(segments) != len(_OPENING.findall(line)):
            audit.bad(path, number, "a <seg> that does not close on its line")
            # keeps its place beside the other side
            segments = [None]
        for text in segments:
            yield _Sentence(number, None if text is None else html.unescape(text).strip())
    if not found:
        raise CorpusError(f"{path}, line 1: an SGM file has its sentences in <seg>, and there is none")


def tokenized_files(source: Path, target: Path, audit: Audit, *, languages: tuple[str, str]) -> Iterator[Row]:
    """Yield {source, target} of two aligned files that Moses tokenised, as plain text.

    In a file with `.bpe.` in its name, subwords that end in @@ are joined with the next first.
    """
    plain_source, plain_target = map(moses_detokenizer, languages)
    for row in _joined_files(source, target, audit):
        yield {"source": plain_source(str(row["source"])), "target": plain_target(str(row["target"]))}


def _joined_files(source: Path, target: Path, audit: Audit) -> Iterator[Row]:
    """Yield {source, target} of two aligned files without the @@ of subwords."""
    for left, right in _aligned(source, target, audit):
        texts = [
            join_subwords(one.text, path, one.line, audit) if ".bpe." in path.name else one.text
            for one, path in ((left, source), (right, target))
            if one.text is not None
        ]
        first, second = texts if len(texts) == 2 else (None, None)
        if first is not None and second is not None:
            yield from _pair(first, second, (source, target), (left.line, right.line), audit)


def join_subwords(text: str, path: Path, number: int, audit: Audit) -> str | None:
    """Join the subwords of a line; None if its last one has no next and bad rows are skipped.

    >>> join_subwords("the Bro@@ thers Co@@ en", Path("a.bpe.en"), 1, Audit())
    'the Brothers Coen'
    """
    if text.rstrip().endswith("@@"):
        audit.bad(path, number, "a subword that never closes", f"{text.split()[-1]!r} ends the line")
        return None
    return text.replace("@@ ", "")


def wmt_files(source: Path, target: Path, audit: Audit, *, languages: tuple[str, str]) -> Iterator[Row]:
    """Yield {source, target} of files of WMT: plain, SGM, or with `.tok.` in the name tokenised by Moses."""
    tokenized = [".tok." in path.name for path in (source, target)]
    if all(tokenized):
        return tokenized_files(source, target, audit, languages=languages)
    return parallel_files(source, target, audit)


def parallel_tsv(path: Path, audit: Audit) -> Iterator[Row]:
    """Yield {source, target} of `source<TAB>target` lines."""
    for number, (source, target) in table_rows(path, audit, columns=2):
        yield from _pair(source, target, (path, path), (number, number), audit)


def _pair(
    source: str, target: str, paths: tuple[Path, Path], lines: tuple[int, int], audit: Audit
) -> Iterator[Row]:
    if not source.strip():
        audit.bad(paths[0], lines[0], "empty source")
    elif not target.strip():
        audit.bad(paths[1], lines[1], "empty target")
    else:
        yield {"source": source, "target": target}
