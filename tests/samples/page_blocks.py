"""The fenced blocks of a page, and what runs them."""

import contextlib
import io
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from diffwindow.cli import main

# Sizes that make any training of a page short.
TINY = (
    "model.embed_dim=16",
    "model.ffn_dim=16",
    "model.num_heads=2",
    "train.max_updates=2",
    "train.save_every=1",
)
RUNS = ("python", "sh", "console")
FENCE = re.compile(
    r"^(?:<!-- illustration: (?P<reason>.+?) -->\n|<!-- (?P<gate>run|test) -->\n)?"
    r"```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Block:
    """A fenced block; `expected` is the output that the page shows for it."""

    line: int
    language: str
    code: str
    reason: str = ""
    expected: str | None = None


def blocks(text: str) -> list[Block]:
    """Return the blocks that run, each with the text block that follows it as its output."""
    found: list[Block] = []
    end = -1
    for fence in FENCE.finditer(text):
        between = text[end : fence.start()] if end >= 0 else "x"
        if fence["language"] == "text" and found and not between.strip() and not fence["reason"]:
            found[-1].expected = fence["code"]
        if fence["language"] in RUNS:
            line = text.count("\n", 0, fence.start("code"))
            reason = fence["reason"] or ("the gate runs it" if fence["gate"] else "")
            found.append(Block(line, fence["language"], fence["code"], reason))
        end = fence.end() if fence["language"] in RUNS else -1
    return found


def commands(code: str) -> list[list[str]]:
    """Return the commands of a shell block, without comments."""
    lines = code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line.removeprefix("$ "), comments=True))]


def run_block(block: Block, names: dict[str, object], tiny: tuple[str, ...]) -> str:
    """Run a block in the current folder; return what it prints on stdout."""
    if block.language == "python":
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(block.code, f"<line {block.line}>", "exec"), names)
        return out.getvalue()
    code, expected = block.code, None
    if block.language == "console":
        lines = code.splitlines(keepends=True)
        code = "".join(line for line in lines if line.startswith("$ "))
        expected = "".join(line for line in lines if not line.startswith("$ "))
    printed = "".join(run_command(words, tiny) for words in commands(code))
    if expected:
        assert matches(expected, printed), f"the page shows\n{expected}\nbut it is\n{printed}"
    return printed


def run_command(words: list[str], tiny: tuple[str, ...]) -> str:
    """Run a `diffwindow` command, with `<` and `>`, in this process; return its stdout."""
    if words[0] != "diffwindow":
        raise ValueError(f"{shlex.join(words)} is not a diffwindow command; mark it as an illustration")
    arguments, source, sink = [], None, None
    rest = iter(words[1:])
    for word in rest:
        if word == "<":
            source = next(rest)
        elif word == ">":
            sink = next(rest)
        else:
            arguments.append(word)
    if arguments[0] == "train":
        arguments += tiny
    text = Path(source).read_bytes() if source else b""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), io.StringIO()
    argv, stdin, code = sys.argv, sys.stdin, None
    sys.argv, sys.stdin = ["diffwindow", *arguments], io.TextIOWrapper(io.BytesIO(text), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as done:
        code = done.code
    finally:
        sys.argv, sys.stdin = argv, stdin
    assert code in (0, None), f"{shlex.join(words)}: exit {code}: {err.getvalue()}"
    printed = out.buffer.getvalue().decode("utf-8")
    if sink:
        Path(sink).write_text(printed, encoding="utf-8")
        return ""
    return printed


def matches(expected: str, printed: str) -> bool:
    """Compare lines, trailing space aside; `…` alone stands for any lines, and inside a line for any text."""
    parts = ["(.*\n)?" if line.strip() == "…" else _line(line) for line in expected.strip("\n").splitlines()]
    text = "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


def _line(line: str) -> str:
    return "[^\n]*".join(re.escape(piece) for piece in line.rstrip().split("…")) + "\n"
