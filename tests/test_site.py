"""The documentation site: built without a warning, works without a network, readable on a phone."""

import inspect
import json
import os
import random
import re
import shutil
import subprocess
import sys
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from operator import attrgetter
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote, unquote, urlsplit

import pytest

import glassformer
from glassformer.apps.cli.main import VERBS

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

ROOT = Path(__file__).parents[1]
WIDE_CODE = """() => [...document.querySelectorAll("pre")].filter((pre) => pre.scrollWidth > pre.clientWidth + 1)
    .map((pre) => pre.textContent.slice(0, 80))"""
"""Starts of the blocks of code that scroll sideways.

A line of 120 columns of a monospace font, of 0.60 em each, takes 867 of about 896 pixels. A part of a page has about
5,000 pixels, so that a page has room for 1,000 more with other fonts.
"""
SIZES = {"laptop": (1280, 800), "phone": (390, 844)}


COMPUTED = """\
---
orphan: true
jupytext: {text_representation: {extension: .md, format_name: myst}}
kernelspec: {display_name: Python 3, language: python, name: python3}
---

# Computed

```{code-cell}
from glassformer.apps import course

course.Note("| check | meaning |\\n|---|---|\\n| `learns` | the loss falls |")
```
"""
"""A page with a computed table."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, with a chapter of the course run in short (`notebooks.RENDERED`). A warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    pages = shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("_build", "generated"))
    (pages / "computed.md").write_text(COMPUTED)
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-b", "html"]
    env = {**os.environ, "GLASSFORMER_COURSE": "short"}
    command += [str(pages), str(folder / "html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env)
    assert done.returncode == 0, done.stderr
    return folder / "html"


ATTRIBUTE = re.compile(r'\s(href|src|id)="([^"]+)"')
"""Sphinx escapes quotes in text, so this matches attributes only; a parser of HTML takes 20 times as long."""


def attributes(page: Path) -> tuple[set[str], set[str]]:
    """Return the addresses that a page links to, and the names of its anchors."""
    found: dict[str, set[str]] = {"href": set(), "src": set(), "id": set()}
    for name, value in ATTRIBUTE.findall(page.read_text("utf-8")):
        found[name].add(unescape(value))
    return found["href"] | found["src"], found["id"]


def test_every_internal_link_has_a_target(site: Path) -> None:
    live = site.resolve() / "live.html"  # the address of a view of the page, not of an element, follows its #
    pages = {page: attributes(page) for page in site.resolve().rglob("*.html") if page != live}
    assert len(pages) > 20
    files = {str(path) for path in site.resolve().rglob("*")}
    for page, (addresses, _) in pages.items():
        for address in addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = os.path.normpath(page.parent / unquote(parts.path)) if parts.path else str(page)
            assert target in files, f"{page.name} links to {address}"
            if parts.fragment and target.endswith(".html") and target != str(live):
                _, places = pages[Path(target)]
                assert unquote(parts.fragment) in places, f"{page.name} links to {address}"


def test_every_table_is_shown_as_a_table(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert "<p>|" not in page.read_text("utf-8"), page.name
    assert "<td><p><code" in (site / "computed.html").read_text("utf-8")


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loads = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["'](?:https?:)?//""")
    for page in site.rglob("*.html"):
        assert not loads.search(page.read_text("utf-8")), page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text("utf-8")), style.name


def test_pages_fit_the_screen_and_load_from_no_other_host(site: Path, window: "BrowserContext") -> None:
    page = window.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    sizes = list(SIZES.items())
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        for size, (width, height) in sizes:
            page.set_viewport_size({"width": width, "height": height})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (
                f"{path.name} is wider than the screen ({size})"
            )
            if width > 1000:
                assert page.evaluate("document.documentElement.scrollHeight") <= 6000, f"{path.name} is too high"
                assert page.evaluate(WIDE_CODE) == [], f"{path.name} has code that is wider than its column"
        sizes.reverse()  # the next page is loaded at this size
    assert requests and all(url.startswith(("file:", "data:")) for url in requests)
    page.close()


