"""What each experiment needs: where it comes from, its licence and size, and which files to put where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HubRow = dict[str, Any]


@dataclass(frozen=True)
class HubFile:
    """A file to write from one split of a dataset on the Hugging Face hub."""

    name: str
    split: str
    line: Callable[[HubRow], str]
    header: str | None = None


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the hub, and the files that a recipe reads."""

    path: str
    config: str | None
    files: tuple[HubFile, ...]


@dataclass(frozen=True)
class Entry:
    """A corpus as `diffwindow data list` shows it."""

    name: str
    used_for: str
    size: str
    licence: str
    origin: str
    layout: tuple[str, ...] = ()
    hub: HubDataset | None = None

    @property
    def generated(self) -> bool:
        """Whether the corpus needs no files."""
        return not self.layout


def one_line(text: str) -> str:
    """Put a text on one line of a tab-separated file."""
    return " ".join(text.replace("\t", " ").splitlines())


def _translations(path: str, config: str, folder: str, target: str) -> HubDataset:
    names = {"train": "train", "newstest2013": "validation", "newstest2014": "test"}

    def line(language: str) -> Callable[[HubRow], str]:
        return lambda row: one_line(row["translation"][language])

    return HubDataset(
        path,
        config,
        tuple(
            HubFile(f"{folder}/{name}.{language}", split, line(language))
            for name, split in names.items()
            for language in ("en", target)
        ),
    )


def _wikitext(number: int) -> HubDataset:
    names = {"train": "train", "valid": "validation", "test": "test"}
    return HubDataset(
        "Salesforce/wikitext",
        f"wikitext-{number}-v1",
        tuple(
            HubFile(f"wikitext{number}/wiki.{name}.tokens", split, lambda row: one_line(row["text"]))
            for name, split in names.items()
        ),
    )


def _multi30k() -> HubDataset:
    names = {"train": "train", "val": "validation", "test_2016_flickr": "test"}

    def line(language: str) -> Callable[[HubRow], str]:
        return lambda row: one_line(row[language])

    return HubDataset(
        "bentrevett/multi30k",
        None,
        tuple(
            HubFile(f"multi30k/raw/{name}.{language}", split, line(language))
            for name, split in names.items()
            for language in ("en", "de")
        ),
    )


SST2_HUB = HubDataset(
    "nyu-mll/glue",
    "sst2",
    tuple(
        HubFile(
            f"sst2-glue/{name}.tsv",
            split,
            lambda row: f"{one_line(row['sentence'])}\t{row['label']}",
            header="sentence\tlabel",
        )
        for name, split in {"train": "train", "dev": "validation"}.items()
    ),
)
IMDB_HUB = HubDataset(
    "stanfordnlp/imdb",
    None,
    tuple(
        # rating and id are not on the hub; the reader does not need them
        HubFile(
            f"imdb/imdb_{split}.tsv", split, lambda row: f"{row['label']}\tNA\tNA\t{one_line(row['text'])}"
        )
        for split in ("train", "test")
    ),
)
MULTI30K_FILES = ("multi30k/raw/{train,val,test_2016_flickr}.en", "and the same in the other language")
WMT_FILES = ("{train,newstest2013,newstest2014}.en", "and the same in the other language")
RESEARCH = "no licence stated; for research"

