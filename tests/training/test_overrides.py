import pytest

from diffwindow.tasks.entries import TASKS
from diffwindow.tasks.presets import NAMES, model_preset
from diffwindow.training.config import differences
from diffwindow.training.overrides import resolve


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_builds(name):
    config = resolve(name)
    fields = {"vocab_size": 100, **config.model_options}
    assert TASKS[config.task.kind].config_class(**fields).count_parameters() > 0


def test_there_is_a_preset_for_each_experiment():
    expected = {"sst2", "imdb", "sva", "multi30k-en-de", "wmt14-en-de", "wmt14-en-fr", "lm1b", "wikitext2"}
    assert expected | {"agreement", "reorder"} <= set(NAMES)


def test_the_translation_presets_are_the_papers():
    train = resolve("wmt14-en-de").train
    assert (train.betas, train.eps, train.lr, train.warmup) == ((0.9, 0.98), 1e-8, 7e-4, 4000)
    assert (train.schedule, train.warmup_from, train.clip_norm) == ("inverse_sqrt", 1e-7, None)
    assert (train.max_tokens, train.accumulate, train.max_updates) == (4096, 8, 200_000)
    assert (train.final, train.average_last, train.save_every) == ("average", 5, "epoch")
    assert resolve("wmt14-en-de").task.label_smoothing == 0.1
    assert resolve("wmt14-en-fr").train.max_updates == 150_000
    assert [resolve(name).train.max_updates for name in ("sst2", "imdb", "sva")] == [3_000, 10_000, 10_000]


def test_the_language_model_preset_is_the_papers():
    train = resolve("lm1b").train
    assert (train.max_tokens, train.accumulate, train.max_updates) == (4096, 4, 100_000)
    assert resolve("lm1b").task.label_smoothing == 0.1
    assert model_preset("lm1b").vocab_size == 32_000


def test_flags_win_over_overrides_and_those_over_the_preset():
    config = resolve("sst2", ["train.seed=3", "train.lr=1e-3"], {"train.seed": 4, "attention": "Enc(AW)"})
    assert (config.train.seed, config.train.lr, config.attention) == (4, 1e-3, "Enc(AW)")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.max_update=3", "no key 'train.max_update'; did you mean 'train.max_updates'"),
        ("max_updates=3", "no key 'max_updates'; did you mean 'train.max_updates'"),
        ("train.zzz=3", "no key 'train.zzz'; train has max_updates"),
        ("train.max_updates=many", "train.max_updates=many: Input should be a valid integer"),
        ("train.save_every=0", "train.save_every=0: 0 is neither a number of updates, 1 or more, nor epoch"),
        ("train.save_every=epochs", "'epochs' is neither a number of updates, 1 or more, nor epoch"),
        ("train.lr=nan", "train.lr=nan: Input should be a finite number"),
        ("train.lr=2001-02-03", "train.lr=2001-02-03: Input should be a valid number"),
        ("train.lr=!!bool maybe", "the value is not valid YAML; quote it"),
        ("start=[1]", "start=[1]: Input should be a valid string"),
        ("train.max_updates=0", "greater than or equal to 1"),
        ("train.final=mean", "'last', 'best' or 'average'"),
        ("train.keep_last=2", "train.average_last=5 needs as many checkpoints, but train.keep_last=2"),
        ("train", "is not key=value"),
        ("train.max_updates.x=1", "train.max_updates is a value, not a section"),
        ("model.embed_dims=8", "did you mean 'embed_dim'"),
        ("attention=Enc(XW)", "XW"),
        ("train.lr=[", "not valid YAML"),
        ("train.betas=[0.9]", "train.betas=[0.9] has too few values"),
        ("model.attention=Enc(AW)", "set attention=…"),
        ("model.vocab_size=100", "the corpus decides the vocabulary"),
        ("attention=Enc(AW,Dim=999)", "boundary_dim=999 is above the width of a head"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_place(override, message):
    with pytest.raises(ValueError, match=r".") as caught:
        resolve("multi30k-en-de", [override])
    assert message in str(caught.value)
    assert override in str(caught.value)


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ValueError, match="sst2"):
        resolve("sst")


