"""What a release needs: one version everywhere, whole links, and archives that an index accepts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import diffwindow

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md"]


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == diffwindow.__version__
    assert citation["preferred-citation"]["type"] == "conference-paper"
    sections = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    # a version in development has no section of its own yet
    assert sections[0] == "Unreleased"
    assert "dev" in diffwindow.__version__ or sections[1] == diffwindow.__version__


@pytest.mark.parametrize("page", PAGES)
def test_links_of_the_pages_outside_of_the_site_exist(page):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_workflows_and_templates_are_yaml():
    files = sorted((ROOT / ".github").rglob("*.yml"))
    assert len(files) >= 4
    for file in files:
        assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict), file


@pytest.mark.slow
def test_archives_build_and_pass_the_check(tmp_path):
    def run(*arguments):
        done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("build", "--no-isolation", "--outdir", str(tmp_path))
    archives = sorted(path.name for path in tmp_path.iterdir())
    assert [name.split("-")[1].removesuffix(".tar.gz") for name in archives] == [diffwindow.__version__] * 2
    printed = run("twine", "check", "--strict", *(str(tmp_path / name) for name in archives))
    assert printed.count("PASSED") == 2
