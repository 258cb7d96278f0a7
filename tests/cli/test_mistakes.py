"""Mistakes in the commands of trained models."""


def test_mistakes_are_one_sentence_and_code_2(run, runs):
    for arguments in (
        ("evaluate", runs / "nowhere"),
        ("evaluate", runs / "plain", "--data", runs / "translator/data"),
        ("evaluate", runs / "plain", "--split", "tset"),
        ("evaluate", runs / "plain", "--device", "tpu7"),
        ("translate", runs / "plain"),
        ("translate", runs / "translator", "--n-best", "9"),
        ("translate", runs / "translator", "--input", runs / "nothing.txt"),
        ("generate", runs / "plain"),
        ("generate", runs / "language", "--temperature", "0", "--n-best", "2"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), arguments
        assert err.startswith("diffwindow: "), arguments
        assert err.count("\n") == 1, err