def test_a_file_changes_a_preset(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("preset: sst2\nattention: Enc(MW)\ntrain:\n  max_updates: 7\n  betas: [0.9, 0.99]\n")
    config = resolve(str(path), ["train.seed=5"])
    assert (config.name, config.attention, config.train.max_updates) == ("sst2", "Enc(MW)", 7)
    assert (config.train.betas, config.train.seed) == ((0.9, 0.99), 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("preset: sst2\ntrain:\n  seed: 1\n  max_update: 7\n", "mine.yaml:4: there is no key"),
        ("preset: sst2\ntrain:\n  max_updates: x\n", "mine.yaml:3: train.max_updates='x'"),
        ("preset: sst2\nmodel: {embed_dim: 9}\n", "mine.yaml:2: "),
        ("preset: sst2\nattention: Enc(AW)\nmodel:\n  dropout: 0\n  embed_dim: 9\n", "mine.yaml:5: "),
        ("preset: sst2\nattention: Enc(Q)\nmodel:\n  embed_dim: 8\n", "mine.yaml:2: "),
        ("preset: reorder\ntrain:\n  seed: 1\n  keep_last: 2\n", "mine.yaml:4: train.average_last=5 needs"),
        ("preset: sst2\ntrain:\n\t- 1\n", "mine.yaml:3: not valid YAML"),
        ("- 1\n", "mine.yaml: a config has sections"),
        ("taks: {kind: lm}\n", "mine.yaml:1: there is no key 'taks"),
        ("", "mine.yaml: a config has sections"),
        (
            "preset: sst2\ntrain:\n  lr: 1\n  lr: 2\n",
            "mine.yaml:4: not valid YAML: the key 'lr' is there twice",
        ),
        ("preset: sst2\ntrain: {? [lr] : 2}\n", "mine.yaml:2: not valid YAML: a key is a name"),
        ("preset: sst2\ntrain: {}\nmodle: {}\n", "mine.yaml:3: there is no key 'modle'"),
        ("preset: sst2\ntrain: {lr: !rate 3}\n", "mine.yaml:2: not valid YAML"),
        ("preset: sst2\ntrain: {lr: !!int x}\n", "mine.yaml:2: not valid YAML: 'x' is not of the type int"),
        ("preset: sst2\ndata: {path: 3}\n", "mine.yaml:2: data.path=3: Input should be a valid string"),
        ("preset: sst2\nstart: .\ntask: 3\n", "mine.yaml:3: task=3: Input should be"),
        ("preset: sst2\nname: \udcff\n", "mine.yaml:2: not UTF-8 at byte 0xff"),
        ("task: {kind: lm}\ndata: {corpus: lm1b}\n", "mine.yaml: the key 'train.max_updates' is missing"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(ValueError, match=r".") as caught:
        resolve(str(path))
    assert message in str(caught.value)


def test_a_file_without_a_preset_names_its_task(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("task: {kind: classification}\ndata: {path: none}\ntrain: {max_updates: 9}\n")
    config = resolve(str(path))
    assert (config.name, config.task.kind, config.train.max_updates) == ("mine", "classification", 9)
    # the values that all presets of the task have
    assert (config.train.watch, config.train.final) == ("accuracy", "best")
    # the name before version 0.3
    path.write_text("task: {kind: lm}\ndata: {path: none}\ntrain: {max_updates: 9}\n")
    assert resolve(str(path)).task.kind == "language-model"


def test_a_missing_file_is_one_sentence():
    with pytest.raises(ValueError, match=r"cannot read none.yaml: No such file"):
        resolve("none.yaml")


def test_a_mistake_of_several_keys_names_them_and_the_override():
    with pytest.raises(
        ValueError, match=r"^train.valid_every=null: train.final=best and train.patience need validations"
    ):
        resolve("sst2", ["train.max_updates=5", "train.valid_every=null"])


def test_values_are_kept_as_the_model_reads_them():
    one = resolve("sst2", ["attention=Enc(AW, Seg)", "model.dropout=1e-1"])
    other = resolve("sst2", ["attention=Enc(AW,Seg=5)", "model.dropout=0.1"])
    assert one == other
    assert (one.attention, one.model["dropout"]) == ("Enc(AW,Seg)", 0.1)


def test_a_damaged_run_is_named(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        resolve(str(tmp_path))


def test_a_model_field_that_a_run_does_not_name_has_its_default():
    now = resolve("sst2")
    before = now.model_copy(update={"model": {k: v for k, v in now.model.items() if k != "init"}})
    assert differences(before, now) == {}
    assert differences(before, resolve("sst2", ["model.init=separate"])) == {
        "model.init": ("stacked", "separate")
    }


def test_differences_are_named():
    old, new = resolve("sst2"), resolve("sst2", ["train.lr=1", "model.num_layers=3"])
    assert differences(old, new) == {"train.lr": (7e-4, 1.0), "model.num_layers": (2, 3)}


@pytest.mark.parametrize("name", ["../../x", "/x", "..", "", "a/b", "a\\b", "C:x", "a\nb"])
def test_a_name_cannot_lead_out_of_its_folder(name):
    with pytest.raises(ValueError, match="a name has no slash"):
        resolve("agreement", (), {"name": name})


def test_values_are_numbers_that_json_has():
    with pytest.raises(ValueError, match=r"^train\.max_loss=\.inf: Input should be a finite number"):
        resolve("agreement", ["train.max_loss=.inf"])
