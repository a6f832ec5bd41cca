"""The sources of the documentation are right without a build: markup, links and the tree of pages.

A build takes more than a minute of processor time, so only the whole run of the tests builds the site (`test_site.py`).
"""

import os
import re
from collections.abc import Iterator, Mapping
from fnmatch import filter as matching
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

pytest.importorskip("myst_parser")
from myst_parser.config.main import MdParserConfig
from myst_parser.mdit_to_docutils.base import default_slugify
from myst_parser.parsers.mdit import create_md_parser

DOCS = Path(__file__).parents[1] / "docs"
EXTENSIONS = {"colon_fence", "deflist", "dollarmath", "tasklist"}
"""As in `docs/conf.py`."""
DIRECTIVES = ("code-cell", "container", "eval-rst", "glossary", "index", "toctree")
WITH_MARKDOWN = ("container", "glossary")
"""Directives whose content is Markdown."""
ANY = ""
"""The anchor of a page whose text is not read: those of objects take longer to write than all others."""


@cache
def read(text: str) -> tuple[Token, ...]:
    """Return the tokens of a text and, after each, those inside it."""
    found: list[Token] = []
    parser = create_md_parser(MdParserConfig(enable_extensions=EXTENSIONS), RendererHTML)
    for token in parser.parse(text):
        found += [token, *(token.children or ())]
        if directive(token) in WITH_MARKDOWN:
            found += read(re.sub(r"\A(:.*\n)+", "", token.content))
    return tuple(found)


def directive(token: Token) -> str:
    """Return the name of a directive; "" for another token."""
    match = re.match(r"\{([\w-]+)\}", token.info) if token.type in ("fence", "colon_fence") else None
    return match[1] if match else ""


def anchors(text: str) -> set[str]:
    """Return the names of the headings and of the marked places of a page."""
    tokens, found = read(text), set()
    for token, title in pairwise(tokens):
        if token.type == "heading_open":
            words = "".join(part.content for part in title.children or () if part.type in ("text", "code_inline"))
            found.add(default_slugify(words))
        elif token.type == "myst_target":
            found.add(token.content)
        found |= set(re.findall(r'\bid="([^"]+)"', token.content if token.type.startswith("html") else ""))
    return found


def links(text: str) -> list[str]:
    """Return the addresses of links and pictures."""
    found = [str(token.attrGet("href") or token.attrGet("src") or "") for token in read(text)]
    return [unquote(address) for address in found if address]


def listed(page: str, text: str) -> list[str]:
    """Return the pages below a page in the tree of the site."""
    lines = [line for token in read(text) if directive(token) == "toctree" for line in token.content.splitlines()]
    names = [re.sub(r".*<(.*)>", r"\1", line).removesuffix(".md") for line in lines if line and line[0] != ":"]
    return [target_of(page, f"{name}.md") for name in names]


def target_of(page: str, path: str) -> str:
    """Return the page, or the file, that a path in a page means; a path may begin with the folder of all pages."""
    return os.path.normpath(path[1:] if path[:1] == "/" else os.path.join(os.path.dirname(page), path))


