"""The modules that verbs use: each is imported when a verb first uses it, so `--help` is without PyTorch.

A verb imports `diffwindow.data.store` as `from diffwindow.cli.library import data_store`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any


class LazyModule:
    """Stands for a module, which is imported when one of its names is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


if TYPE_CHECKING:
    from diffwindow import files, ops, processes
    from diffwindow.attention import window_module as attention_window_module
    from diffwindow.data import corpora as data_corpora
    from diffwindow.data import download as data_download
    from diffwindow.data import lines as data_lines
    from diffwindow.data import own_files as data_own_files
    from diffwindow.data import prepare as data_prepare
    from diffwindow.data import readers as data_readers
    from diffwindow.data import recipe as data_recipe
    from diffwindow.data import store as data_store
    from diffwindow.data import tokenizer as data_tokenizer
    from diffwindow.decoding import generate as decoding_generate
    from diffwindow.evaluation import evaluate as evaluation_evaluate
    from diffwindow.evaluation import new_files as evaluation_new_files
    from diffwindow.evaluation import windows as evaluation_windows
    from diffwindow.hf import checkpoint as hf_checkpoint
    from diffwindow.hf import fit as hf_fit
    from diffwindow.hf import hub as hf_hub
    from diffwindow.inference import alignment as inference_alignment
    from diffwindow.inference import attention as inference_attention
    from diffwindow.inference import model as inference_model
    from diffwindow.inference import parsing as inference_parsing
    from diffwindow.inference import server as inference_server
    from diffwindow.kernels import doctor as kernels_doctor
    from diffwindow.models import translator as models_translator
    from diffwindow.models import weights as models_weights
    from diffwindow.reproduce import cost as reproduce_cost
    from diffwindow.reproduce import figures as reproduce_figures
    from diffwindow.reproduce import findings as reproduce_findings
    from diffwindow.reproduce import jobs as reproduce_jobs
    from diffwindow.reproduce import own_data as reproduce_own_data
    from diffwindow.reproduce import report as reproduce_report
    from diffwindow.reproduce import scales as reproduce_scales
    from diffwindow.reproduce import tables as reproduce_tables
    from diffwindow.tasks import entries as tasks_entries
    from diffwindow.tasks import metrics as tasks_metrics
    from diffwindow.tasks import model_folder as tasks_model_folder
    from diffwindow.tasks import presets as tasks_presets
    from diffwindow.training import checkpoints as training_checkpoints
    from diffwindow.training import config as training_config
    from diffwindow.training import distributed as training_distributed
    from diffwindow.training import failures as training_failures
    from diffwindow.training import overrides as training_overrides
    from diffwindow.training import records as training_records
    from diffwindow.training import rendezvous as training_rendezvous
    from diffwindow.training import run as training_run
    from diffwindow.view import confusion as view_confusion
    from diffwindow.view import figures as view_figures
    from diffwindow.view import panels as view_panels
    from diffwindow.view import payload as view_payload
    from diffwindow.view import reading as view_reading
else:

    def __getattr__(name: str) -> LazyModule:
        room = name.partition("_")[0]
        if not room or find_spec(f"diffwindow.{room}") is None:
            raise AttributeError(f"module 'diffwindow.cli.library' has no attribute {name!r}")
        return LazyModule(f"diffwindow.{name.replace('_', '.', 1)}")
