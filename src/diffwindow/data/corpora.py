"""Recipes of the known corpora: which files, which reader, which vocabulary.

A row of `CORPORA` is a function from the folder with the raw files to a recipe. Files are looked for under
the corpus's own folder (`multi30k/raw/train.en`) and directly in the given one, plain or compressed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from diffwindow.data.lines import Audit, CorpusError, Row, locate
from diffwindow.data.readers import agreement as sva
from diffwindow.data.readers import imdb, parallel, sst, text
from diffwindow.data.recipe import Recipe, Source, Vocabulary
from diffwindow.data.synthetic import AgreementExample, agreement, reorder
from diffwindow.data.synthetic.words import Part


def _source(reader: Callable[..., Iterator[Row]], *files: Path) -> Source:
    return Source(lambda audit: reader(*files, audit), files)


def _shared_out(source: Source, field: str, shares: dict[str, range]) -> dict[str, Source]:
    """Divide one source by the hash of a field."""
    return {split: source.share(field, buckets) for split, buckets in shares.items()}


def two_files(source: Path, target: Path) -> Source:
    """Read two line-aligned files."""
    return _source(parallel.two_files, source, target)


def tsv_pairs(path: Path) -> Source:
    """Read `source<TAB>target` lines."""
    return _source(parallel.tsv, path)


def plain_text(*paths: Path) -> Source:
    """Read running text; blank lines are kept."""
    return _lines(paths, "keep")


def _lines(paths: tuple[Path, ...], blank: text.Blank) -> Source:
    return Source(lambda audit: text.lines(paths, audit, blank=blank), tuple(paths))


def _multi30k(root: Path, *, target: str) -> Recipe:
    names = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    later = {"test2017": "test_2017_flickr", "mscoco": "test_2017_mscoco"}

    def side(name: str, language: str) -> Path:
        return locate(root, f"multi30k/raw/{name}.{language}", f"raw/{name}.{language}", f"{name}.{language}")

    splits = {split: two_files(side(name, "en"), side(name, target)) for split, name in names.items()}
    for split, name in later.items():
        # the later test sets are not in every copy
        with suppress(CorpusError):
            splits[split] = two_files(side(name, "en"), side(name, target))
    return Recipe(f"multi30k-en-{target}", "translation", splits, Vocabulary("bpe", 8_192))


def _wmt14(root: Path, *, target: str, size: int) -> Recipe:
    names = {"train": "train", "valid": "newstest2013", "test": "newstest2014"}

    def side(name: str, language: str) -> Path:
        return locate(root, f"wmt14-en-{target}/{name}.{language}", f"{name}.{language}")

    splits = {split: two_files(side(name, "en"), side(name, target)) for split, name in names.items()}
    return Recipe(f"wmt14-en-{target}", "translation", splits, Vocabulary("bpe", size))


def _tatoeba(root: Path, *, target: str) -> Recipe:
    source = tsv_pairs(locate(root, f"tatoeba/tatoeba_en-{target}.tsv", f"tatoeba_en-{target}.tsv"))
    # by the English sentence: its several translations stay together
    shares = {"train": range(20, 1000), "valid": range(10), "test": range(10, 20)}
    return Recipe(
        f"tatoeba-en-{target}", "translation", _shared_out(source, "source", shares), Vocabulary("bpe", 8_192)
    )


def _sst(root: Path, *, name: str, labels: sst.Labels, phrases: bool = True) -> Recipe:
    def tree(split: str, *, phrases: bool) -> Source:
        path = locate(
            root, f"sst/trees_{split}.ptb.txt", f"trees/{split}.txt", f"trees_{split}.ptb.txt", f"{split}.txt"
        )
        return _source(partial(sst.trees, labels=labels, phrases=phrases), path)

    splits = {"train": tree("train", phrases=phrases), "valid": tree("dev", phrases=False)}
    splits["test"] = tree("test", phrases=False)
    return Recipe(name, "classification", splits, Vocabulary("bpe", 8_192))


def _sst2_glue(root: Path) -> Recipe:
    splits = {
        split: _source(sst.glue, locate(root, f"SST-2/{name}.tsv", f"sst2-glue/{name}.tsv", f"{name}.tsv"))
        for split, name in {"train": "train", "valid": "dev"}.items()
    }
    return Recipe("sst2-glue", "classification", splits, Vocabulary("bpe", 8_192))


def _imdb(root: Path) -> Recipe:
    def side(split: str) -> Source:
        names = (f"imdb/imdb_{split}.tsv", f"imdb_{split}.tsv", f"aclImdb/{split}", f"imdb/{split}", split)
        return _source(imdb.reviews, locate(root, *names))

    # there is no official validation split: a tenth of the training reviews
    shares = {"train": range(100, 1000), "valid": range(100)}
    splits = _shared_out(side("train"), "text", shares) | {"test": side("test")}
    return Recipe("imdb", "classification", splits, Vocabulary("bpe", 8_192))


def _sva(root: Path) -> Recipe:
    path = locate(root, "sva/linzen_subset_all.tsv", "linzen_subset_all.tsv")
    splits = {
        split: _source(partial(sva.subset, split=name), path)
        for split, name in {"train": "train", "valid": "dev", "test": "test"}.items()
    }
    return Recipe("sva", "classification", splits, Vocabulary("words", None))


def _sva_linzen(root: Path) -> Recipe:
    name = "agr_50_mostcommon_10K.tsv"
    source = _source(sva.linzen, locate(root, f"sva/{name}", name))
    # the shares of Linzen et al.: 9 % training, 1 % validation, 90 % test
    shares = {"train": range(90), "valid": range(90, 100), "test": range(100, 1000)}
    return Recipe(
        "sva-linzen", "classification", _shared_out(source, "text", shares), Vocabulary("words", None)
    )


def _wikitext(root: Path, *, number: int) -> Recipe:
    def side(split: str) -> Source:
        name = f"wiki.{split}.tokens"
        return plain_text(locate(root, f"wikitext{number}/{name}", f"wikitext-{number}/{name}", name))

    splits = {"train": side("train"), "valid": side("valid"), "test": side("test")}
    return Recipe(f"wikitext{number}", "lm", splits, Vocabulary("words", None))


def _lm1b(root: Path) -> Recipe:
    def shards(pattern: str) -> tuple[Path, ...]:
        found = sorted(path for path in root.rglob(pattern) if path.is_file())
        if not found:
            raise CorpusError(
                f"{root} holds no {pattern} shard of the 1B-word benchmark; see `diffwindow data get lm1b`"
            )
        return tuple(found)

    heldout = shards("news.en.heldout-000*")
    # the paper's test set is held-out shard 0; the others validate
    splits = {"train": shards("news.en-000*"), "valid": heldout[1:2] or heldout, "test": heldout[:1]}
    sources = {split: _lines(paths, "error") for split, paths in splits.items()}
    return Recipe("lm1b", "lm", sources, Vocabulary("words", 32_768))


def _lm1b_heldout(root: Path) -> Recipe:
    name = "1b_benchmark.dev.tokens"
    source = _lines((locate(root, f"lm1b_heldout/{name}", name),), "error")
    shares = {"train": range(200, 1000), "valid": range(100), "test": range(100, 200)}
    return Recipe("lm1b-heldout", "lm", _shared_out(source, "text", shares), Vocabulary("words", 32_768))


def _agreement_row(example: AgreementExample) -> Row:
    return {
        "text": example.text,
        "label": example.label,
        "attractors": example.attractors,
        "distance": example.distance,
        "subject_start": example.subject_start,
        "subject_head": example.subject_head,
        "verb_position": example.verb_position,
    }


def agreement_recipe(seed: int = 0, *, rows: int = 20_000) -> Recipe:
    """Give the generated agreement corpus: `rows` for training, a tenth each for validation and test."""

    def generated(part: Part, size: int) -> Source:
        return Source(lambda _: map(_agreement_row, agreement(size, seed, part=part)), rows=size)

    splits: dict[str, Source] = {part: generated(part, size) for part, size in _sizes(rows)}
    variant = {"seed": seed, "rows": rows}
    return Recipe("agreement", "classification", splits, Vocabulary("words", None), variant=variant)


def reorder_recipe(seed: int = 0, *, rows: int = 20_000) -> Recipe:
    """Give the generated translation corpus: `rows` for training, a tenth each for validation and test."""

    def generated(part: Part, size: int) -> Source:
        def read(_: Audit) -> Iterator[Row]:
            return ({"source": e.source, "target": e.target} for e in reorder(size, seed, part=part))

        return Source(read, rows=size)

    splits: dict[str, Source] = {part: generated(part, size) for part, size in _sizes(rows)}
    variant = {"seed": seed, "rows": rows}
    return Recipe("reorder", "translation", splits, Vocabulary("words", None), variant=variant)


def _sizes(rows: int) -> list[tuple[Part, int]]:
    return [("train", rows), ("valid", max(1, rows // 10)), ("test", max(1, rows // 10))]


CORPORA: dict[str, Callable[[Path], Recipe]] = {
    "multi30k-en-de": partial(_multi30k, target="de"),
    "multi30k-en-fr": partial(_multi30k, target="fr"),
    "wmt14-en-de": partial(_wmt14, target="de", size=32_768),
    "wmt14-en-fr": partial(_wmt14, target="fr", size=40_000),
    "tatoeba-en-de": partial(_tatoeba, target="de"),
    "tatoeba-en-fr": partial(_tatoeba, target="fr"),
    "sst2": partial(_sst, name="sst2", labels="binary"),
    "sst2-sentences": partial(_sst, name="sst2-sentences", labels="binary", phrases=False),
    "sst5": partial(_sst, name="sst5", labels="five"),
    "sst2-glue": _sst2_glue,
    "imdb": _imdb,
    "sva": _sva,
    "sva-linzen": _sva_linzen,
    "wikitext2": partial(_wikitext, number=2),
    "wikitext103": partial(_wikitext, number=103),
    "lm1b": _lm1b,
    "lm1b-heldout": _lm1b_heldout,
}
GENERATED: dict[str, Callable[..., Recipe]] = {"agreement": agreement_recipe, "reorder": reorder_recipe}


def generated(name: str, *, seed: int = 0, rows: int | None = None) -> Recipe | None:
    """Give the recipe of a generated corpus, or None when `name` is made from files."""
    if name not in GENERATED:
        return None
    return GENERATED[name](seed) if rows is None else GENERATED[name](seed, rows=rows)


def recipe_of(name: str, root: Path | None) -> Recipe:
    """Give the recipe of a known corpus, generated or read from `root`."""
    if made := generated(name):
        return made
    if name not in CORPORA:
        near = get_close_matches(name, [*CORPORA, *GENERATED], n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join([*GENERATED, *CORPORA])}"
        raise CorpusError(f"no corpus is called {name!r}; {hint}")
    if root is None:
        raise CorpusError(
            f"{name} is made from files: say where they are with --data DIR or $DIFFWINDOW_DATA"
        )
    if not root.is_dir():
        raise CorpusError(f"--data {root} is not a folder")
    return CORPORA[name](root)
