"""The known corpora, one entry each: files, reader, vocabulary, languages, facts, training preset.

A preset is what the corpus changes in the preset of its task. It is plain data: this module knows no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from diffwindow.data import parallel, readers
from diffwindow.data.lines import CorpusError, NoFolderError, Row
from diffwindow.data.recipe import Corpus, Files, Hub, Recipe, Settings, Vocabulary
from diffwindow.data.synthetic import Part, agreement, reorder
from diffwindow.messages import did_you_mean

GENERATED_ROWS = 20_000


def one_line(text: str) -> str:
    """Put a text on one line of a tab-separated file."""
    return " ".join(text.replace("\t", " ").splitlines())


def _parallel(
    names: dict[str, str],
    *folders: str,
    optional: tuple[str, ...] = (),
    reader: Callable[..., Iterator[Row]] = parallel.parallel_files,
) -> dict[str, Files]:
    """Return the splits of two files `name.language` each, in one of the folders."""
    return {
        split: Files(
            reader,
            tuple(f"{folder}{name}.{{side}}" for folder in (*folders, "")),
            optional=split in optional,
        )
        for split, name in names.items()
    }


def _divide(
    reader: Callable[..., Iterator[Row]], names: tuple[str, ...], **shares: range
) -> dict[str, Files]:
    """Return splits that divide one file by the hash of a text."""
    return {split: Files(reader, names, share) for split, share in shares.items()}


_RUNNING_TEXT = partial(readers.text, blank="keep")
_SENTENCES = partial(readers.text, blank="error")
_RESEARCH = "no licence stated; for research"
_POLARITY = ("negative", "positive")
_FIVE_GRADES = ("very negative", "negative", "neutral", "positive", "very positive")
_BPE_8K = Vocabulary("bpe", 8_192)
_OFFICIAL = {"train": "train", "valid": "validation", "test": "test"}


# a thousandth of the training pairs, by the hash of the English sentence
_VALID, _TRAIN = range(1), range(1, 1000)
# how the files of WMT end in the preprocessed release: tokenised, cut into subwords
_TRAIN_SUBWORDS, _SUBWORDS = "tok.clean.bpe.32000", "tok.bpe.32000"


def _wmt(year: int, target: str, size: str, vocab_size: int, train: Settings) -> Corpus:
    """Return a corpus of WMT, whose files lie as they were downloaded.

    One file per side, the preprocessed release of WMT'16, or several raw files (Europarl, Common Crawl, News
    Commentary); test sets also as SGM.
    """
    name = f"wmt{year}-en-{target}"

    def files(name_of_set: str, subwords: str, raw: str) -> Files:
        names = [f"{name_of_set}.{{side}}", f"{name_of_set}.{subwords}.{{side}}", raw]
        if year == 16:
            names = [names[1], names[0], names[2]]
        reader = partial(parallel.wmt_files, languages=("en", target))
        return Files(reader, tuple(f"{folder}{one}" for folder in (f"{name}/", "") for one in names))

    splits = {
        "train": files("train", _TRAIN_SUBWORDS, f"training/*{target}*en*.{{side}}"),
        "valid": files("newstest2013", _SUBWORDS, "newstest2013-{kind}.{side}.sgm"),
        "test": files("newstest2014", _SUBWORDS, f"newstest2014-{target}en-{{kind}}.{{side}}.sgm"),
    }
    if target == "fr":
        # the paper validates on a random part of the training set
        pairs = splits["train"]
        splits |= {"train": replace(pairs, share=_TRAIN), "valid": replace(pairs, share=_VALID)}
    hub_splits = {split: _OFFICIAL[split] for split in splits if splits[split].share != _VALID}
    return Corpus(
        name,
        "translation",
        Vocabulary("bpe", vocab_size),
        use="translation (the paper)",
        size=size,
        licence=_RESEARCH,
        origin=f"https://www.statmt.org/wmt{year}/",
        splits=splits,
        languages={"source": "en", "target": target},
        # the hub's WMT'16 has other test sets
        hub=Hub(
            "wmt/wmt14",
            f"{target}-en",
            hub_splits,
            lambda row, side: one_line(row["translation"][side]),
        )
        if year == 14
        else None,
        preset={"train": {"accumulate": 8, **train}},
    )


_SMALL_TRANSLATOR = {
    "embed_dim": 256,
    "ffn_dim": 1024,
    "num_heads": 4,
    "encoder_layers": 3,
    "decoder_layers": 3,
}


_MULTI30K = {
    "train": "train",
    "valid": "val",
    "test": "test_2016_flickr",
    "test2017": "test_2017_flickr",
    "mscoco": "test_2017_mscoco",
}


def _multi30k(target: str, *, hub: Hub | None = None) -> Corpus:
    return Corpus(
        f"multi30k-en-{target}",
        "translation",
        _BPE_8K,
        use="translation, small",
        size="29,000 pairs",
        licence="non-commercial research",
        origin="https://github.com/multi30k/dataset (data/task1/raw)",
        splits=_parallel(_MULTI30K, "multi30k/raw/", "raw/", optional=("test2017", "mscoco")),
        languages={"source": "en", "target": target},
        hub=hub,
        preset={
            "model": _SMALL_TRANSLATOR,
            "train": {"max_updates": 6_000, "warmup": 1_000, "valid_every": 500, "save_every": 500},
        },
    )


def _multi30k_tokenized() -> Corpus:
    names = {split: f"{name}.lc.norm.tok" for split, name in _MULTI30K.items()}
    reader = partial(parallel.tokenized_files, languages=("en", "de"))
    return replace(
        _multi30k("de"),
        name="multi30k-tok-en-de",
        vocabulary=Vocabulary("bpe", 10_000),
        use="translation, small, lower-cased as in most papers",
        origin="https://github.com/multi30k/dataset (data/task1/tok)",
        splits=_parallel(names, "multi30k/tok/", "tok/", optional=("test2017", "mscoco"), reader=reader),
        moses=True,
    )


def _tatoeba(target: str, size: str) -> Corpus:
    name = f"tatoeba_en-{target}.tsv"
    return Corpus(
        f"tatoeba-en-{target}",
        "translation",
        _BPE_8K,
        use="translation, medium",
        size=size,
        licence="CC BY 2.0",
        origin="https://www.manythings.org/anki/ (as lines of english<TAB>translation)",
        # by the English sentence: its several translations stay together
        splits=_divide(
            parallel.parallel_tsv,
            (f"tatoeba/{name}", name),
            train=range(20, 1000),
            valid=range(10),
            test=range(10, 20),
        ),
        languages={"source": "en", "target": target},
        preset={"model": _SMALL_TRANSLATOR, "train": {"max_updates": 20_000, "warmup": 2_000}},
    )


def _sst(
    name: str,
    use: str,
    size: str,
    labels: readers.SentimentLabels,
    *,
    phrases: bool = True,
    trees: bool = False,
) -> Corpus:
    def tree(split: str, *, phrases: bool) -> Files:
        names = (
            f"trees/{split}.txt",
            f"sst/trees_{split}.ptb.txt",
            f"trees_{split}.ptb.txt",
            f"{split}.txt",
        )
        return Files(partial(readers.sst_trees, labels=labels, phrases=phrases, trees=trees), names)

    return Corpus(
        name,
        "classification",
        _BPE_8K,
        use=use,
        size=size,
        licence=_RESEARCH,
        origin="https://nlp.stanford.edu/sentiment/ (trainDevTestTrees_PTB.zip)",
        splits={
            "train": tree("train", phrases=phrases),
            "valid": tree("dev", phrases=False),
            "test": tree("test", phrases=False),
        },
        labels=_POLARITY if labels == "binary" else _FIVE_GRADES,
        trees=trees,
        preset={"train": {"max_updates": 3_000}},
    )


def _sst2_glue() -> Corpus:
    return Corpus(
        "sst2-glue",
        "classification",
        _BPE_8K,
        use="sentiment, GLUE's phrases",
        size="67,349 phrases",
        licence=_RESEARCH,
        origin="https://gluebenchmark.com/",
        splits={
            split: Files(readers.glue, (f"sst2-glue/{name}.tsv", f"SST-2/{name}.tsv", f"{name}.tsv"))
            for split, name in {"train": "train", "valid": "dev"}.items()
        },
        labels=_POLARITY,
        hub=Hub(
            "nyu-mll/glue",
            "sst2",
            {"train": "train", "valid": "validation"},
            lambda row, _: f"{one_line(row['sentence'])}\t{row['label']}",
            header="sentence\tlabel",
        ),
        preset={"train": {"max_updates": 3_000}},
    )


def _imdb() -> Corpus:
    def names(split: str) -> tuple[str, ...]:
        return (f"imdb/imdb_{split}.tsv", f"imdb_{split}.tsv", f"aclImdb/{split}", f"imdb/{split}", split)

    # there is no official validation split: a tenth of the training reviews
    divided = _divide(readers.imdb, names("train"), train=range(100, 1000), valid=range(100))
    return Corpus(
        "imdb",
        "classification",
        _BPE_8K,
        use="sentiment (the paper)",
        size="50,000 reviews",
        licence=_RESEARCH,
        origin="https://ai.stanford.edu/~amaas/data/sentiment/",
        splits={**divided, "test": Files(readers.imdb, names("test"))},
        labels=_POLARITY,
        hub=Hub(
            "stanfordnlp/imdb",
            None,
            {"train": "train", "test": "test"},
            # rating and id are not on the hub; the reader does not need them
            lambda row, _: f"{row['label']}\tNA\tNA\t{one_line(row['text'])}",
        ),
        preset={
            "task": {"max_length": 512},
            "train": {"max_updates": 10_000, "max_tokens": 16_384, "valid_every": 500},
        },
    )


_SVA = {"train": {"max_updates": 10_000, "valid_every": 500}}
_LINZEN = ("sva/agr_50_mostcommon_10K.tsv", "agr_50_mostcommon_10K.tsv")
_SUBSET = "linzen_subset_all.tsv"
_SMALL_LM = {"embed_dim": 256, "ffn_dim": 1024, "num_heads": 4, "num_layers": 4, "dropout": 0.3}


def _wikitext(number: int, use: str, size: str, words: int, preset: Settings) -> Corpus:
    def names(split: str) -> tuple[str, ...]:
        file = f"wiki.{split}.tokens"
        return (f"wikitext{number}/{file}", f"wikitext-{number}/{file}", file)

    return Corpus(
        f"wikitext{number}",
        "language-model",
        Vocabulary("words", None, words),
        use=use,
        size=size,
        licence="CC BY-SA",
        origin="Merity et al. 2016",
        splits={split: Files(_RUNNING_TEXT, names(split)) for split in ("train", "valid", "test")},
        hub=Hub(
            "Salesforce/wikitext", f"wikitext-{number}-v1", _OFFICIAL, lambda row, _: one_line(row["text"])
        ),
        preset=preset,
    )


def _agreement(rows: int, seed: int, part: Part, *, trees: bool = False) -> Iterator[Row]:
    # the verb and the whole sentence are not for the model
    hidden = {"verb", "sentence", "tree"}
    for example in agreement(rows, seed, part=part):
        row = {name: value for name, value in asdict(example).items() if name not in hidden}
        yield row | ({"text": example.tree} if trees else {})


def _reorder(rows: int, seed: int, part: Part) -> Iterator[Row]:
    return ({"source": e.source, "target": e.target} for e in reorder(rows, seed, part=part))


_EN_DE = {"max_updates": 200_000, "save_every": "epoch"}
_GENERATED_AGREEMENT = Corpus(
    "agreement",
    "classification",
    Vocabulary("words", None, 512),
    use="windows scored against the right one; demo",
    size="20,000 sentences",
    licence="generated",
    origin="here",
    labels=("singular", "plural"),
    generate=_agreement,
    preset={
        "train": {"max_updates": 1_000, "lr": 2e-3, "warmup": 100, "valid_every": 100, "save_every": 100}
    },
)
_ALL = (
    _GENERATED_AGREEMENT,
    replace(
        _GENERATED_AGREEMENT,
        name="agreement-trees",
        use="the same with its phrases, for windows of them",
        generate=partial(_agreement, trees=True),
        trees=True,
    ),
    Corpus(
        "reorder",
        "translation",
        Vocabulary("words", None, 512),
        use="translation without files; demo",
        size="20,000 pairs",
        licence="generated",
        origin="here",
        # both are written as English is: words between spaces, a full stop at the end
        languages={"source": "en", "target": "en"},
        generate=_reorder,
        preset={
            "model": {
                "embed_dim": 128,
                "ffn_dim": 512,
                "num_heads": 4,
                "encoder_layers": 2,
                "decoder_layers": 2,
            },
            "train": {
                "max_updates": 1_500,
                "lr": 2e-3,
                "warmup": 200,
                "log_every": 50,
                "valid_every": 250,
                "save_every": 250,
            },
        },
    ),
    *(_wmt(year, "de", "4.5 M pairs", 32_768, _EN_DE) for year in (14, 16)),
    # 150,000 updates are some four epochs: an average over five would begin with the first
    _wmt(14, "fr", "36 to 41 M pairs", 40_000, {"max_updates": 150_000}),
    _multi30k("de", hub=Hub("bentrevett/multi30k", None, _OFFICIAL, lambda row, side: one_line(row[side]))),
    _multi30k("fr"),
    _multi30k_tokenized(),
    _tatoeba("de", "169,000 pairs"),
    _tatoeba("fr", "167,000 pairs"),
    _sst("sst2", "sentiment (the paper)", "6,920 sentences, 77,616 phrases", "binary"),
    _sst("sst2-sentences", "sentiment, without the phrases", "6,920 sentences", "binary", phrases=False),
    _sst(
        "sst2-trees",
        "sentences with their trees, for windows of phrases",
        "6,920 sentences",
        "binary",
        phrases=False,
        trees=True,
    ),
    _sst("sst5", "sentiment, five classes", "8,544 sentences, 159,274 phrases", "five"),
    _sst2_glue(),
    _imdb(),
    Corpus(
        "sva-linzen",
        "classification",
        Vocabulary("words", None, 10_000),
        use="subject-verb agreement (the paper)",
        size="1.57 M sentences",
        licence="MIT (code)",
        origin="https://github.com/TalLinzen/rnn_agreement",
        # the shares of Linzen et al.: 9 % training, 1 % validation, 90 % test
        splits={
            **_divide(readers.linzen, _LINZEN, train=range(90), valid=range(90, 100), test=range(100, 1000)),
            # the test set of tensor2tensor
            **_divide(partial(readers.linzen, all_differ=True), _LINZEN, differ=range(100, 1000)),
        },
        labels=("singular", "plural"),
        preset=_SVA,
    ),
    Corpus(
        "sva",
        "classification",
        Vocabulary("words", None, 10_000),
        use="subject-verb agreement, a subset",
        size="85,522 prefixes",
        licence=_RESEARCH,
        origin="https://github.com/viking-sudo-rm/StackNN (data/linzen/rnn_agr_simple: numpred.val, "
        "numpred.test.1 to 5) and https://github.com/HrBlack/RNN-for-Language-Modelling (wiki-dev, "
        "wiki-test, cut before the verb), as rows `label, attractors or NA, train|dev|test, source, prefix`, "
        "divided by SHA-1 of the prefix modulo 100: train below 80, dev below 90",
        splits={
            split: Files(partial(readers.agreement_subset, split=name), (f"sva/{_SUBSET}", _SUBSET))
            for split, name in {"train": "train", "valid": "dev", "test": "test"}.items()
        },
        labels=("singular", "plural"),
        preset=_SVA,
    ),
    Corpus(
        "lm1b",
        "language-model",
        Vocabulary("words", 32_000),
        use="language modelling (the paper)",
        size="0.8 G words",
        licence=_RESEARCH,
        origin="https://www.statmt.org/lm-benchmark/ "
        "(1-billion-word-language-modeling-benchmark-r13output.tar.gz)",
        # the paper's test set is held-out shard 0; the next validates
        splits={
            "train": Files(_SENTENCES, ("**/news.en-000*",)),
            "valid": Files(_SENTENCES, ("**/news.en.heldout-00001*",)),
            "test": Files(_SENTENCES, ("**/news.en.heldout-00000*",)),
        },
        # as in translation, but for virtually 4 GPUs and not 8
        preset={
            "task": {"label_smoothing": 0.1},
            "train": {"max_updates": 100_000, "accumulate": 4},
        },
    ),
    Corpus(
        "lm1b-heldout",
        "language-model",
        Vocabulary("words", 32_768),
        use="language modelling, small",
        size="12,216 sentences",
        licence=_RESEARCH,
        origin="held-out sections of the 1B-word benchmark",
        splits=_divide(
            _SENTENCES,
            ("lm1b_heldout/1b_benchmark.dev.tokens", "1b_benchmark.dev.tokens"),
            train=range(200, 1000),
            valid=range(100),
            test=range(100, 200),
        ),
        preset={
            "model": _SMALL_LM,
            "train": {
                "max_updates": 3_000,
                "warmup": 500,
                "clip_norm": 1.0,
                "valid_every": 250,
                "final": "best",
            },
        },
    ),
    _wikitext(
        2,
        "language modelling, small",
        "2.1 M words",
        33_280,
        {
            "model": _SMALL_LM,
            "task": {"block_size": 128},
            "train": {"max_updates": 10_000, "clip_norm": 1.0, "valid_every": 500, "final": "best"},
        },
    ),
    _wikitext(
        103,
        "language modelling",
        "103 M words",
        267_737,
        {"task": {"block_size": 128}, "train": {"max_updates": 100_000, "accumulate": 8, "clip_norm": 1.0}},
    ),
)
CORPORA = {corpus.name: corpus for corpus in _ALL}
GENERATED = tuple(corpus.name for corpus in _ALL if corpus.generate)


def corpus_of(name: str) -> Corpus:
    """Return the entry of a corpus; raise with the nearest name if there is none."""
    if name in CORPORA:
        return CORPORA[name]
    raise CorpusError(f"no corpus is called {name!r}; {did_you_mean(name, CORPORA)}")


def recipe_of(name: str, root: Path | None = None, *, rows: int | None = None, seed: int = 0) -> Recipe:
    """Return the recipe of a corpus: from its raw files in `root`, or generated with `rows` and `seed`."""
    corpus = corpus_of(name)
    if corpus.generate:
        generated = corpus.generated(GENERATED_ROWS if rows is None else rows, seed)
        return generated.read_phrases() if corpus.trees else generated
    if rows is not None or seed:
        given = f"rows={rows}" if rows is not None else f"seed={seed}"
        raise CorpusError(f"{name} is made from files, so {given} has no effect; it shapes generated corpora")
    if root is None:
        raise NoFolderError(f"{name} is made from files; say in which folder they are")
    if not root.is_dir():
        raise CorpusError(f"{root} is not a folder; {name} is made from files in a folder")
    recipe = corpus.recipe(root)
    return recipe.read_phrases() if corpus.trees else recipe
