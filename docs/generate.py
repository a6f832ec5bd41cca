"""Write the reference pages that the code itself describes: command line, keys, recipes, presets, files of the source.

`conf.py` calls `write_pages` before each build, so these pages are never older than the code.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

import endpoints
import settings

import glassformer
from glassformer import recipes
from glassformer.cli import help as cli_help
from glassformer.cli.arguments import Group, Option, Signature
from glassformer.cli.main import VERBS
from glassformer.config.presets import N_PARAMETERS, PRESETS
from glassformer.config.run import Run
from glassformer.config.schema import Entry, describe

SOURCE = Path(glassformer.__file__).parent


def write_pages(folder: Path) -> None:
    """Write every generated page into the folder. A page that has not changed keeps its time, so a rebuild is quick."""
    folder.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        path, text = folder / f"{name}.md", page()
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def command_line() -> str:
    """Every verb, with its options in tables."""
    lines = [
        "# Command line",
        "",
        "```{index} cli, shell, commands, flags",
        "```",
        "",
        "`glassformer help VERB` prints the same in the terminal.",
        "",
    ]
    lines += table(("Verb", "What it does"), ((f"[`{verb}`](#{verb})", text) for verb, text in VERBS.items()))
    for verb in VERBS:
        lines += [f"## {verb}", "", *verb_sections(import_module(f"glassformer.cli.{verb}").main, verb)]
    return "\n".join(lines)


def verb_sections(function: "Callable[..., int] | Group", name: str) -> Iterator[str]:
    """Yield the usage, the explanation and the options of one verb, or of all verbs of a group."""
    if isinstance(function, Group):
        yield from (function.doc, "")
        for inner, of_inner in function.verbs.items():
            yield from (f"### {name} {inner}", "", *verb_sections(of_inner, f"{name} {inner}"))
        return
    signature = Signature.of(function, name)
    yield from ("```text", signature.usage, "```", "", escaped(signature.doc), "")
    rows = [(f"`{place.metavar}`", place.doc, "") for place in signature.places if place.doc]
    rows += [(f"`{option_name(option)}`", option.doc, default_of(option)) for option in signature.options]
    if rows:
        yield from table(("Option", "Meaning", "Default"), rows)
    if signature.keys:
        yield from ("Every [key of a recipe](keys.md) is an option too, by its whole name or by a short one.", "")
    if signature.examples:
        yield from ("```shell", *signature.examples, "```", "")


def option_name(option: Option) -> str:
    """Return the option as one types it, with its values."""
    values = "|".join(option.choices) or option.metavar
    return f"{'-' if len(option.name) == 1 else '--'}{option.name} {values}".strip()


def default_of(option: Option) -> str:
    """Return the default of an option as code; empty without a default."""
    if option.is_required:
        return "required"
    return "" if option.default in (None, False, "", ()) else f"`{option.default}`"


def keys() -> str:
    """Every key of a recipe, one table per section."""
    sections: dict[str, list[Entry]] = {}
    names = sorted({entry.key.rpartition(".")[2] for entry in describe(Run)})
    for entry in describe(Run):
        sections.setdefault(entry.key.partition(".")[0] if "." in entry.key else "", []).append(entry)
    lines = [
        "# Keys of a recipe",
        "",
        *index(["configuration", "settings", "config file", "toml", "hyperparameters", *names]),
        "A recipe is a TOML file. Each key is also a flag of `glassformer train` (`--train.max-steps 500`)",
        "and a keyword of `glassformer.train` (`max_steps=500`). `Kind` names the `kind` of a table that has the key.",
        "",
    ]
    for section, entries in sections.items():
        lines += [f"## {f'[{section}]' if section else 'Top level'}", ""]
        rows = [(f"`{e.key}`", e.doc, f"`{e.type}`", f"`{shown(e.default)}`", e.kind) for e in entries]
        lines += table(("Key", "Meaning", "Values", "Default", "Kind"), rows)
    return "\n".join(lines)


def index(words: Iterable[str]) -> list[str]:
    """Return the lines of a directive that lets the search of the site find a page by these words."""
    return ["```{index} " + ", ".join(f"! {word}" for word in words), "```", ""]


def settings_list() -> str:
    """List the keys to change first, and when to change each."""
    lines = [
        "# Settings, and when to change them",
        "",
        "The settings to change first. Change one at a time, and compare the evaluation loss. The defaults are those",
        "of a recipe that leaves the key out. `glassformer train FILE` chooses sizes, optimizer, learning rate, steps",
        "and dropout by the data ([table](../../how-to/choose-sizes.md)). An encoder has `model.encoder.` for",
        "`model.decoder.`. [Keys of a recipe](keys.md) has all settings.",
        "",
    ]
    for title, rows in settings.sections():
        lines += [f"## {title}", ""]
        cells = ((f"`{a.key}`", a.when, e[0].doc, defaults(e), f"[](../../{a.page}.md)") for e, a in rows)
        lines += table(("Key", "When to change it", "Meaning", "Default", "Explained in"), cells)
    return "\n".join(lines)


def defaults(entries: list[Entry]) -> str:
    """Return the defaults of a key as code, with their kinds if the key has several."""
    if len(entries) == 1:
        return f"`{shown(entries[0].default)}`"
    return "; ".join(f"`{shown(entry.default)}` ({entry.kind})" for entry in entries)


def recipe_list() -> str:
    """List the built-in recipes with their descriptions and the result that each must reach."""
    lines = [
        "# Recipes",
        "",
        "`glassformer train NAME` trains one. `glassformer reproduce NAME` also compares its result with the bound.",
        "[The results](../../results.md) were measured.",
        "",
    ]
    rows = [(f"`{name}`", recipes.load(name).description, bound(recipes.load(name))) for name in recipes.names()]
    return "\n".join([*lines, *table(("Recipe", "What it trains", "Must reach"), rows)])


def bound(run: Run) -> str:
    """Return the bound of a recipe's result; empty if the recipe has no bound."""
    result = run.result
    if result is None:
        return ""
    bounds = (("at most", result.at_most), ("at least", result.at_least))
    return f"{result.metric} " + " and ".join(f"{word} {value:g}" for word, value in bounds if value is not None)


