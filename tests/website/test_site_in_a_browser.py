"""Every page of the built site in Chromium: no request to another site, no error, nothing too wide."""

import functools
import http.server
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from samples.browser import launched

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address():
    """Build the site and serve it."""
    done = subprocess.run([sys.executable, "-m", "website.build"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    handler = functools.partial(_Quiet, directory=str(ROOT / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    yield from launched()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 390)])
def test_pages_load_nothing_from_elsewhere(address, browser, scheme, width):
    problems = []
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(f"{page.url}: {error}"))
    page.on("console", lambda message: message.type == "error" and problems.append(message.text))
    page.on(
        "request",
        lambda request: request.url.startswith((address, "data:", "blob:")) or problems.append(request.url),
    )
    # without reports, whose tables are as wide as their data
    pages = [path for path in sorted((ROOT / "site").rglob("*.html")) if path.name != "report.html"]
    assert len(pages) > 35
    for path in pages:
        page.goto(address + path.relative_to(ROOT / "site").as_posix())
        excess = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if excess > 1:
            problems.append(f"{path.name} is {excess} px too wide for {width}")
    context.close()
    assert problems == []
