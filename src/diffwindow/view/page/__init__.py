"""The page: its modules, style and data in one file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

_IMPORT = re.compile(r"^import \{[^}]*\} from \"\./(?P<name>\w+)\.js\";\n", re.MULTILINE)
_TOP_LEVEL = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)


def page_html(data: dict[str, Any]) -> str:
    """Return the page for the data that `payload.page_data` makes; `data["live"]` lets it call its server."""
    style, script = _read("page.css"), _script()
    server = "'self'" if data["live"] else "'none'"
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        f"img-src data: blob:; connect-src {server}; base-uri 'none'; form-action 'none'"
    )
    parts = {"policy": policy, "style": style, "data": as_script_text(data), "script": script}
    # one pass, so that nothing in a part is taken for a place to fill
    return re.sub(r"%(policy|style|data|script)%", lambda place: parts[place[1]], _read("page.html"))


def as_script_text(data: dict[str, Any]) -> str:
    """Return JSON that cannot end the script element that holds it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _script() -> str:
    """Join the modules in the order of their imports; in one scope, each name may be defined once."""
    ordered: dict[str, str] = {}

    def add(name: str) -> None:
        if name in ordered:
            return
        text = _read(f"{name}.js")
        for imported in _IMPORT.finditer(text):
            add(imported["name"])
        ordered[name] = re.sub(r"^export ", "", _IMPORT.sub("", text), flags=re.MULTILINE)

    add("main")
    homes: dict[str, str] = {}
    for name, text in ordered.items():
        for defined in _TOP_LEVEL.findall(text):
            assert homes.setdefault(defined, name) == name, f"{defined} is in {homes[defined]} and {name}"
    return "\n" + "\n".join(ordered.values())


@cache
def _read(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
