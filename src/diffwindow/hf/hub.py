"""Our models on the Hugging Face hub: `from_pretrained("user/name", revision=…)` and `push_to_hub`."""

import shutil
from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelCard, ModelHubMixin, snapshot_download

from diffwindow.checks import check_bool
from diffwindow.files import read_json
from diffwindow.hf.checkpoint import PICTURE, card_text, check_scores, draw_windows
from diffwindow.models import classifier, language_model, translator
from diffwindow.models.model import CONFIG, TOKENIZER, Model
from diffwindow.models.weights import MANIFEST, WEIGHTS, verify, write_manifest
from diffwindow.tasks.model_folder import TASK, find_model, read_kind

# What a model consists of: nothing else is downloaded.
FILES = (CONFIG, WEIGHTS, TOKENIZER, TASK, MANIFEST)


class HubModel(ModelHubMixin, library_name="diffwindow", tags=["diffwindow"]):
    """The hooks by which the hub's library saves and loads a model of ours.

    A model that was loaded from a folder takes the folder's tokenizer and task along when it is pushed.
    """

    # where the model was loaded from, the run that it is of, and whether to draw its windows
    _source: Path | None = None
    _run: Path | None = None
    _picture = False

    def _save_pretrained(self, save_directory: Path) -> None:
        Model.write_files(self, save_directory)  # type: ignore[arg-type]
        state: dict[str, Any] = {}
        if self._source is not None:
            for name in (TOKENIZER, TASK):
                if (self._source / name).is_file():
                    shutil.copyfile(self._source / name, save_directory / name)
            if (self._source / MANIFEST).is_file():
                state = verify(self._source)
        # before the picture and the card, which are no part of the model
        write_manifest(save_directory, state)
        if self._run is not None and self._picture:
            self._picture = draw_windows(self._run, save_directory / PICTURE)

    # not the hub's hook, _from_pretrained: before it, the hub's library parses our config by itself
    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
    ) -> Self:
        """Make the model of a folder or a repository on the hub; raise ValueError if it is damaged."""
        model_id, folder = str(pretrained_model_name_or_path), Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            folder = Path(
                snapshot_download(
                    model_id, revision=revision, cache_dir=cache_dir, force_download=force_download,
                    local_files_only=local_files_only, token=token, allow_patterns=list(FILES),
                )
            )  # fmt: skip
        # the method of our own class, which verifies the files
        load: Any = Model.from_pretrained
        model: Self = load.__func__(cls, folder)
        model._source = folder
        return model

    def generate_model_card(
        self, repo_id: str = "a model", scores: dict[str, Any] | None = None, *_: Any, **__: Any
    ) -> ModelCard:
        """Write the card from the run, if the model is of one."""
        model: Any = self
        return ModelCard(card_text(model, repo_id, run=self._run, scores=scores, picture=self._picture))


class Translator(HubModel, translator.Translator):  # type: ignore[misc]
    """A Translator that loads from the hub and can be pushed to it."""


class LanguageModel(HubModel, language_model.LanguageModel):  # type: ignore[misc]
    """A LanguageModel that loads from the hub and can be pushed to it."""


class Classifier(HubModel, classifier.Classifier):  # type: ignore[misc]
    """A Classifier that loads from the hub and can be pushed to it."""


HUB_MODELS: dict[str, type[HubModel]] = {
    "translator": Translator,
    "language_model": LanguageModel,
    "classifier": Classifier,
}


def push_run(
    run: str | Path,
    repo_id: str,
    *,
    scores: str | Path | None = None,
    picture: bool = True,
    private: bool | None = None,
    branch: str | None = None,
    token: str | None = None,
) -> str:
    """Push the model of a run folder, with a card made from the run, and return the address of the commit.

    `scores` is a file with what `diffwindow evaluate RUN --json` printed of this run. The picture shows a
    window on a sentence of the run's validation set. A model folder that is not of a run has a card without
    data, training and picture.
    """
    check_bool("picture", picture)
    folder = find_model(Path(run))
    model: Any = HUB_MODELS[read_kind(folder)].from_pretrained(folder)
    if folder != Path(run):
        model._run, model._picture = Path(run), picture
    figures = None if scores is None else read_json(Path(scores))
    if figures is not None:
        # before the repository is made
        check_scores(model, figures)
    address: str = model.push_to_hub(
        repo_id, private=private, branch=branch, token=token, commit_message="Add the model",
        model_card_kwargs={"repo_id": repo_id, "scores": figures},
    )  # fmt: skip
    return address