CATALOGUE = (
    Entry("agreement", "windows scored against the right one; demo", "20,000 sentences", "generated", "here"),
    Entry("reorder", "translation without files; demo", "20,000 pairs", "generated", "here"),
    Entry(
        "wmt14-en-de", "translation (the paper)", "4.5 M pairs", RESEARCH, "https://www.statmt.org/wmt14/",
        WMT_FILES, _translations("wmt/wmt14", "de-en", "wmt14-en-de", "de"),
    ),
    Entry(
        "wmt14-en-fr", "translation (the paper)", "36 to 41 M pairs", RESEARCH, "https://www.statmt.org/wmt14/",
        WMT_FILES, _translations("wmt/wmt14", "fr-en", "wmt14-en-fr", "fr"),
    ),
    Entry(
        "multi30k-en-de", "translation, small", "29,000 pairs", "non-commercial research",
        "https://github.com/multi30k/dataset", MULTI30K_FILES, _multi30k(),
    ),
    Entry(
        "multi30k-en-fr", "translation, small", "29,000 pairs", "non-commercial research",
        "https://github.com/multi30k/dataset (data/task1/raw)", MULTI30K_FILES,
    ),
    Entry(
        "tatoeba-en-de", "translation, medium", "169,000 pairs", "CC BY 2.0",
        "https://www.manythings.org/anki/", ("tatoeba/tatoeba_en-de.tsv (english<TAB>german)",),
    ),
    Entry(
        "tatoeba-en-fr", "translation, medium", "167,000 pairs", "CC BY 2.0",
        "https://www.manythings.org/anki/", ("tatoeba/tatoeba_en-fr.tsv (english<TAB>french)",),
    ),
    Entry(
        "sst2", "sentiment (the paper)", "6,920 sentences, 77,616 phrases", RESEARCH,
        "https://nlp.stanford.edu/sentiment/ (trainDevTestTrees_PTB.zip)", ("trees/{train,dev,test}.txt",),
    ),
    Entry(
        "sst2-sentences", "sentiment, without the phrases", "6,920 sentences", RESEARCH,
        "https://nlp.stanford.edu/sentiment/ (trainDevTestTrees_PTB.zip)", ("trees/{train,dev,test}.txt",),
    ),
    Entry(
        "sst5", "sentiment, five classes", "8,544 sentences, 159,274 phrases", RESEARCH,
        "https://nlp.stanford.edu/sentiment/ (trainDevTestTrees_PTB.zip)", ("trees/{train,dev,test}.txt",),
    ),
    Entry(
        "sst2-glue", "sentiment, GLUE's phrases", "67,349 phrases", RESEARCH, "https://gluebenchmark.com/",
        ("SST-2/{train,dev}.tsv",), SST2_HUB,
    ),
    Entry(
        "imdb", "sentiment (the paper)", "50,000 reviews", RESEARCH,
        "https://ai.stanford.edu/~amaas/data/sentiment/", ("aclImdb/{train,test}/{neg,pos}/*.txt",), IMDB_HUB,
    ),
    Entry(
        "sva-linzen", "subject-verb agreement (the paper)", "1.57 M sentences", "MIT (code)",
        "https://github.com/TalLinzen/rnn_agreement", ("agr_50_mostcommon_10K.tsv",),
    ),
    Entry(
        "sva", "subject-verb agreement, a subset", "85,522 prefixes", RESEARCH,
        "https://github.com/viking-sudo-rm/StackNN (data/linzen/rnn_agr_simple: numpred.val, numpred.test.1 "
        "to 5) and https://github.com/HrBlack/RNN-for-Language-Modelling (wiki-dev, wiki-test, cut before "
        "the verb), as rows `label, attractors or NA, train|dev|test, source, prefix`, divided by SHA-1 of "
        "the prefix modulo 100: train below 80, dev below 90",
        ("sva/linzen_subset_all.tsv",),
    ),
    Entry(
        "lm1b", "language modelling (the paper)", "0.8 G words", RESEARCH,
        "https://www.statmt.org/lm-benchmark/ (1-billion-word-language-modeling-benchmark-r13output.tar.gz)",
        ("**/news.en-000*", "**/news.en.heldout-000*"),
    ),
    Entry(
        "lm1b-heldout", "language modelling, small", "12,216 sentences", RESEARCH,
        "held-out sections of the 1B-word benchmark", ("lm1b_heldout/1b_benchmark.dev.tokens",),
    ),
    Entry(
        "wikitext2", "language modelling, small", "2.1 M words", "CC BY-SA", "Merity et al. 2016",
        ("wikitext2/wiki.{train,valid,test}.tokens",), _wikitext(2),
    ),
    Entry(
        "wikitext103", "language modelling", "103 M words", "CC BY-SA", "Merity et al. 2016",
        ("wikitext103/wiki.{train,valid,test}.tokens",), _wikitext(103),
    ),
)  # fmt: skip
