"""The configuration of the documentation: `make docs` builds it into `docs/_build/html`."""

import gc
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

import generate
import live
import notebooks
import terms
from markup import in_colab, table

from glassformer import __version__
from glassformer.apps import course
from glassformer.apps.course.notebooks import chapters, expanded

# A build makes millions of objects that stay: to look for garbage among them takes a quarter of it. Without it, a build
# ends with 1.4 GB in place of 0.7.
gc.disable()

project = "glassformer"
author = "The glassformer authors"
html_show_copyright = False
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx-mathjax-offline"]
exclude_patterns = ["_build", "log"]

nb_execution_mode = "cache"  # a chapter of the course runs again if its code or the package has changed
nb_execution_cache_path = str(notebooks.cache_folder())
nb_execution_in_temp = True
nb_execution_timeout = notebooks.CELL_TIMEOUT_S
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_output_stderr = "warn"  # so a warning of Python is an error of the build
nb_merge_streams = True
nb_render_markdown_format = "myst"  # so a computed paragraph may be a table
nb_execution_excludepatterns = notebooks.not_rendered() if course.is_short() else []
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "tasklist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
default_role = "code"
smartquotes = False  # `--option` keeps its two hyphens
highlight_language = "text"
add_module_names = False
python_use_unqualified_type_names = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

LONG_PAGES = (
    "reference/generated/python",
    "reference/json",
    "reference/files",
    "reference/server",
    "reference/generated/endpoints",
    "reference/generated/mistakes",
    "reference/generated/settings",
    "ecosystem",
    "results",
)
"""Pages whose sections are listed above the first one. The page of the command line begins with a table of verbs."""

TABLE_OF_CHAPTERS = "<!-- table of the chapters -->"
"""The place in the index of the course where a build puts the table of the chapters."""

LIVE_MODEL = "<!-- live model -->"
"""The place in the home page where a build puts the live model."""

html_theme = "furo"
html_title = "glassformer"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_js_files = ["parts.js"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "github-dark"


def mark_examples(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Mark the code of a docstring, indented or between fences: reStructuredText would take it for sentences."""
    marked: list[str] = []
    in_fence = False
    for n, line in enumerate(lines):
        if line.startswith("```"):
            in_fence = line != "```"
            marked += [".. code-block:: python", ""] if in_fence else [""]
            continue
        is_first = line.startswith("    ") and n > 0 and not lines[n - 1].strip() and not in_fence
        if is_first and not any(before.startswith((" ", "-", "*")) for before in marked[-2:-1]):
            marked += [".. code-block:: python", ""]
        marked.append("    " + line if in_fence else line)
    lines[:] = marked


def mend_search(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Add a script to the page of the search, whose results of index entries have no summary (`search.js`)."""
    if page == "search":
        app.add_js_file("search.js")


def complete_chapter(app: Sphinx, page: str, source: list[str]) -> None:
    """Put reading time and a link to the notebook below the title of a chapter, and link the terms of the glossary."""
    folder, _, name = page.rpartition("/")
    if folder in ("course", "from-notebooks") and name[:1].isdigit():
        link = f'<a href="{name}.ipynb" download>Download this page as a Jupyter notebook</a>'
        link += in_colab(f"{folder}/{name}.ipynb")
        head = f"{notebooks.reading_time(source[0])} {link}"
        text = notebooks.below_title(terms.linked(expanded(source[0]), name.partition("-")[0]), head)
        source[0] = f"{text}\n\n## Try it\n\n{live.frame(page)}\n" if page in live.PANELS else text


def show_live_model(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the live model into the home page."""
    source[0] = source[0].replace(LIVE_MODEL, live.frame(page) if page in live.PANELS else "")


def list_chapters(app: Sphinx, page: str, source: list[str]) -> None:
    """Put a table of the chapters with their reading times into the index of the course."""
    if page == "course/index":
        rows = []
        for chapter in chapters():
            app.env.note_dependency(str(chapter))
            rows.append((f"[]({chapter.name})", f"{notebooks.reading_minutes(chapter.read_text('utf-8'))} minutes"))
        source[0] = source[0].replace(TABLE_OF_CHAPTERS, "\n".join(table(("Chapter", "Reading time"), rows)))


def list_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Put links to its sections above the first section of a long page: a narrow screen shows no other list."""
    titles = re.findall(r"^## (.+)$", source[0], flags=re.MULTILINE)
    if page in LONG_PAGES and "## " in source[0]:
        links = " · ".join(f"[{title}](#{slug(title)})" for title in titles)
        source[0] = source[0].replace("\n## ", f"\n**On this page:** {links}\n\n## ", 1)


def resolve_navigation_once(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Resolve the tree of the site once for the orphan pages of a folder, such as those of objects: it is the same."""
    if "orphan" in app.env.metadata.get(page, {}):
        context["toctree"] = navigations.setdefault(page.rpartition("/")[0], cache(context["toctree"]))


navigations: dict[str, Callable[..., str]] = {}
"""The tree of the site as a page of a folder shows it, if the tree does not have the page."""


def slug(title: str) -> str:
    """Return the anchor that MyST gives to a heading, as GitHub does: `[train]` has `train`."""
    return re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-")


def write_live_model(app: Sphinx, error: Exception | None) -> None:
    """Write the file of the live model beside the home page."""
    if error is None:
        live.write(Path(app.outdir), Path(app.doctreedir) / "live")


def write_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Write the chapters and the programs as notebooks beside their pages."""
    if error is None:
        for pages in (chapters(), notebooks.programs()):
            notebooks.write_notebooks(Path(app.outdir) / pages[0].parent.name, pages)


def setup(app: Sphinx) -> None:
    """Write the generated pages of the reference before Sphinx reads any page."""
    app.connect("source-read", complete_chapter)
    app.connect("source-read", show_live_model)
    app.connect("source-read", list_chapters)
    app.connect("source-read", list_contents)
    app.connect("html-page-context", resolve_navigation_once, priority=400)  # before the theme reads it
    app.connect("html-page-context", mend_search)
    app.connect("autodoc-process-docstring", mark_examples)
    app.connect("builder-inited", lambda _: generate.write_pages(Path(__file__).parent / "reference" / "generated"))
    app.connect("build-finished", write_notebooks)
    app.connect("build-finished", write_live_model)
