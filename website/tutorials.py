"""Run the tutorials and render them into pages: python -m website.tutorials [NAME …].

A tutorial is a script in `examples/tutorials` whose cells begin with `# %%` (code) or `# %% [markdown]`
(prose in comments). Its page shows the prose, the code and what the code printed; pictures that the prose
names are copied from the folder that the script ran in. The pages are kept with the sources, for a run takes
minutes; a test checks that each shows its script.
"""

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS, PAGES = ROOT / "examples/tutorials", ROOT / "docs/tutorials"
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)]+)\)")


def cells(script: str) -> Iterator[tuple[str, str]]:
    """Yield the cells of a script: ("markdown", prose) or ("code", source).

    >>> list(cells("# %% [markdown]\\n# # Title\\n#\\n# Words.\\n# %%\\nx = 1\\n"))
    [('markdown', '# Title\\n\\nWords.'), ('code', 'x = 1')]
    """
    for part in re.split(r"(?m)^# %%", script)[1:]:
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            yield "markdown", re.sub(r"(?m)^# ?", "", body).strip()
        else:
            yield "code", body.strip()


def render(script: str) -> str:
    """Run a script in the current folder; return its page."""
    names: dict[str, object] = {"__name__": "__main__"}
    parts = []
    for kind, text in cells(script):
        if kind == "markdown":
            parts.append(text)
            continue
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(text, "<tutorial>", "exec"), names)
        parts.append(f"```python\n{text}\n```")
        if out.getvalue().strip():
            parts.append(f"```text\n{out.getvalue().strip()}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Render the tutorials with these names, or all."""
    for path in sorted(SCRIPTS.glob("*.py")):
        if sys.argv[1:] and path.stem not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            before = Path.cwd()
            os.chdir(folder)
            try:
                page = render(path.read_text(encoding="utf-8"))
                for picture in PICTURE.findall(page):
                    shutil.copy(picture, PAGES / picture)
            finally:
                os.chdir(before)
        (PAGES / f"{path.stem}.md").write_text(page, encoding="utf-8")
        print(f"wrote {PAGES / path.stem}.md")


if __name__ == "__main__":
    main()
