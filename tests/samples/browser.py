"""A real Chromium for tests; without one they are skipped, unless the environment says it must be there."""

import os
import shutil
from pathlib import Path

import pytest

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    sync_playwright = expect = None

REQUIRED = "DIFFWINDOW_REQUIRE_BROWSER" in os.environ
CHROMIUM = shutil.which("chromium")
# nothing but the page: no updates, no account, no first visit
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def missing(what):
    """Skip, or fail where the browser tests must run."""
    if REQUIRED:
        pytest.fail(f"{what} is missing, but DIFFWINDOW_REQUIRE_BROWSER is set")
    pytest.skip(f"{what} is not installed")


def launched():
    """Start Chromium; yields the browser, for a fixture."""
    if CHROMIUM is None:
        missing("chromium")
    if sync_playwright is None:
        missing("playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


def axe_script():
    """Return the text of axe-core, which `npm install` in this folder brings."""
    path = Path(__file__).parents[1] / "node_modules/axe-core/axe.min.js"
    if not path.is_file():
        missing("axe-core (`npm install --prefix tests`)")
    return path.read_text(encoding="utf-8")


def opened(browser, address, **options):
    """Open a page that must not log an error, break its policy or ask for anything outside."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    page = context.new_page()
    page.problems = []
    page.on(
        "console", lambda message: message.type in ("error", "warning") and page.problems.append(message.text)
    )
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on(
        "request",
        lambda request: (
            request.url.startswith(("data:", "blob:", address)) or page.problems.append(request.url)
        ),
    )
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    return page
