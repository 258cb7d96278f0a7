"""Fence the doctests of docstrings, so that Markdown shows them as code."""

import re

import griffe


class FencedDoctests(griffe.Extension):
    """Wrap each doctest of a docstring in a code fence."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Rewrite the docstrings of a package that was just loaded."""
        _rewrite(pkg)


def _rewrite(thing: griffe.Object) -> None:
    if thing.docstring is not None:
        thing.docstring.value = fenced(thing.docstring.value)
    for member in thing.members.values():
        if isinstance(member, griffe.Object):
            _rewrite(member)


def fenced(text: str) -> str:
    """Return a docstring with its doctests in fences; a blank line ends a doctest.

    >>> fenced("Add.\\n\\n>>> 1 + 1\\n2\\n").count("```")
    2
    """
    return re.sub(r"(?m)^>>> .*(?:\n(?!\n).+)*", r"```pycon\n\g<0>\n```", text)