def wrong(texts: Mapping[str, str], others: set[str], terms: set[str]) -> Iterator[str]:
    """Yield what is wrong with pages, which may link to other pages and to terms of the glossary."""
    places = {page: anchors(text) for page, text in texts.items()} | {page: {ANY} for page in others}
    marked = {name for names in places.values() for name in names}
    below = {
        page: [found for name in listed(page, text) for found in (matching(places, name) if "*" in name else [name])]
        for page, text in texts.items()
    }
    for page, text in texts.items():
        for address in links(text):
            path, _, anchor = address.partition("#")
            target = target_of(page, path) if path else page
            if re.match(r"https?:|mailto:", address):
                continue
            if path and target not in places and not (DOCS / target).is_file():
                yield f"{page} links to {address}, which is no file"
            elif anchor and not {anchor, ANY} & (places.get(target, {ANY}) if path else marked):
                yield f"{page} links to {address}, which is no heading"
        level = 0
        for token, after in pairwise((*read(text), Token("end", "", 0))):
            if directive(token) and directive(token) not in DIRECTIVES:
                yield f"{page}: unknown directive {token.info}"
            if token.type == "myst_role" and token.meta["name"] != "term":
                yield f"{page}: unknown role {token.meta['name']}"
            elif token.type == "myst_role":
                term = re.sub(r".*<(.*)>", r"\1", token.content).lower()
                if term not in terms:
                    yield f"{page}: the glossary has no term {term}"
            if token.type == "paragraph_open" and after.content.startswith("|"):
                yield f"{page}: no table, but a sentence: {after.content[:40]}"
            if token.type == "heading_open":
                if int(token.tag[1]) > level + 1:
                    yield f"{page}: {after.content} leaves out a level of headings"
                level = int(token.tag[1])
            if re.search(r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["'](?:https?:)?//""", token.content):
                yield f"{page} loads something from another host: {token.content[:60]}"
            if token.type == "image" and "//" in str(token.attrGet("src")):
                yield f"{page} loads {token.attrGet('src')}"
        yield from (f"{page} has the page {name}, which is no file" for name in below[page] if name not in places)
    known = {name for names in below.values() for name in names} | {"index.md"}
    for page, text in texts.items():
        if page not in known and not text.startswith("---\norphan: true"):
            yield f"{page} is not in the tree of the site"


def test_every_page_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    generate, commands, objects, glossary = map(import_module, ("generate", "commands", "objects", "terms"))
    own = [path for path in DOCS.rglob("*.md") if not {"_build", "generated", "log"} & set(path.parts)]
    texts = {path.relative_to(DOCS).as_posix(): path.read_text("utf-8") for path in own}
    pages = [(name, page()) for name, page in generate.PAGES.items()]
    first = next(objects.pages())  # the table of all objects
    pages += [*generate.keys(), *commands.pages(), first]
    texts |= {f"reference/generated/{name}.md": text for name, text in pages}
    of_objects = {f"reference/generated/{objects.page_of(name)}.md" for name in objects.public()}
    terms = {name.lower() for name in glossary.terms().values()}
    found = list(wrong(texts, of_objects, terms))
    assert len(texts) > 100 and not found, "\n".join(found)


def test_every_link_of_the_log_is_right() -> None:
    """The log is no part of the site, so the tree of pages lacks it."""
    texts = {path: path.read_text("utf-8") for path in (DOCS / "log").glob("*.md")}
    for path, text in texts.items():
        for address in links(text):
            name, _, anchor = address.partition("#")
            target = path.parent / name if name else path
            assert target.is_file(), f"{path.name} links to {address}"
            assert not anchor or anchor in anchors(target.read_text("utf-8")), f"{path.name} links to {address}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# A\n\n[b](b.md#there) and [a](#a), {term}`token`\n\n| x |\n|---|\n| 1 |\n", ""),
        ("# A\n\n[b](c.md)\n", "which is no file"),
        ("# A\n\n[b](b.md#here)\n", "which is no heading"),
        ("# A\n\n[b](#nothing)\n", "which is no heading"),
        ("# A\n\n:::{container} x\n[b](c.md)\n:::\n", "which is no file"),
        ("# A\n\n```{codecell}\n```\n", "unknown directive"),
        ("# A\n\n{trem}`token`\n", "unknown role"),
        ("# A\n\n{term}`tokn`\n", "no term tokn"),
        ("# A\n\n### B\n", "leaves out a level"),
        ("# A\n\n| x |\n| 1 |\n", "no table"),
        ("# A\n\n![x](https://example.org/x.png)\n", "loads https"),
        ('# A\n\n<script src="https://example.org/x.js"></script>\n', "another host"),
        ("# A\n\n```{toctree}\n:maxdepth: 1\n\nc\n```\n", "page c.md"),
    ],
)
def test_a_wrong_page_is_found(text: str, expected: str) -> None:
    texts = {"index.md": "# I\n\n```{toctree}\na\nb\n```\n", "a.md": text, "b.md": "# B\n\n## There\n"}
    found = list(wrong(texts, set(), {"token"}))
    assert expected in found[0] if expected else not found, found


def test_a_page_outside_the_tree_is_found() -> None:
    assert list(wrong({"index.md": "# I\n", "a.md": "# A\n"}, set(), set())) == ["a.md is not in the tree of the site"]