def preset_list() -> str:
    """List the named configurations of models with their sizes."""
    rows = []
    for name, config in PRESETS.items():
        stacks = "+".join(s for s in ("encoder", "decoder") if getattr(config, s) is not None)
        size = f"{N_PARAMETERS[name]:,}" if config.vocab_size else "depends on the tokenizer"
        rows.append((f"`{name}`", stacks, str(config.head_stack.n_layers), str(config.d_model), size))
    lines = [
        "# Presets",
        "",
        "`glassformer presets NAME` prints one as TOML; `model.preset` of a recipe takes its name.",
        "",
    ]
    return "\n".join([*lines, *table(("Preset", "Stacks", "Layers", "d_model", "Parameters"), rows)])


def endpoint_list() -> str:
    """List the endpoints of the server with their parameters and answers; its limits, errors and metrics."""
    lines = [
        "# Endpoints of the server",
        "",
        *index(["endpoints", "rest api", "http api"]),
        "[Reference of the server](../server.md) has examples. `/openapi.json` of a running server has the same in the",
        "format of OpenAPI. `[]` stands for the items of a list. A parameter without a default may be absent.",
        "",
    ]
    for title, text, head, rows in endpoints.sections():
        lines += [f"## {title}", ""] if title else []
        lines += [escaped(text), "", *table(head, rows)]
    return "\n".join(lines)


def source_files() -> str:
    """List the first sentence of every module, folder by folder."""
    lines = ["# Files of the source", "", "One line per file: the first paragraph of its docstring.", ""]
    folders = [SOURCE, *sorted(path.parent for path in SOURCE.rglob("*/__init__.py"))]
    for folder in folders:
        name = folder.relative_to(SOURCE.parent).as_posix() + "/"
        lines += [f"## {name}", "", escaped(first_paragraph(folder / "__init__.py")), ""]
        files = [path for path in sorted(folder.glob("*.py")) if not path.name.startswith("__")]
        lines += table(("File", "What is in it"), ((f"`{path.name}`", first_paragraph(path)) for path in files))
    return "\n".join(lines)


def first_paragraph(path: Path) -> str:
    """Return the first paragraph of a module's docstring, in one line."""
    return cli_help.sentence(ast.get_docstring(ast.parse(path.read_text("utf-8"))))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table; no lines without rows."""
    body = [f"| {' | '.join(cell_of(text) for text in row)} |" for row in rows]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *body]
    return ["::::{container} reference-table", *lines, "::::", ""] if body else []


def cell_of(text: str) -> str:
    """Return a text as one line of a table's cell."""
    return escaped(" ".join(text.split())).replace("|", "\\|")


def escaped(text: str) -> str:
    """Text with the characters that Markdown would read as something else, outside of code."""
    parts = text.split("`")
    return "`".join(part if n % 2 else part.replace("<", "&lt;").replace("*", "\\*") for n, part in enumerate(parts))


def shown(value: object) -> str:
    """Write a default as a recipe writes it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return " ".join(map(str, value)) or '""' if isinstance(value, (list, tuple)) else str(value) or '""'


PAGES = {
    "command-line": command_line,
    "keys": keys,
    "settings": settings_list,
    "recipes": recipe_list,
    "presets": preset_list,
    "endpoints": endpoint_list,
    "source-files": source_files,
}
