"""What the demo says and draws."""

import json

import numpy as np

from diffwindow.cli.demo import WIDTH, Row, _format_lines, choose_sentence


def row(attention, accuracy, p):
    by_attractors = {"0": 100.0, "1": 99.0, "2": 98.0, "3+": 97.0}
    return Row(attention, 1_234_567, accuracy, 97.9, 100.0, by_attractors, p, 0.5)


def test_the_first_sentence_says_what_was_shown():
    lines = _format_lines(
        [row("Global", 87.7, 1.0), row("Enc(MW)", 95.0, 1e-9), row("Enc(AW)", 98.9, 1e-9)], 2000
    )
    text = " ".join(lines)
    assert text.startswith(
        "The window model is right in 98.9 % of 2,000 sentences, the plain one in 87.7 % (one seed, p < 0.001"
    )
    assert max(map(len, lines)) <= WIDTH


def test_no_difference_is_called_none():
    text = " ".join(_format_lines([row("Global", 98.8, 1.0), row("Enc(AW)", 98.9, 0.16)], 2000))
    assert text.startswith("This seed shows no difference: ")
    assert "(p = 0.160)" in text


def test_the_picture_is_of_a_sentence_that_only_windows_get_right():
    right, other = np.array([True, True, True, True]), np.array([True, False, False, False])
    gain, told = np.array([0.9, 0.8, 0.1, 0.5]), "the plain model is wrong here, the window model right"
    # the first needs no window, the second has no attractor; of the others, the one with the larger gain
    assert choose_sentence(right, other, gain, np.array([3, 0, 2, 1])) == (3, told)
    assert choose_sentence(right, other, gain, np.zeros(4, int)) == (1, told)
    index, told = choose_sentence(other, right, gain, np.array([0, 1, 2, 3]))
    assert (index, told.split()[:3]) == (1, ["there", "is", "no"])


def test_demo_compares_three_attentions_and_draws(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("demo", "--updates", "2", "--rows", "100")
    assert code == 0
    table = json.loads((tmp_path / "demo/demo.json").read_text())["table"]
    assert [row["attention"] for row in table] == ["Global", "Enc(MW)", "Enc(AW)"]
    assert all(row["attention"] in out for row in table)
    # after two updates nobody has learned anything, and the demo says so
    assert out.startswith("This seed shows no difference: the window model is right in ")
    assert max(map(len, out.splitlines())) <= 80
    assert "figure: demo/windows.png" in out
    assert (tmp_path / "demo/windows.png").read_bytes().startswith(b"\x89PNG")
    assert "Enc(AW): 2 updates" in err
    # done runs are not trained again, and say the same
    again = run("demo", "--updates", "2", "--rows", "100")[1]
    assert again.splitlines()[:8] == out.splitlines()[:8]
    code, _, err = run("demo", "--updates", "2", "--rows", "200")
    said = "diffwindow: demo/data has 100 sentences of seed 1, not 200 of seed 1; choose another --out\n"
    assert (code, err) == (2, said)
    code, _, err = run("demo", "--updates", "2", "--rows", "100", "--seed", "2")
    assert (code, "of seed 1, not 100 of seed 2" in err) == (2, True)
