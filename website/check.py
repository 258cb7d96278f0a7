"""Check a built site for what the builder does not: pictures, raw links, other sites, unlisted pages."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

# What a browser loads by itself, against what a reader may follow.
LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
LOADING_RELATIONS = {
    "stylesheet",
    "icon",
    "preload",
    "modulepreload",
    "preconnect",
    "dns-prefetch",
    "manifest",
}


@dataclass
class Page:
    """The anchors of a page, its links, and what it loads."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.page.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.page.links.append(values["href"])
        if tag in LOADED and values.get(LOADED[tag]):
            self.page.loads.append(values[LOADED[tag]])
        if tag == "link" and LOADING_RELATIONS & set(values.get("rel", "").split()):
            self.page.loads.append(values.get("href", ""))


def read_page(html: str) -> Page:
    """Return what a page links to and loads."""
    reader = _Reader()
    reader.feed(html)
    return reader.page


def problems(site: Path, nav: Iterable[Any]) -> list[str]:
    """Return what is wrong with a built site, a sentence per mistake."""
    pages = {path: read_page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [problem for path in pages for problem in _page_problems(path, pages, site)]
    found += [
        f"{style.relative_to(site)} loads {address}"
        for style in sorted(site.rglob("*.css"))
        for address in re.findall(r"(?:url\(|@import )\s*[\"']?((?:https?:)?//[^\"')]+)", style.read_text())
    ]
    return found + list(_unlisted(pages, site, nav))


def _page_problems(path: Path, pages: dict[Path, Page], site: Path) -> Iterator[str]:
    page, name = pages[path], path.relative_to(site)
    for address in page.loads:
        if urlsplit(address).netloc:
            yield f"{name} loads {address}"
    for address in dict.fromkeys([*page.links, *page.loads]):
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        # the builder's own 404 page names files from the root of the site
        base = site if parts.path.startswith("/") else path.parent
        target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
        target = target / "index.html" if target.is_dir() else target
        if not target.is_file():
            yield f"{name} has a broken link: {address}"
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
            yield f"{name} has a link to a missing anchor: {address}"


def _unlisted(pages: dict[Path, Page], site: Path, nav: Iterable[Any]) -> Iterator[str]:
    """Name pages that are neither in the navigation nor a report that the results page links to."""
    listed = {_html(page) for page in _nav_pages(nav)} | {"404.html"}
    results = site / "results" / "index.html"
    reports = {
        (results.parent / urlsplit(link).path).resolve()
        for link in (pages[results].links if results in pages else ())
    }
    for path in pages:
        name = path.relative_to(site).as_posix()
        is_page = not name.startswith("assets/")
        if is_page and name not in listed and not (path.name == "report.html" and path in reports):
            yield f"{name} is not in the navigation of mkdocs.yml"


def _nav_pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif nav is not None:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _nav_pages(entry)


def _html(page: str) -> str:
    return re.sub(r"(^|/)README\.html$", r"\1index.html", re.sub(r"\.md$", ".html", page))
