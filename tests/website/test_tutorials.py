"""Each tutorial is a script that runs, and its page shows it."""

import pytest

from website.tutorials import PAGES, PICTURE, SCRIPTS, cells, render

NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))


def test_every_page_has_a_script():
    assert sorted(path.stem for path in PAGES.glob("*.md")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_the_script(name):
    """`python -m website.tutorials NAME` writes it anew."""
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    rest = page
    for kind, text in cells((SCRIPTS / f"{name}.py").read_text(encoding="utf-8")):
        shown = text if kind == "markdown" else f"```python\n{text}\n```"
        before, found, rest = rest.partition(shown)
        assert found, f"{name}.md lacks\n{shown}"
        # between two cells there is nothing but what the code printed
        assert not before.strip() or before.strip().startswith("```text\n"), before
    assert all((PAGES / picture).is_file() for picture in PICTURE.findall(page))


def test_a_cell_s_output_follows_it():
    page = render("# %% [markdown]\n# # Two\n# %%\nx = 1\n# %%\nprint(x + 1)\n")
    assert page == "# Two\n\n```python\nx = 1\n```\n\n```python\nprint(x + 1)\n```\n\n```text\n2\n```\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("default")
def test_the_script_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = render((SCRIPTS / f"{name}.py").read_text(encoding="utf-8"))
    assert all((tmp_path / picture).stat().st_size > 1000 for picture in PICTURE.findall(page))
