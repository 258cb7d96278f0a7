"""The verb `evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from diffwindow.cli.data import File
from diffwindow.cli.errors import check_folder, report_interrupt, report_warnings
from diffwindow.cli.evaluation_report import format_metrics, format_report
from diffwindow.cli.library import (
    attention_window_module,
    data_readers,
    data_recipe,
    data_store,
    evaluation_evaluate,
    evaluation_new_files,
    files,
    inference_model,
    models_translator,
    models_weights,
    processes,
    tasks_model_folder,
    training_distributed,
    view_confusion,
    view_figures,
)
from diffwindow.cli.options import (
    AsJson,
    Device,
    LabelColumn,
    TextColumn,
    WindowRule,
    change_decoding,
    check_partners,
    check_picture,
    takes_decoding,
)
from diffwindow.cli.streams import STANDARD, input_name, open_input, parse_path
from diffwindow.progress import show_progress

if TYPE_CHECKING:
    from diffwindow.evaluation.evaluate import Evaluation
    from diffwindow.evaluation.new_files import NewFiles
    from diffwindow.tasks.model_folder import ModelFolder

OWN_CORPUS = "the corpus of the run"


@takes_decoding("beam", "length_penalty")
def evaluate(
    changes: Mapping[str, Any],
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run folder, or a model folder.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A prepared corpus or a folder with its raw files; that of the run by default."),
    ] = None,
    split: Annotated[str, typer.Option(help="Which part of the corpus.")] = "test",
    source: Annotated[File, typer.Option(help="New sentences to translate, with --reference.")] = None,
    reference: Annotated[File, typer.Option(help="Their translations by people.")] = None,
    labels: Annotated[File, typer.Option(help="New labelled text: .tsv, .csv or JSON lines.")] = None,
    text: Annotated[File, typer.Option(help="New text for a language model.")] = None,
    hypothesis: Annotated[
        File,
        typer.Option(
            parser=parse_path,
            metavar="FILE",
            help="Translations by any system, with --reference and without a run; - is stdin.",
        ),
    ] = None,
    target_lang: Annotated[
        str | None, typer.Option(help="Language of the translations, if the corpus does not know it.")
    ] = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    window_rule: WindowRule = "soft",
    against: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Another run, compared on the same examples.")
    ] = None,
    confusion: Annotated[
        Path | None, typer.Option(help="Draw the confusion matrix of a classifier: .png, .svg or .pdf.")
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Score a trained model: accuracy and F1, perplexity per word, or three kinds of BLEU and chrF.

    Two runs are compared by sacreBLEU's paired bootstrap (translation), McNemar's exact test (labels) or
    the ratio of their perplexities (translation and text).
    Several processes share the work: torchrun --nproc-per-node 2 -m diffwindow evaluate …
    """
    test_set = {"--data": data, "--source": source, "--labels": labels, "--text": text}
    if hypothesis:
        others = (run, against, confusion, changes or None, text_column, label_column, *test_set.values())
        changed = (split, device, window_rule) != ("test", "auto", "soft")
        if not reference or changed or any(value is not None for value in others):
            raise ValueError("--hypothesis goes with --reference and --target-lang alone, without a run")
        _score_files(hypothesis, reference, target_lang, as_json=as_json)
        return
    if run is None:
        raise ValueError("give the folder of a run, or --hypothesis with --reference")
    chosen = _choose_test_set(test_set, reference)
    check_partners(
        chosen,
        (
            ("--text-column and --label-column", bool(text_column or label_column), ("--labels",)),
            ("--split", split != "test", ("--data", OWN_CORPUS)),
        ),
    )
    for folder in (run, against) if against else (run,):
        check_folder(folder)
    if confusion:
        _check_confusion(confusion, run)
    raw = data if data and not data_store.is_store(data) else None
    given = evaluation_new_files.NewFiles(
        source, reference, labels, text, raw, data_readers.Columns(text_column, label_column)
    )
    split = evaluation_new_files.SPLIT if given.paths and not raw else split
    report = _evaluate_runs(run, against, data, given, split, target_lang, changes, device, window_rule)
    if report is not None:
        if confusion:
            _draw_confusion(report, confusion)
        print(files.to_json(report, indent=2) if as_json else "\n".join(format_report(report)))


def _choose_test_set(test_set: dict[str, Path | None], reference: Path | None) -> str:
    """Return the option that names the test set; raise for two, or for one that cannot be read twice."""
    if (test_set["--source"] is None) != (reference is None):
        raise ValueError("--source and --reference go together: new sentences and their translations")
    chosen = [name for name, path in test_set.items() if path]
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(chosen)} are two test sets; give one")
    for name, path in {**test_set, "--reference": reference}.items():
        if path == STANDARD:
            raise ValueError(f"{name} - is stdin, but a test set is read more than once; save it to a file")
    return chosen[0] if chosen else OWN_CORPUS


