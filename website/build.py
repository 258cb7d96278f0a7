"""Build the documentation into `site/`: python -m website.build.

The reference pages are written from the code first; afterwards formulas become MathML, which browsers draw
without a script, and the result is checked. Nothing is downloaded.
"""

import html
import re
import subprocess
import sys
from pathlib import Path

import yaml
from latex2mathml.converter import convert

from website.check import problems
from website.generate import write_pages

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\(?P<open>[(\[])(?P<tex>.*?)\\[)\]]</\1>', re.DOTALL)


def build(root: Path) -> list[str]:
    """Build the site of a folder with `mkdocs.yml` and `docs`; return what is wrong with it."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode:
        return [re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr.partition("Traceback")[0])]
    config = yaml.safe_load((root / "mkdocs.yml").read_text(encoding="utf-8"))
    site = root / config["site_dir"]
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(FORMULA.sub(_mathml, text), encoding="utf-8")
    return problems(site, config["nav"])


def _mathml(formula: re.Match[str]) -> str:
    display = "block" if formula["open"] == "[" else "inline"
    return convert(html.unescape(formula["tex"]), display=display)


if __name__ == "__main__":
    tree = Path(__file__).resolve().parents[1]
    write_pages(tree / "docs")
    mistakes = build(tree)
    print("\n".join(mistakes) or "the site is in site/")
    sys.exit(1 if mistakes else 0)
