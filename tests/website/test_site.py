"""The build of the site finds what is broken, in a small site with the configuration of the real one."""

from pathlib import Path

import pytest
import yaml

from website import check
from website.build import build
from website.doctests import fenced

ROOT = Path(__file__).parents[2]
HOME = "# Home\n\n[the other](other.md#there)\n\n$\\phi_l$ and\n\n$$\nM = F \\odot G\n$$\n"
READER = "diffwindow.notation.parse_attention"
OTHER = f"# Other\n\n## There\n\n[`parse_attention`][{READER}]\n\n::: {READER}\n"


@pytest.fixture
def tree(tmp_path):
    """A site of two pages."""
    for name in ("src", "website"):
        (tmp_path / name).symlink_to(ROOT / name)
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    config["nav"] = [{"Home": "index.md"}, {"Section": [{"Other": "other.md"}]}]
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config))
    (tmp_path / "docs/assets").mkdir(parents=True)
    (tmp_path / "docs/assets/site.css").write_text("")
    (tmp_path / "docs/index.md").write_text(HOME)
    (tmp_path / "docs/other.md").write_text(OTHER)
    return tmp_path


def test_a_whole_site_has_no_problems_and_formulas_without_a_script(tree):
    assert build(tree) == []
    home = (tree / "site/index.html").read_text()
    assert home.count("<math") == 2
    assert "arithmatex" not in home
    assert "Read a notation" in (tree / "site/other.html").read_text()


def test_the_builder_refuses_broken_links_anchors_and_references(tree):
    broken = "\n[a](missing.md) [b](other.md#nowhere) [c][missing] [`d`][diffwindow.nothing]\n"
    (tree / "docs/index.md").write_text(HOME + broken)
    (problem,) = build(tree)
    assert problem.count("page does not exist\n    ╭") == 1
    assert problem.count("anchor does not exist\n    ╭") == 1
    assert problem.count("unresolved autoref\n    ╭") == 2


def test_the_builder_refuses_a_name_that_does_not_exist(tree):
    (tree / "docs/other.md").write_text(OTHER + "\n::: diffwindow.notation.nothing\n")
    (problem,) = build(tree)
    assert "diffwindow.notation.nothing could not be found" in problem


def test_the_check_finds_what_the_builder_misses(tree):
    more = (
        "\n![picture](missing.png)\n\n<a href='missing.html'>link</a>\n\n<a href='other.html#no'>link</a>\n\n"
        "<img src='https://example.org/picture.png'>\n"
    )
    (tree / "docs/index.md").write_text(HOME + more)
    (tree / "docs/lost.md").write_text("# Lost\n")
    (tree / "docs/assets/site.css").write_text("@import url(https://example.org/font.css);")
    assert set(build(tree)) == {
        "index.html has a broken link: missing.png",
        "index.html has a broken link: missing.html",
        "index.html has a link to a missing anchor: other.html#no",
        "index.html loads https://example.org/picture.png",
        "assets/site.css loads https://example.org/font.css",
        "lost.html is not in the navigation of mkdocs.yml",
    }


def test_reports_are_listed_by_the_results_page(tmp_path):
    for name in ("one", "two"):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "report.html").write_text("")
    (tmp_path / "results/index.html").write_text('<a href="one/report.html">one</a>')
    problems = check.problems(tmp_path, [{"Results": "results/README.md"}])
    assert problems == ["results/two/report.html is not in the navigation of mkdocs.yml"]


def test_doctests_are_fenced():
    text = "Add.\n\n>>> add(1, 1)\n2\n>>> add(\n...     1, 2)\n3\n\nMore."
    assert fenced(text) == f"Add.\n\n```pycon\n{text[6:-7]}\n```\n\nMore."
