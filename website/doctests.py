"""Change what is read from the code for the reference: doctests become code, options show their defaults."""

import re

import griffe


class Reference(griffe.Extension):
    """Wrap each doctest in a code fence; give options that are taken as keywords the defaults they have."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Rewrite the docstrings of a package that was just loaded."""
        _rewrite(pkg)

    def on_function(self, *, func: griffe.Function, **_: object) -> None:
        """Show the defaults of options, which griffe leaves out; it runs after griffe's own extension."""
        options = func.package.get_member("checks.Options") if func.package.name == "diffwindow" else None
        for parameter in func.parameters:
            if parameter.default == "..." and options is not None:
                parameter.default = options[parameter.name].value
        if func.docstring is not None:
            # those options again, which the docstring describes itself
            for section in list(func.docstring.parsed):
                if section.kind is griffe.DocstringSectionKind.parameters:
                    section.value[:] = [one for one in section.value if one.value != "..."]
                    if not section.value:
                        func.docstring.parsed.remove(section)


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
