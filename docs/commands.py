"""The pages of the command line: a table of the verbs, and a page per verb with its options and examples."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from markup import escaped, table

from glassformer.apps.cli.arguments import Group, Option, Signature
from glassformer.apps.cli.main import VERBS

DOCS = Path(__file__).parent
GUIDES = ("tutorials", "how-to")
"""The folders of the pages that a verb's page links to."""
MORE = {"course": ("course/workshop.md", "reference/generated/mistakes.md")}
"""Other pages that a verb's page links to."""


def pages() -> Iterator[tuple[str, str]]:
    """Yield name and text of each page."""
    lines = [
        "# Command line",
        "",
        "```{index} cli, shell, commands, flags",
        "```",
        "",
        "`glassformer help VERB` prints the page of a verb in the terminal.",
        "",
        *table(("Verb", "What it does"), ((f"[`{verb}`](commands/{verb}.md)", text) for verb, text in VERBS.items())),
        *("```{toctree}", ":hidden:", "", *(f"commands/{verb}" for verb in VERBS), "```", ""),
    ]
    yield "command-line", "\n".join(lines)
    for verb in VERBS:
        yield f"commands/{verb}", "\n".join([f"# glassformer {verb}", "", *sections(verb), *guides(verb)])


def sections(verb: str) -> Iterator[str]:
    """Yield the usage, the examples, the explanation and the options of a verb, or of each verb of a group."""
    function = import_module(f"glassformer.apps.cli.{verb}").main
    if not isinstance(function, Group):
        yield from section(Signature.of(function, verb))
        return
    yield from (escaped(function.doc), "")
    for inner, of_inner in function.verbs.items():
        yield from (f"## {verb} {inner}", "", *section(Signature.of(of_inner, f"{verb} {inner}")))


def section(signature: Signature) -> Iterator[str]:
    """Yield what there is to know about one command."""
    yield from ("```text", signature.usage, "```", "", escaped(signature.doc), "")
    yield from ("```shell", *signature.examples, "```", "")
    rows = [(f"`{place.metavar}`", place.doc, "") for place in signature.places if place.doc]
    rows += [(f"`{option_name(option)}`", option.doc, default_of(option)) for option in signature.options]
    yield from table(("Option", "Meaning", "Default"), rows)
    if signature.keys:
        yield from ("Every [key of a recipe](../keys.md) is an option too, by its whole name or by a short one.", "")


def guides(verb: str) -> Iterator[str]:
    """Yield the links to the tutorials and guides whose commands use a verb, and to other pages about it."""
    paths = [path for folder in GUIDES for path in sorted((DOCS / folder).glob("*.md"))]
    used = re.compile(rf"^(\$ )?glassformer {verb}\b", re.MULTILINE)
    pages = [f"{path.parent.name}/{path.name}" for path in paths if used.search(path.read_text("utf-8"))]
    links = [f"- [](../../../{page})" for page in (*pages, *MORE.get(verb, ()))]
    if links:
        yield from ("## Used in", "", *links, "")


def option_name(option: Option) -> str:
    """Return the option as one types it, with its values."""
    values = "|".join(option.choices) or option.metavar
    return f"{'-' if len(option.name) == 1 else '--'}{option.name} {values}".strip()


def default_of(option: Option) -> str:
    """Return the default of an option as code; empty without a default."""
    if option.is_required:
        return "required"
    return "" if option.default in (None, False, "", ()) else f"`{option.default}`"