def test_a_long_page_shows_one_part_at_a_time(site: Path, window: "BrowserContext") -> None:
    page = window.new_page()
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto((site / "course" / "07-the-transformer.html").as_uri())
    bar, titles, parts = page.locator(".parts").last, page.locator("article h2").all_text_contents(), list[str]()
    shown = page.locator("article h2:visible")
    for n in range(1, bar.get_by_role("button").count()):
        bar.get_by_role("button", name=f"part {n}").click()
        parts += [title for title in shown.all_text_contents() if title not in parts]
        assert page.evaluate("document.documentElement.scrollHeight") <= 6000
    assert parts == titles, "each section is in one part"
    page.goto((site / "course" / "07-the-transformer.html").as_uri() + "#exercises")
    page.reload()
    assert page.locator("#exercises").is_visible() and titles[0] not in shown.all_text_contents()
    page.evaluate("location.hash = '#greedy-search'")
    page.wait_for_function("document.querySelector('#greedy-search').getBoundingClientRect().height > 0")
    bar.get_by_role("button", name="whole page").click()
    page.reload()
    assert shown.all_text_contents() == titles, "the choice is kept"
    bar.get_by_role("button", name="part 1").click()
    page.close()


def test_the_home_page_has_a_model_that_runs(site: Path, window: "BrowserContext") -> None:
    page = window.new_page()
    page.goto((site / "index.html").as_uri())
    live = page.frame_locator("iframe.live")
    page.locator("iframe.live").scroll_into_view_if_needed()
    live.locator("#input textarea").first.fill("geode")
    live.locator("#input textarea").nth(1).fill("edoeg")
    live.get_by_role("button", name="Run", exact=True).click()
    live.locator("#tokens .token", has_text="g").first.wait_for()
    assert live.locator("#tokens .token[data-side=source]").all_inner_texts() == [*"geode", "[EOS]"]
    assert live.locator("#panels .card").count() > 0
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_follow_the_colours_of_the_system(
    site: Path, window: "BrowserContext", scheme: Literal["light", "dark"]
) -> None:
    page = window.new_page()
    page.emulate_media(color_scheme=scheme)
    page.goto((site / "index.html").as_uri())
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) > 384) == (scheme == "light")
    page.close()


FIRST_RESULTS = {
    "train on my own text": "Train on your own text",
    "configuration": "Keys of a recipe",
    "max_steps": "Keys of a recipe",
    "export huggingface": "Import and export models",
    "resume training": "Resume a run",
    "out of memory": "Out of memory",
    "translate": "Train on your own pairs",
    "attention heatmap": "See inside a model",
    "classification": "Train on your own labels",
    "fine-tune": "Use a checkpoint of transformers",
    "install": "Install extras",
    "kv cache": "Generate faster",
    "learning rate": "Choose the model size, learning rate",
}
"""Queries of newcomers, and the title of the page that answers each."""


@pytest.mark.parametrize("query", FIRST_RESULTS)
def test_the_first_result_of_a_search_answers_it(site: Path, window: "BrowserContext", query: str) -> None:
    page = window.new_page()
    page.goto(f"{(site / 'search.html').as_uri()}?q={quote(query)}")
    page.locator("#search-results .search-summary", has_text="finished").wait_for()  # all results are shown
    assert page.locator("#search-results li > a").first.inner_text().startswith(FIRST_RESULTS[query])
    page.close()


def test_every_public_name_and_every_verb_has_a_page_with_an_example(site: Path) -> None:
    modules = ("doctor", "inspection", "models", "nn", "plot")
    names = [*glassformer.__all__, *(f"{m}.{name}" for m in modules for name in getattr(glassformer, m).__all__)]
    values = {name: attrgetter(name)(glassformer) for name in names}
    for name in (name for name, value in values.items() if inspect.isclass(value) or inspect.isfunction(value)):
        page = (site / "reference" / "generated" / "python" / f"{name.lower()}.html").read_text("utf-8")
        assert f'id="glassformer.{name}"' in page and ("highlight-python" in page or "&gt;&gt;&gt;" in page), name
    for verb in VERBS:
        page = (site / "reference" / "generated" / "commands" / f"{verb}.html").read_text("utf-8")
        assert "highlight-shell" in page and f"<h1>glassformer {verb}<" in page, verb


