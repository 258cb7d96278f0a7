"""`generate` as people call it, and what it hands the model."""

from diffwindow.decoding import Decoding
from diffwindow.decoding import generate as generating
from diffwindow.inference.model import LoadedModel
from diffwindow.special_tokens import BOS, EOS
from diffwindow.tasks.model_folder import ModelFolder


def test_generate_continues_the_prompt_the_same_for_a_seed(run, runs):
    arguments = [
        "generate",
        runs / "language",
        "--prompt",
        "the keys",
        "--n-best",
        "3",
        "--max-new-tokens",
        "8",
    ]
    code, out, _ = run(*arguments, "--top-k", "5", "--top-p", "0.9", "--seed", "7")
    assert code == 0
    assert len(out.splitlines()) == 3
    assert all(line.startswith("the keys") for line in out.splitlines())
    assert run(*arguments, "--top-k", "5", "--top-p", "0.9", "--seed", "7")[1] == out
    _, greedy, _ = run("generate", runs / "language", "--temperature", "0", "--max-new-tokens", "3")
    assert len(greedy.splitlines()) == 1


def test_a_line_end_in_a_sample_does_not_break_its_line(run, runs, monkeypatch):
    monkeypatch.setattr(LoadedModel, "generate", lambda *_: ["one\r\ntwo", "three"])
    assert run("generate", runs / "language", "--n-best", "2")[1] == "one two\nthree\n"


def test_generation_reads_and_writes_as_the_corpus_was_prepared(runs, monkeypatch):
    trained = ModelFolder.read(runs / "language")
    start, opened = generating.start_continuation, []

    def recording(model, prompt, *, limit):
        opened.append(prompt[0].tolist())
        return start(model, prompt, limit=limit)

    monkeypatch.setattr(generating, "start_continuation", recording)
    greedy = Decoding(beam=1, max_new_tokens=1)
    arguments = (trained.model, trained.tokenizer, "the keys.", greedy)
    generating.continue_text(*arguments)
    (text,) = generating.continue_text(*arguments, moses="en", running_text=True)
    assert text.startswith("the keys.")
    assert opened == [
        [BOS, *trained.tokenizer.encode("the keys.")],
        [EOS, *trained.tokenizer.encode("the keys .")],
    ]