def _evaluate_runs(
    run: Path,
    against: Path | None,
    data: Path | None,
    given: NewFiles,
    split: str,
    target_lang: str | None,
    changes: Mapping[str, Any],
    device: str,
    window_rule: str,
) -> dict[str, Any] | None:
    """Evaluate a run, and another on the same examples; return the report in rank 0, None elsewhere."""

    def prepare(folder: Path) -> tuple[ModelFolder, Callable[[], Evaluation]]:
        trained = inference_model.open_model(folder, device=device)
        translates = isinstance(trained.model, models_translator.Translator)
        if (changes or target_lang is not None) and not translates:
            options = "--beam, --length-penalty and --target-lang"
            raise ValueError(f"{options} are for translators, which {folder} is not")
        decoding = change_decoding(inference_model.configured_decoding(folder), changes)
        own = store
        if own is None:
            # each run reads new files with its own tokenizer; a store has one tokenizer
            own = stack.enter_context(evaluation_new_files.new_store(trained, given, split))
        task = trained.task(own)
        if target_lang:
            trained = trained.with_language("target", target_lang)
        evaluate_model = evaluation_evaluate.evaluate_model
        return trained, partial(evaluate_model, trained, task, split, decoding, progress=progress)

    with (
        report_interrupt("nothing was scored"),
        # ranks exchange texts and numbers here, never tensors on a GPU
        training_distributed.connected("cpu") as world,
        processes.sharing(world),
        show_progress(wanted=world.main) as progress,
        ExitStack() as stack,
    ):
        # open everything first, so that a mistake in either run is reported before one is scored
        with world.together():
            store = None if given.paths else inference_model.open_store(run, data)
            if store is not None:
                # hashed here, so that damaged files stop all processes
                store.split(split)
            trained, score = prepare(run)
            # which raises for a rule that does not exist
            attention_window_module.use_window_rule(trained.model, cast(Any, window_rule))
            second = prepare(against) if against else None
        evaluation = score()
        report: dict[str, Any] = {
            "run": str(run),
            "corpus": [str(path) for path in ([store.folder] if store is not None else given.paths)],
            "split": None if store is None else split,
            "attention": trained.model.config.attention,
            "window_rule": window_rule,
            "parameters": trained.model.config.count_parameters(),
            # by which a model card tells whose scores these are
            "weights": models_weights.hash_tensors(trained.model.state_dict()),
            "metrics": evaluation.metrics,
        }
        if second:
            other, score_other = second
            other_evaluation = score_other()
            report["against"] = {
                "run": str(against),
                "attention": other.model.config.attention,
                "metrics": other_evaluation.metrics,
                "comparison": evaluation_evaluate.compare(evaluation, other_evaluation),
            }
    return report if world.main else None


def _check_confusion(path: Path, run: Path) -> None:
    """Raise before anything is scored if there will be no such picture."""
    check_picture("--confusion", path)
    entry = tasks_model_folder.read_entry(tasks_model_folder.find_model(run))
    if entry.name != "classification":
        raise ValueError(f"--confusion is for classifiers, and {run} holds a {entry.noun}")


def _draw_confusion(report: dict[str, Any], path: Path) -> None:
    title = f"{report['run']}: {report['attention']}, {report['split'] or ', '.join(report['corpus'])}"
    with report_warnings():
        view_figures.save_figure(
            view_confusion.confusion_figure(**report["metrics"]["confusion"], title=title), path
        )


def _score_files(hypothesis: Path, reference: Path, language: str | None, *, as_json: bool) -> None:
    """Score the translations of any system against references, line by line."""
    if language:
        data_recipe.check_language(language, "target")
    if hypothesis == reference == STANDARD:
        raise ValueError("--hypothesis and --reference are both -, which is stdin; give a file for one")
    names, texts = [input_name(hypothesis), input_name(reference)], []
    for path in (hypothesis, reference):
        with open_input(path) as content:
            texts.append(list(content))
    if not texts[0] or len(texts[0]) != len(texts[1]):
        raise ValueError(
            f"{names[0]} has {len(texts[0]):,} lines and {names[1]} has {len(texts[1]):,}; "
            "each translation needs its reference"
        )
    metrics = evaluation_evaluate.score_texts(*texts, language=language) | {"sentences": len(texts[0])}
    report = {"hypothesis": names[0], "reference": names[1], "metrics": metrics}
    lines = [f"{names[0]} against {names[1]}", *format_metrics(metrics)]
    print(files.to_json(report, indent=2) if as_json else "\n".join(lines))