def test_an_example_imports_what_it_uses_and_is_no_refused_call(site: Path) -> None:
    """Examples of documents and tests, which leave out the lines before them."""
    folder = site / "reference" / "generated" / "python"
    for name, line in {
        "merge": "from glassformer import api",
        "doctor.check": "from glassformer import doctor",
        "nn.alibibias": "from glassformer import nn as package",
        "load": "import glassformer",
    }.items():
        text = re.sub(r"<[^>]+>", "", (folder / f"{name}.html").read_text("utf-8"))
        assert re.search(rf"Example, from [^\n]*\s+{line}\n", text) and "pytest.raises" not in text, name
    assert "Example, from" not in (folder / "plan.html").read_text("utf-8"), "the docstring has an example"


def test_the_course_states_reading_times_and_links_its_words_and_its_mistakes(site: Path) -> None:
    chapter = (site / "course" / "01-text-to-ids.html").read_text("utf-8")
    [minutes] = re.findall(r"Reading time: about (\d+) minutes", chapter)
    assert chapter.count('href="../glossary.html#term-token"') == 1
    rows = re.findall(r"<tr.*?</tr>", (site / "course" / "index.html").read_text("utf-8"), re.DOTALL)
    times = [int(number) for row in rows for number in re.findall(r">(\d+) minutes<", row)]
    assert len(times) == 16 and times[0] == int(minutes)
    for page in ("course/index", "course/workshop", "pitfalls", "reference/generated/commands/course"):
        assert 'mistakes.html"' in (site / f"{page}.html").read_text("utf-8"), page


def test_long_pages_list_their_sections(site: Path) -> None:
    """Each section has a link; `test_every_internal_link_has_a_target` follows them."""
    for name in ("generated/python", "generated/endpoints", "generated/mistakes", "json"):
        page = (site / "reference" / f"{name}.html").read_text("utf-8")
        [contents] = re.findall(r"<p><strong>On this page:</strong>(.*?)</p>", page, re.DOTALL)
        assert page.count("<h2>") == contents.count('href="#') > 2


def test_the_search_finds_a_key_and_a_function(site: Path, window: "BrowserContext") -> None:
    page = window.new_page()
    for words, found in {
        "grad_accumulation": "Keys of a recipe: [train]",
        "MultiHeadAttention": "nn.multiheadattention",
    }.items():
        page.goto(f"{(site / 'search.html').as_uri()}?q={words}")
        page.locator("#search-results a", has_text=found).first.wait_for()
    page.close()


def script_errors(folder: Path, window: "BrowserContext", queries: list[str]) -> list[str]:
    """Return the errors of scripts while a served site shows the results of searches with their summaries."""
    errors: list[str] = []
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        page = window.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        for query in queries:
            page.goto(f"http://127.0.0.1:{server.server_port}/search.html?q={quote(query)}")
            page.locator("#search-results .search-summary", has_text="finished").wait_for()
            page.wait_for_load_state("networkidle")  # all summaries are read
            assert page.locator("#search-results li").count(), query
        page.close()
        server.shutdown()
    return errors


class QuietHandler(SimpleHTTPRequestHandler):
    """A server of files without a log."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_search_for_an_index_entry_ends_without_an_error(site: Path, window: "BrowserContext") -> None:
    """A result of an index entry points to an empty element; only a served site reads its text for a summary."""
    index = json.loads((site / "searchindex.js").read_text("utf-8").removeprefix("Search.setIndex(").removesuffix(")"))
    entries = sorted(entry for entry in index["indexentries"] if re.fullmatch(r"[a-z ]{4,}", entry))
    queries = ["learning rate", "kv cache", *random.Random(0).sample(entries, 8)]
    assert script_errors(site, window, queries) == []
