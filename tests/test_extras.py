"""What is declared, what is imported, and what is said where a package is missing."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from diffwindow import extras

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GROUPS = PROJECT["optional-dependencies"]
MODULE_OF = {"PyYAML": "yaml"}


def names(requirements: list[str]) -> set[str]:
    """Return what these requirements install, as it is imported."""
    found = {re.match(r"[\w-]+", line)[0] for line in requirements}
    return {MODULE_OF.get(name, name) for name in found} - {"diffwindow"}


def test_the_table_of_extras_is_that_of_the_project():
    declared = {group: names(GROUPS[group]) for group in GROUPS if group not in ("dev", "docs")}
    assert declared == {extra: set(packages) for extra, packages in extras.EXTRAS.items()}


def test_dev_includes_every_other_extra():
    included = re.search(r"diffwindow\[(.*)\]", GROUPS["dev"][0])[1]
    # a stub stands for wandb in the tests; the real one is tested where it is installed
    assert set(included.split(",")) == set(GROUPS) - {"dev", "wandb"}


def test_everything_imported_is_declared():
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.partition(".")[0])
    third_party = imported - set(sys.stdlib_module_names) - {"diffwindow"}
    optional = {package for packages in extras.EXTRAS.values() for package in packages}
    assert third_party <= names(PROJECT["dependencies"]) | optional


def test_only_lower_bounds_are_declared_and_constraints_hold_them_all():
    held = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    held = {name.lower().replace("_", "-"): version for name, version in held.items()}
    for line in [*PROJECT["dependencies"], *(line for group in GROUPS.values() for line in group)]:
        requirement = line.partition(";")[0]
        assert not re.search(r"<|==|~", requirement), requirement
        name = re.match(r"[\w-]+", line)[0].lower().replace("_", "-")
        assert name in held or name == "diffwindow", f"constraints.txt lacks {name}"
    assert "+" not in held["torch"], "a local version would bind to one machine's wheel"
    assert "hatchling" in held


def hidden(packages: list[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run code where these packages are not installed."""
    lines = [f"import sys; sys.modules.update(dict.fromkeys({packages!r}))", code]
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("package", "extra", "verb"),
    [("typer", "toolkit", "--help"), ("tokenizers", "toolkit", "prepare reorder --out OUT")],
)
def test_a_verb_names_the_extra_it_needs(package, extra, verb, tmp_path):
    arguments = verb.replace("OUT", str(tmp_path / "out")).split()
    code = f"sys.argv[1:] = {arguments!r}; from diffwindow.__main__ import main; main()"
    done = hidden([package], code)
    said = f"diffwindow: this needs the package {package}: pip install 'diffwindow[{extra}]'\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_python_names_the_extra_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    from diffwindow.view.figures import attention_figure

    with pytest.raises(
        extras.MissingExtraError, match=r"needs the package matplotlib: .*diffwindow\[toolkit\]"
    ):
        attention_figure([[]], queries=[], keys=[])


def test_the_core_works_without_any_extra():
    optional = [package for packages in extras.EXTRAS.values() for package in packages]
    code = """
import torch
from diffwindow import Classifier, LanguageModel, Translator, WindowAttention
x = torch.randn(1, 4, 8)
WindowAttention(8, num_heads=2)(x, x, x)
try:
    import diffwindow.training
except ModuleNotFoundError as error:
    print(error)
"""
    done = hidden(optional, code)
    assert done.stdout == "this needs the package matplotlib: pip install 'diffwindow[toolkit]'\n", (
        done.stderr
    )


@pytest.mark.slow
def test_the_package_imports_where_unix_modules_do_not_exist():
    code = """
import filelock, sacrebleu, tensorboard, tokenizers, torch, typer
import torch.utils.tensorboard
# what others import is theirs to guard
import huggingface_hub, transformers.generation, transformers.masking_utils, transformers.modeling_utils
import starlette.testclient, uvicorn
from importlib import import_module
from pkgutil import walk_packages
sys.modules.update(dict.fromkeys(["fcntl", "grp", "pwd", "resource", "termios"]))
import diffwindow
for module in walk_packages(diffwindow.__path__, "diffwindow."):
    import_module(module.name)
print("done")
"""
    done = hidden([], code)
    assert done.stdout == "done\n", done.stderr
