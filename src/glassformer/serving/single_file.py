"""The page as one HTML file: its style, modules and answers are inside, so that it opens without a server."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from glassformer.errors import UserError
from glassformer.serving.app import Answer, Packed
from glassformer.serving.inspector import Inspector

MAX_BYTES = 64 << 20
"""Largest total of the embedded arrays; attention layers and logits beyond it are left out."""
_UNESCAPED = "!'()*"
"""Characters that `encodeURIComponent` keeps and `quote` does not."""
_IMPORT = re.compile(r'(from|import) "\./([\w-]+\.js)"')
_HEAD = re.compile(r'<link rel="stylesheet".*?>|<script type="module".*?</script>')


def single_file(inspector: Inspector, given: dict[str, Any], folder: Path) -> str:
    """Return the page with the answers to one input: a text, or a source and a target.

    Modules become `data:` addresses in an import map, because a page from a disk cannot import files. Panels whose
    answers are missing name the command that starts a server. `folder` has the files of the page.
    """
    modules = {path.name: _IMPORT.sub(r'\1 "page/\2"', path.read_text("utf-8")) for path in folder.glob("*.js")}
    addresses = {f"page/{name}": _address(code) for name, code in sorted(modules.items())}
    import_map, begin = json.dumps({"imports": addresses}), 'import "page/main.js";'
    scripts = " ".join(f"'sha256-{_hash(code)}'" for code in (import_map, begin))
    policy = f"default-src 'none'; script-src {scripts} data:; style-src 'unsafe-inline'; img-src data: blob:"
    data = json.dumps(answers(inspector, given), ensure_ascii=False).replace("<", "\\u003c")  # no tag ends the script
    head = (
        f'<meta http-equiv="content-security-policy" content="{policy}">\n'
        f"<style>{(folder / 'style.css').read_text('utf-8')}</style>\n"
        f'<script type="application/json" id="embedded">{data}</script>\n'
        f'<script type="importmap">{import_map}</script>\n<script type="module">{begin}</script>'
    )
    page = (folder / "index.html").read_text("utf-8")
    before, after = page[: _first(page)], _HEAD.sub("", page[_first(page) :])
    return before + head + after


def answers(inspector: Inspector, given: dict[str, Any]) -> dict[str, Any]:
    """Return the answers for one input, by request: `GET PATH`, or `POST PATH BODY` with sorted keys."""
    found: dict[str, Any] = {}
    left = MAX_BYTES

    def add(request: str, function: Callable[..., Answer], **named: Any) -> None:
        nonlocal left
        answer = function(**named)
        if isinstance(answer, Packed):
            left -= len(answer.data)
            if left >= 0:
                found[request] = answer.to_json()
        else:
            found[request] = answer

    card = inspector.card()
    query = f"model={quote(card['model'], safe=_UNESCAPED)}"
    asked = given | {"model": card["model"]}
    body = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    run = inspector.run(**given)
    found[f"POST /api/run {body}"] = run
    name, path = run["run"], f"GET /api/run/{run['run']}"
    found["GET /api/model"] = card
    add(f"GET /api/vocabulary?{query}", inspector.vocabulary)
    add("GET /api/live?since=0", inspector.live)
    add(f"{path}/scores", inspector.scores, run=name)
    for kind in run["attention"]:
        add(f"{path}/thumbnails?kind={kind}", inspector.thumbnails, run=name, kind=kind)
    for what, function in (("alignment", inspector.alignment), ("effects", inspector.effects)):
        with suppress(UserError):  # not for this kind of model
            add(f"{path}/{what}", function, run=name)
    for norm in (True, False):
        with suppress(UserError):
            add(f"{path}/lens?norm={norm:d}", inspector.lens, run=name, norm=norm)
    for kind, size in run["attention"].items():
        for layer in range(size["layers"]):
            add(f"{path}/attention?kind={kind}&layer={layer}", inspector.attention, run=name, kind=kind, layer=layer)
    with suppress(UserError):  # a classifier has logits of the whole text only
        for position in range(len(run["target"] or run["source"])):
            add(f"{path}/logits?position={position}", inspector.logits, run=name, position=position)
    return found


def _first(page: str) -> int:
    found = _HEAD.search(page)
    assert found is not None, "index.html has a style sheet and a module"
    return found.start()


def _address(code: str) -> str:
    return "data:text/javascript;base64," + base64.b64encode(code.encode()).decode()


def _hash(code: str) -> str:
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
