"""`diffwindow compare`: a table of your own data."""

import json
import shutil
import sys

import pytest

from diffwindow.cli import main
from diffwindow.data.corpora import recipe_of
from diffwindow.data.prepare import prepare
from diffwindow.data.store import read_manifest
from diffwindow.reproduce import jobs
from diffwindow.reproduce.jobs import FinishedJob, result_of, run
from diffwindow.reproduce.own_data import own_table

TINY = [
    "model.embed_dim=16",
    "model.ffn_dim=16",
    "model.num_heads=2",
    "train.max_updates=2",
    "train.valid_every=2",
]


def test_each_task_has_its_rows_metric_and_split(agreement_store, reorder_store, text_store):
    found = {}
    for store in (agreement_store, reorder_store, text_store):
        manifest = read_manifest(store.folder)
        table, scale = own_table(store.folder, manifest, [], ["train.lr=1e-3"])
        (column,) = table.columns
        assert scale.experiment(column).overrides == (f'data.path="{store.folder}"', "train.lr=1e-3")
        assert table.rows[0].attention == "Global"
        assert table.rows[1].key == "Global+positions=rotary"
        assert len(table.rows) == 5
        found[scale.experiment(column).preset] = (column.metric, column.split, table.rows[-1].key)
    assert found == {
        "classification": ("accuracy", "test", "Enc(AW)"),
        "translation": ("bleu", "test", "Enc(AW)-Cr(AW,Seg)-Dec(MW)"),
        "language-model": ("perplexity", "test", "Dec(AW)"),
    }


def test_the_validation_set_serves_where_there_is_no_test_set(agreement_store):
    manifest = read_manifest(agreement_store.folder)
    splits = {name: manifest.splits[name] for name in ("train", "valid")}
    table, _ = own_table(
        agreement_store.folder,
        manifest.model_copy(update={"splits": splits}),
        ["Enc( AW )", "Enc(MW)+positions=rotary"],
        [],
    )
    assert table.columns[0].split == "valid"
    # rows are as the notation spells them, and the first is the baseline
    assert [row.key for row in table.rows] == ["Enc(AW)", "Enc(MW)+positions=rotary"]
    with pytest.raises(ValueError, match="has no validation set"):
        own_table(
            agreement_store.folder, manifest.model_copy(update={"splits": {"train": splits["train"]}}), [], []
        )


@pytest.fixture
def compare(monkeypatch, capsys):
    """Call the command with its jobs in this process."""

    def run_here(jobs, *, processes, tell):
        for job in jobs:
            problem = run(job)
            yield FinishedJob(job, None if problem else result_of(job), problem)

    monkeypatch.setattr(jobs, "run_all", run_here)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["diffwindow", "compare", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        return done.value.code or 0, *capsys.readouterr()

    return call


def test_one_command_trains_compares_and_draws(compare, agreement_store, tmp_path):
    out = tmp_path / "compared"
    arguments = (agreement_store.folder, *TINY, "--rows", "Global;Enc(AW)", "--out", out)
    code, printed, err = compare(*arguments, "--seeds", 2)
    assert (code, printed) == (0, f"{out / 'report.md'}\n"), err
    report = (out / "report.md").read_text()
    assert "| Global |" in report
    assert "| Enc(AW) |" in report
    assert (out / "gains.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = compare(*arguments)
    assert (code, err) == (0, "2 of 2 runs are done already\n")
    # the second seed, which this command did not ask for, stays in the report
    rows = json.loads((out / "report.json").read_text())["columns"][0]["rows"]
    assert [row["ours"]["count"] for row in rows] == [2, 2]


def test_results_of_a_corpus_that_has_changed_are_not_mixed(compare, tmp_path):
    store, rows = tmp_path / "a: b #1", ("--rows", "Global", "--out", tmp_path / "out")
    prepare(recipe_of("agreement", rows=40, seed=1), store)
    code, _, err = compare(store, *TINY, *rows)
    assert code == 0, err
    assert "There are no gains yet" in (tmp_path / "out" / "report.md").read_text()
    shutil.rmtree(store)
    prepare(recipe_of("agreement", rows=40, seed=2), store)
    code, _, err = compare(store, *TINY, *rows)
    assert code == 2
    assert f"{store} has changed since " in err
    (result,) = (tmp_path / "out").glob("**/result.json")
    result.write_text("{}")
    code, _, err = compare(store, *TINY, *rows)
    assert (code, "result.json is damaged; delete it" in err) == (2, True)


def test_mistakes_are_one_sentence(compare, agreement_store, tmp_path):
    for arguments, said in (
        ((tmp_path,), "is not a prepared corpus"),
        ((agreement_store.folder, "--rows", "Enc(XY)"), "'XY' is not an attention"),
        ((agreement_store.folder, "--rows", "Enc(AW)+positions=round"), "model.positions"),
        ((agreement_store.folder, "--rows", "Enc(AW)+positions"), "'positions' of 'Enc(AW)+positions' is no"),
        ((agreement_store.folder, "--rows", "Enc(AW)+model.positions=rotary"), "as positions=rotary"),
        ((agreement_store.folder, "--rows", "Global;Enc(Rel)+positions=rotary"), "use other positions"),
        ((agreement_store.folder, "train.lrr=1"), "train.lrr"),
        ((agreement_store.folder, *TINY, "--out", tmp_path / "file"), "file is not a folder"),
    ):
        (tmp_path / "file").touch()
        code, printed, err = compare("--out", tmp_path / "out", *arguments)
        assert (code, printed) == (2, "")
        assert said in err
