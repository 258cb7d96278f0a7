"""The whole path at smoke scale: train, evaluate, report, on generated data in seconds."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from typer.testing import CliRunner

from diffwindow.cli import app
from diffwindow.data.store import read_manifest
from diffwindow.evaluation import evaluate as evaluation
from diffwindow.evaluation.intervals import gain_interval
from diffwindow.reproduce import figures, jobs
from diffwindow.reproduce.cost import relative_speeds
from diffwindow.reproduce.findings import findings
from diffwindow.reproduce.jobs import (
    OUTCOMES,
    RESULT,
    FinishedJob,
    arguments_of,
    done_before,
    jobs_of,
    make_stores,
    run,
    terms_by_column,
)
from diffwindow.reproduce.report import FIGURE, JSON, PICTURES, REPORT, markdown, write_report
from diffwindow.reproduce.scales import scale_of
from diffwindow.reproduce.tables import table_of
from diffwindow.tasks.metrics import accuracy_of, bleu_of, load_outcomes, save_outcomes

SMOKE = scale_of("smoke")


def _jobs(table, columns, rows, out, seeds=(1,)):
    jobs = jobs_of(table_of(table).choose(columns, rows), SMOKE, seeds, out)
    make_stores(jobs, None)
    return jobs


@pytest.mark.parametrize(("gpu", "processes"), [(False, 6), (True, 1)])
def test_jobs_share_the_cores_but_not_a_gpu(gpu, processes, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert jobs.usual_processes() == processes


def test_the_command_trains_reports_and_does_not_train_again(tmp_path, monkeypatch):
    arguments = ["reproduce", "table5", "--scale", "smoke", "--columns", "sva", "--jobs", "1"]
    arguments += ["--rows", "Global;Enc(AW)", "--out", str(tmp_path)]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "2 runs to train, 1 at once\nrun 1 of 2, generated data in place of " in first.stderr
    report = tmp_path / "table5-smoke" / REPORT
    assert "## generated data in place of " in report.read_text(encoding="utf-8")
    assert {"Transformer", "Enc(AW)"} <= set(report.read_text(encoding="utf-8").replace("|", "\n").split())
    assert f"({FIGURE})" not in report.read_text(encoding="utf-8")
    for picture in PICTURES.keys() - {FIGURE}:
        assert (tmp_path / "table5-smoke" / picture).stat().st_size > 1000
    found = json.loads((tmp_path / "table5-smoke" / JSON).read_text(encoding="utf-8"))
    ran = {row["key"]: row["ours"]["count"] for row in found["columns"][0]["rows"] if row["ours"]}
    assert ran == {"Global": 1, "Enc(AW)": 1}
    (update, accuracy), *more = found["columns"][0]["rows"][0]["learning"]
    assert (update, more) == (4, [])
    assert 0 < accuracy < 100
    # what lies beside the report is enough to compute its figures again
    outcomes = load_outcomes(tmp_path / "table5-smoke" / "outcomes-sva.npz")
    plain, additive = (outcomes[f"{key}/1"] for key in ("Global", "Enc(AW)"))
    again = gain_interval(additive[None], plain[None], accuracy_of)
    row = next(row for row in found["columns"][0]["rows"] if row["key"] == "Enc(AW)")
    assert row["by_seed"] == {"1": pytest.approx(float(accuracy_of(additive.sum(0, dtype=float))))}
    assert row["interval"] == pytest.approx(asdict(again))
    assert len(plain) == 20
    # other windows at test time, on the same examples
    rules = row["rules"]
    assert list(rules) == ["soft", "argmax", "none"]
    assert rules["soft"]["ours"]["mean"] == row["ours"]["mean"]
    assert rules["none"]["interval"]["examples"] == 20
    assert rules["none"]["gain"]["mean"] == pytest.approx(rules["none"]["ours"]["mean"] - row["ours"]["mean"])
    assert "rules" not in found["columns"][0]["rows"][0]
    assert "| windows at test time, and gain over the trained ones | as trained | " in report.read_text()

    monkeypatch.setattr(jobs, "ProcessPoolExecutor", None)  # a second training would need it
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0, again.output
    assert "2 of 2 runs are done already" in again.output


def test_columns_that_a_scale_lacks_are_left_out_unless_named(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "make_store", lambda *_, **__: None)
    monkeypatch.setattr(jobs, "run_all", lambda *_, **__: iter(()))
    arguments = ["reproduce", "table5", "--scale", "mini", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "left out, because they have no mini scale: sva\n" in done.output
    named = CliRunner().invoke(app, [*arguments, "--columns", "sva"])
    assert named.exit_code == 1
    assert "has no mini scale" in str(named.output) + str(named.exception)


def test_a_table_without_columns_at_a_scale_is_an_error(tmp_path):
    done = CliRunner().invoke(app, ["reproduce", "agreement", "--scale", "paper", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert str(done.exception) == "agreement has no columns at scale paper; choose mini or smoke"
    assert list(tmp_path.iterdir()) == []


def test_learning_is_what_validations_gave_and_not_the_final_model(tmp_path):
    table = table_of("table5").choose(["sva"], ["Global"])
    jobs = jobs_of(table, SMOKE, (1, 2), tmp_path)
    for job in jobs:
        job.folder.mkdir(parents=True)
        shares = {"keys_outside": 0.2 * job.seed, "tiles_outside": 0.125}
        records = [
            {"update": 1, "kind": "train", "loss": 1.0},
            {"update": 1, "kind": "valid", "accuracy": 0.5},
            {"update": 2, "kind": "valid", "accuracy": 0.6 + 0.1 * job.seed, **shares},
            {"update": 2, "kind": "final", "accuracy": 0.9},
        ]
        (job.folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found = findings(table, SMOKE, [_outcome(job, 90.0) for job in jobs], "…")
    assert found["columns"][0]["rows"][0]["learning"] == [(1, 50.0), (2, pytest.approx(75.0))]
    assert found["columns"][0]["rows"][0]["outside"] == [(2, pytest.approx(0.3), 0.125)]
    shown = "| keys and tiles outside of windows, % | after 2 updates |\n| --- | --- |\n"
    assert f"{shown}| Transformer | 30.0 and 12.5 |" in markdown(found)


@pytest.fixture(scope="module")
def translations(tmp_path_factory):
    """Two trained translators: plain and with windows everywhere."""
    jobs = _jobs("figure3", ["en-de"], [], tmp_path_factory.mktemp("translations"))
    for job in jobs:
        assert run(job) is None, (job.folder / "output.txt").read_text()
    return jobs


def test_translations_are_scored_and_sized(translations):
    results = [json.loads((job.folder / RESULT).read_text(encoding="utf-8")) for job in translations]
    assert all("signature" in result["metrics"]["bleu"] for result in results)
    assert results[0]["parameters"] < results[1]["parameters"]


def test_figure_3_shows_window_and_both_attentions(translations, tmp_path):
    from diffwindow.reproduce.figures import draw_figure_3

    plain, windowed = (job.folder for job in translations)
    draw_figure_3(plain, windowed, translations[0].store, tmp_path / "figure3.png")
    assert (tmp_path / "figure3.png").stat().st_size > 1000
    with pytest.raises(ValueError, match=r"there is no row 21: the test set of \S+ has 20 sentences"):
        draw_figure_3(plain, windowed, translations[0].store, tmp_path / "none.png", row=21)
    found = findings(table_of("figure3"), SMOKE, [], "…")
    write_report(found, tmp_path)
    assert f"({FIGURE})" in (tmp_path / REPORT).read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="no window"):
        draw_figure_3(windowed, plain, translations[0].store, tmp_path / "other.png")


def test_language_models_get_a_perplexity(tmp_path):
    (job,) = _jobs("table6", [], ["Dec(MW)"], tmp_path)
    assert run(job) is None, (job.folder / "output.txt").read_text()
    assert json.loads((job.folder / RESULT).read_text(encoding="utf-8"))["value"] > 1.0


def test_a_run_that_stopped_early_has_the_updates_that_it_made(tmp_path):
    (job,) = _jobs("table5", ["sva"], ["Global"], tmp_path)
    # nothing is learned, so the second validation is no better than the first
    stopping = ("train.lr=1e-12", "train.valid_every=1", "train.patience=1")
    job = replace(job, row=replace(job.row, overrides=stopping))
    assert run(job) is None, (job.folder / "output.txt").read_text()
    assert json.loads((job.folder / RESULT).read_text(encoding="utf-8"))["updates"] == 2


def test_further_test_sets_have_sections_of_their_own(tmp_path):
    (job,) = _jobs("table6", [], ["Global"], tmp_path)
    # a corpus has some of the sets: here one that every corpus has stands for them
    column = replace(job.column, also=("valid", "test2017"))
    job = replace(job, column=column)
    assert run(job) is None, (job.folder / "output.txt").read_text()
    table = replace(table_of("table6"), columns=(column,))
    found = findings(table, SMOKE, done_before([job]), "…")
    test, further = found["columns"]
    assert (test["column"], further["column"], further["title"]) == (
        "lm",
        "lm-valid",
        "language modelling, valid",
    )
    # the figure of the validation set, which is that of the further set here, and not of the test set
    assert (
        further["rows"][0]["by_seed"]["1"]
        == test["rows"][0]["valid"]["mean"]
        != test["rows"][0]["ours"]["mean"]
    )
    assert test["rows"][0]["learning"]
    assert not further["rows"][0]["learning"]
    outcomes = terms_by_column(done_before([job]))
    assert {name: by_run.keys() for name, by_run in outcomes.items()} == dict.fromkeys(
        ("lm", "lm-valid"), {"Global/1": None}.keys()
    )
    nll, words = outcomes["lm-valid"]["Global/1"].sum(0)
    assert further["rows"][0]["by_seed"]["1"] == pytest.approx(float(np.exp(nll / words)), rel=1e-6)
    assert "## language modelling, valid: perplexity by word" in markdown(found)
    assert "; the same models on the validation set; " in markdown(found)


def test_a_run_goes_on_where_it_was_cut(tmp_path, monkeypatch):
    (whole,) = _jobs("table5", ["sst"], ["Enc(MW)"], tmp_path / "whole")
    (cut,) = _jobs("table5", ["sst"], ["Enc(MW)"], tmp_path / "cut")
    assert run(whole) is None

    def fails(*_, **__):
        raise RuntimeError("the disk is full")

    with monkeypatch.context() as patched:
        # the run ends after training, before there is a result
        patched.setattr("diffwindow.evaluation.evaluate.evaluate_model", fails)
        assert run(cut) == "the disk is full"
    assert not (cut.folder / RESULT).exists()
    assert "Traceback" in (cut.folder / "output.txt").read_text(encoding="utf-8")
    assert run(cut) is None
    assert "resuming from update 4" in (cut.folder / "output.txt").read_text(encoding="utf-8")
    values = [json.loads((job.folder / RESULT).read_text(encoding="utf-8"))["value"] for job in (whole, cut)]
    assert values[0] == values[1]


def test_a_result_of_other_settings_is_not_taken(tmp_path):
    (job,) = _jobs("table5", ["sst"], ["Global"], tmp_path)
    job.folder.mkdir(parents=True)
    (job.folder / RESULT).write_text(json.dumps({"settings": ["imdb"]}))
    with pytest.raises(ValueError, match="choose another folder"):
        done_before([job])


def test_all_rows_of_a_seed_come_before_the_next(tmp_path):
    jobs = _jobs("table5", ["sst"], ["Global", "Enc(AW)"], tmp_path, seeds=(1, 2))
    assert [(job.seed, job.row.key) for job in jobs] == [
        (seed, key) for seed in (1, 2) for key in ("Global", "Enc(AW)")
    ]


def _outcome(job, value, problem=None):
    metrics = {"by_attractors": {"-1": {"correct": 3, "total": 4}, "1": {"correct": 1, "total": 2}}}
    metrics["by_length"] = {"1-10": {"correct": 4, "total": 6}}
    metrics["perplexity_by_token"] = 5.0
    fit = {"overlap": None, "best_head": None, "attention_inside": 0.5, "chance": 0.25}
    metrics["windows"] = [fit, fit]
    result = {"value": value, "valid": value, "parameters": 1000, "metrics": metrics}
    return FinishedJob(job, None if problem else result, problem)


def test_tokenised_bleu_is_the_column_and_sacrebleu_stands_beside_it(tmp_path):
    tokenised = replace(SMOKE, metrics={"en-de": "bleu_compound_split"})
    table = tokenised.apply(table_of("table3")).choose([], ["Global"])
    (job,) = jobs_of(table, tokenised, (1,), tmp_path)
    job = replace(job, experiment=replace(job.experiment, moses=True), store=tmp_path / "data/moses")
    make_stores([job], None)
    assert read_manifest(job.store).settings.moses == {"source": "en", "target": "en"}
    assert run(job) is None, (job.folder / "output.txt").read_text()
    result = json.loads((job.folder / RESULT).read_text(encoding="utf-8"))
    assert result["value"] == result["metrics"]["bleu_compound_split"]["value"]
    totals = load_outcomes(job.folder / OUTCOMES)["test"].sum(0, dtype=float)
    assert float(bleu_of(totals, smooth=False)) == pytest.approx(result["value"])
    text = markdown(findings(table, tokenised, done_before([job]), "…"))
    assert "tokenised BLEU, compounds split, more is better" in text
    assert f"| 1 | {result['metrics']['bleu']['value']:.2f} |" in text
    assert "| seeds | sacreBLEU | perplexity by token |" in text
    assert f"| {result['metrics']['perplexity_by_token']:.2f} |" in text


def test_figure_3_trains_again_what_was_copied_without_its_model(translations, tmp_path, monkeypatch):
    jobs_there = jobs_of(table_of("figure3").choose(["en-de"], []), SMOKE, (1,), tmp_path)
    for job, trained in zip(jobs_there, translations, strict=True):
        job.folder.mkdir(parents=True)
        for name in (RESULT, OUTCOMES):
            (job.folder / name).write_bytes((trained.folder / name).read_bytes())
    asked = []
    monkeypatch.setattr(jobs, "make_store", lambda *_, **__: None)
    monkeypatch.setattr(jobs, "run_all", lambda waiting, **_: asked.extend(waiting) or iter(()))
    arguments = ["reproduce", "figure3", "--scale", "smoke", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*arguments, "--columns", "en-de", "--row", "2"])
    assert done.exit_code == 0, done.output
    assert [job.row.key for job in asked] == ["Global", "Enc(AW)-Cr(AW,Seg)-Dec(MW)"]
    asked.clear()
    # without columns, the paper's language alone
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert {job.column.name for job in asked} == {"en-fr"}


@pytest.mark.parametrize("name", ["figure1", "figure2"])
def test_figures_of_masks_need_no_training(name, tmp_path):
    done = CliRunner().invoke(app, ["reproduce", name, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.output == f"{tmp_path / name}.png\n"
    assert (tmp_path / f"{name}.png").stat().st_size > 1000


def test_figure_1_has_the_vectors_of_the_paper():
    vectors = list(figures.DRAWINGS["figure1"]().vectors.values())
    expected = ["0010000000", "0000000100", "0011111111", "1111111100", "0011111100"]
    assert ["".join(f"{value:.0f}" for value in vector.tolist()) for vector in vectors] == expected


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["table5", "--row", "2"], "--row is for figure3, not for table5"),
        (["figure1", "--columns", "en-de"], "figure1 has neither rows nor columns"),
    ],
)
def test_options_that_a_table_does_not_have_are_refused(arguments, problem, tmp_path):
    done = CliRunner().invoke(app, ["reproduce", *arguments, "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert problem in str(done.exception)


def test_the_parameters_of_the_paper_stand_beside_ours(tmp_path):
    for name, shown in (("table4", "| Transformer, one layer more | 1,000 | 69 M |"), ("table3", "")):
        table = table_of(name)
        done = [_outcome(job, 30.0) for job in jobs_of(table, SMOKE, (1,), tmp_path)]
        text = markdown(findings(table, SMOKE, done, "…"))
        assert ("paper's parameters" in text) == bool(shown)
        assert shown in text


def _save_alike(job, term):
    """Store outcomes whose examples are all alike, so that the interval is that of the seeds."""
    job.folder.mkdir(parents=True)
    save_outcomes(job.folder / OUTCOMES, {job.column.split: np.tile([term, 1.0], (8, 1))})


def test_the_report_says_what_agrees_and_what_failed(tmp_path):
    table = table_of("table5").choose(["sva"], ["Global", "Enc(MW)", "Enc(AW)"])
    jobs = jobs_of(table, SMOKE, (1, 2), tmp_path)
    values = {"Global": (90.0, 90.2), "Enc(MW)": (91.0, 91.2), "Enc(AW)": (89.0, 89.2)}
    for job in jobs[:-1]:
        _save_alike(job, values[job.row.key][job.seed - 1] / 100)
    outcomes = [_outcome(job, values[job.row.key][job.seed - 1]) for job in jobs[:-1]]
    outcomes.append(_outcome(jobs[-1], 0.0, problem="the loss is not finite"))
    found = findings(table, SMOKE, outcomes, "diffwindow reproduce …")
    plain, multiplicative, additive = found["columns"][0]["rows"]
    assert (plain["verdict"], multiplicative["verdict"]) == (None, "agrees")
    # one seed left: whatever its gain of -1 is worth, other seeds may differ
    assert additive["verdict"] == "not told apart"
    # in the paper: plain < MW < AW; here AW < plain < MW
    assert found["columns"][0]["pairs"] == (1, 3)
    text = markdown(found)
    assert "the loss is not finite" in text
    assert "| Enc(MW) | 1,000 | 95.95 | 91.10 | 0.14 | 2 | 91.10 | +1.47 | +1.00 ± 0.00 | agrees |" in text
    assert "| accuracy by attractors | unknown | 1 |\n| --- | --- | --- |\n| examples | 4 | 2 |" in text
    assert "| accuracy by length in tokens | 1-10 |\n| --- | --- |\n| examples | 6 |" in text
    assert "| Enc(MW) |  |  | 0.50 | 0.25 |" in text
    assert "ours (smoke)" in text
    write_report(found, tmp_path / "report")
    assert (tmp_path / "report" / REPORT).read_text(encoding="utf-8").startswith("# Accuracy")


def test_a_lower_perplexity_is_the_gain(tmp_path):
    table = table_of("table6").choose([], ["Global", "Dec(MW)", "Dec(AW)"])
    jobs = jobs_of(table, SMOKE, (1, 2), tmp_path)
    values = {"Global": 100.0, "Dec(MW)": 90.0, "Dec(AW)": 105.0}
    for job in jobs:
        _save_alike(job, np.log(values[job.row.key] + job.seed))
    outcomes = [_outcome(job, values[job.row.key] + job.seed) for job in jobs]
    found = findings(table, SMOKE, outcomes, "…")
    _, better, worse = found["columns"][0]["rows"]
    assert (better["gain"]["mean"], worse["gain"]["mean"]) == (10.0, -5.0)
    assert [row["interval"]["gain"] for row in (better, worse)] == pytest.approx([10.0, -5.0])
    # the paper's 46.37 fell to 44.00 and to 44.95
    assert (better["paper_gain"], worse["paper_gain"]) == (pytest.approx(2.37), pytest.approx(1.42))
    assert (better["verdict"], worse["verdict"]) == ("agrees", "contradicts")
    # in the paper MW < AW < plain; here MW < plain < AW
    assert found["columns"][0]["pairs"] == (2, 3)


@pytest.mark.parametrize(("table", "column", "scale", "model"), [
    ("table1", "en-de", "mini", "the average of the last 5 checkpoints"),
    ("table1", "en-de", "smoke", "the average of the last 2 checkpoints"),
    ("table5", "sst", "mini", "the model chosen on validation"),
    ("table6", "lm", "paper", "the model after the last update"),
])  # fmt: skip
def test_the_report_says_which_model_is_evaluated(tmp_path, table, column, scale, model):
    at = scale_of(scale)
    chosen = table_of(table).choose([column], ["Global"])
    (job,) = jobs_of(chosen, at, (1,), tmp_path)
    assert f"; test set; {model}; gains" in markdown(findings(chosen, at, [_outcome(job, 90.0)], "…"))


@pytest.mark.parametrize(("table", "label"), [
    ("table1", "perplexity by token"),
    ("table5", "accuracy, %"),
    ("table6", "perplexity by word"),
])  # fmt: skip
def test_curves_are_labelled_by_what_validations_give(tmp_path, monkeypatch, table, label):
    chosen = table_of(table).choose([], ["Global"])
    jobs = jobs_of(chosen, SMOKE, (1,), tmp_path)
    found = findings(chosen, SMOKE, [_outcome(job, 90.0) for job in jobs], "…")
    for column in found["columns"]:
        column["rows"][0]["learning"] = [(1, 50.0), (2, 40.0)]
    drawn = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, _: drawn.append(figure))
    assert figures.draw_learning(found, tmp_path / "learning.png")
    assert {axes.get_ylabel() for axes in drawn[0].axes} == {label}


def test_many_columns_stand_side_by_side(tmp_path):
    table = table_of("tuning").choose([], ["Global", "Enc(MW)", "Enc(AW)"])
    jobs = jobs_of(table, SMOKE, (1,), tmp_path)
    outcomes = [
        _outcome(job, 80.0 + (job.row.attention == "Enc(AW)")) for job in jobs if job.row.key != "Enc(MW)"
    ]
    text = markdown(findings(table, SMOKE, outcomes, "…"))
    assert "| SST-2, rate 2e-3 | 80.00 | not run | 81.00 (+1.00) |" in text
    assert text.count("validation set, the test set not read") == len(table.columns)
    # what is evaluated there is the validation itself, so it has no column beside it
    assert "| validation |" not in text


def test_a_column_of_the_validation_set_never_evaluates_another(tmp_path, monkeypatch):
    (job,) = _jobs("tuning", ["tuning-base"], ["Global"], tmp_path)
    splits, evaluate = [], evaluation.evaluate_model
    monkeypatch.setattr(evaluation, "evaluate_model", lambda *args: splits.append(args[2]) or evaluate(*args))
    assert run(job) is None
    assert splits == ["valid"]


def test_four_seeds_have_an_interval_over_seeds_beside_the_other(tmp_path):
    table = table_of("table5").choose(["sva"], ["Global", "Enc(AW)"])
    jobs = jobs_of(table, SMOKE, (1, 2, 3, 4), tmp_path)
    outcomes = [_outcome(job, 90.0 + (job.row.key != "Global") * (job.seed % 2) * 2) for job in jobs]
    text = markdown(findings(table, SMOKE, outcomes, "…"))
    assert "| our gain, 95 % interval | over seeds alone | the paper's sign |" in text
    # without outcomes there is that interval alone: gains 2, 0, 2, 0 have ± 3.18 · 1.155 / 2
    assert "| +1.00 | ± 1.84 | not told apart |" in text
    assert "over seeds alone" not in markdown(findings(table, SMOKE, outcomes[:6], "…"))


def test_rows_that_were_not_run_are_said_to_be(tmp_path):
    table = table_of("table5").choose(["sva"], [])
    (job, *_) = jobs_of(table, SMOKE, (1,), tmp_path)
    text = markdown(findings(table, SMOKE, [_outcome(job, 90.0)], "…"))
    assert text.count("not run") == 4


def test_a_report_keeps_what_other_commands_ran(tmp_path):
    arguments = ["reproduce", "table5", "--scale", "smoke", "--jobs", "1", "--out", str(tmp_path)]
    (other,) = jobs_of(table_of("table5").choose(["imdb"], ["Global"]), SMOKE, (1,), tmp_path)
    asked = jobs_of(table_of("table5").choose(["sva"], ["Global"]), SMOKE, (1, 2, 3), tmp_path)
    for job in (other, *asked):
        job.folder.mkdir(parents=True)
        result = _outcome(job, 90.0).result | {"settings": list(arguments_of(job))}
        (job.folder / RESULT).write_text(json.dumps(result))
    done = CliRunner().invoke(app, [*arguments, "--columns", "sva", "--rows", "Global"])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "table5-smoke" / REPORT).read_text(encoding="utf-8")
    assert "## generated data in place of IMDB" in text
    assert "## generated data in place of subject-verb agreement" in text
    assert "SST" not in text
    found = json.loads((tmp_path / "table5-smoke" / JSON).read_text(encoding="utf-8"))
    counts = {column["column"]: column["rows"][0]["ours"]["count"] for column in found["columns"]}
    # seeds that this command did not ask for stay in the report
    assert counts == {"imdb": 1, "sva": 3}


def test_speeds_are_relative_to_the_first_row(translations):
    table = table_of("table4")
    speeds = relative_speeds(table, translations[0].experiment, translations[0].store, rounds=1)
    assert list(speeds) == [row.key for row in table.rows]
    assert speeds["Global"] == 1.0
    assert all(ratio > 0 for ratio in speeds.values())
    found = findings(table, SMOKE, [], "…", speeds)
    assert "| Transformer | 1.00 | 1.00 |" in markdown(found)


def test_the_list_names_every_table():
    listed = CliRunner().invoke(app, ["reproduce", "list"])
    assert listed.exit_code == 0, listed.output
    assert all(f"{name}: " in listed.output for name in ("table1", "table6", "figure3", "expectation"))
