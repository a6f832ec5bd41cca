"""The page as one HTML file: its style, modules and answers are inside, so that it opens without a server."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from glassformer.errors import UserError
from glassformer.inspector.app import Answer, Packed
from glassformer.inspector.inspector import Inspector
from glassformer.inspector.panels import calls
from glassformer.inspector.panels.tokens import Input, run

MAX_BYTES = 64 << 20
"""Largest total of the embedded arrays; attention layers and logits beyond it are left out."""
_UNESCAPED = "!'()*"
"""Characters that `encodeURIComponent` keeps and `quote` does not."""
_IMPORT = re.compile(r'(from|import) "(?:\./|\.\./(\w+)/)([\w-]+\.js)"')
_HEAD = re.compile(r'<link rel="stylesheet".*?>|<script type="module".*?</script>')


def single_file(inspector: Inspector, given: dict[str, Any], folder: Path) -> str:
    """Return the page with the answers to one input: a text, or a source and a target.

    Modules become `data:` addresses in an import map, because a page from a disk cannot import files. Panels whose
    answers are missing name the command that starts a server. `folder` has `page/` and `panels/`.
    """
    data = json.dumps(answers(inspector, given), ensure_ascii=False).replace("<", "\\u003c")  # no tag ends the script
    embedded = f'<script type="application/json" id="embedded">{data}</script>'
    return with_modules(folder, ("page", "panels"), "page/served.js", embedded)


def with_modules(folder: Path, parts: Sequence[str], begin: str, data: str) -> str:
    """Return the page with the modules of the folders `parts`, which begins with the module `begin`.

    `data` are script elements without code. The content security policy allows no request at all.
    """
    page = folder / "page"
    paths = sorted(path for part in parts for path in (folder / part).glob("*.js"))
    addresses = {f"{path.parent.name}/{path.name}": _address(_module(path)) for path in paths}
    import_map, first = json.dumps({"imports": addresses}), f'import "{begin}";'
    scripts = " ".join(f"'sha256-{_hash(code)}'" for code in (import_map, first))
    policy = f"default-src 'none'; script-src {scripts} data:; style-src 'unsafe-inline'; img-src data: blob:"
    head = (
        f'<meta http-equiv="content-security-policy" content="{policy}">\n'
        f"<style>{(page / 'style.css').read_text('utf-8')}</style>\n"
        f'{data}\n<script type="importmap">{import_map}</script>\n<script type="module">{first}</script>'
    )
    html = (page / "index.html").read_text("utf-8")
    before, after = html[: _first(html)], _HEAD.sub("", html[_first(html) :])
    return before + head + after


def _module(path: Path) -> str:
    """Return a module of the page; its imports have the names of the import map, such as `page/dom.js`."""

    def named(match: re.Match[str]) -> str:
        return f'{match[1]} "{match[2] or path.parent.name}/{match[3]}"'

    return _IMPORT.sub(named, path.read_text("utf-8"))


def answers(inspector: Inspector, given: dict[str, Any]) -> dict[str, Any]:
    """Return the answers for one input, by request: `GET PATH`, or `POST PATH BODY` with sorted keys.

    Each route names its answers (`Call.embedded`). Those that are refused for this kind of model are left out.
    """
    answer: Answer
    result = run(inspector, Input(**given))
    body = json.dumps(given | {"model": result["model"]}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    embedded: dict[str, Any] = {f"POST /api/run {body}": result}
    left = MAX_BYTES
    for call in calls(inspector):
        for named in call.embedded(result):
            of_run = {"run": result["run"]} if "{run}" in call.path else {}
            try:
                answer = call.function(**named, **of_run)
            except UserError:
                continue
            request = f"GET {call.path.format(**of_run)}{_query(named)}"
            if not isinstance(answer, Packed):
                embedded[request] = answer
                continue
            left -= len(answer.data)
            if left >= 0:
                embedded[request] = answer.to_json()
    return embedded


def _query(named: Mapping[str, Any]) -> str:
    """Return the query as the page writes it; a bool is 0 or 1."""
    digits = {True: "1", False: "0"}
    words = {name: digits[value] if isinstance(value, bool) else str(value) for name, value in named.items()}
    query = "&".join(f"{name}={quote(word, safe=_UNESCAPED)}" for name, word in words.items())
    return f"?{query}" if query else ""


def _first(page: str) -> int:
    match = _HEAD.search(page)
    assert match is not None, "index.html has a style sheet and a module"
    return match.start()


def _address(code: str) -> str:
    return "data:text/javascript;base64," + base64.b64encode(code.encode()).decode()


def _hash(code: str) -> str:
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
