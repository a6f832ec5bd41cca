"""Write the reference pages that the code itself describes: verbs, objects, keys, recipes, mistakes, source files.

`conf.py` calls `write_pages` before each build, so these pages are never older than the code.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import commands
import endpoints
import imported
import mistakes
import objects
import settings
from markup import escaped, index, table

import glassformer
from glassformer.apps.cli import help as cli_help
from glassformer.config import recipes
from glassformer.config.presets import N_PARAMETERS, PRESETS
from glassformer.config.run import Run
from glassformer.config.schema import Entry, describe

SOURCE = Path(glassformer.__file__).parent


def write_pages(folder: Path) -> None:
    """Write every generated page into the folder, and remove those that are no longer generated.

    A page that has not changed keeps its time, so a rebuild is quick.
    """
    own = ((name, page()) for name, page in PAGES.items())
    texts = {folder / f"{name}.md": text for name, text in (*own, *keys(), *commands.pages(), *objects.pages())}
    for path in set(folder.rglob("*.md")) - set(texts):
        path.unlink()
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def keys() -> Iterator[tuple[str, str]]:
    """Yield name and text of the page of the sections of a recipe, and of the page of each section."""
    sections: dict[str, list[Entry]] = {}
    for entry in describe(Run):
        sections.setdefault(entry.key.partition(".")[0] if "." in entry.key else "", []).append(entry)
    lines = [
        "# Keys of a recipe",
        "",
        *index(["configuration", "settings", "config file", "toml", "hyperparameters"]),
        "A recipe is a TOML file. Each key is also a flag of `glassformer train` (`--train.max-steps 500`)",
        "and a keyword of `glassformer.train` (`max_steps=500`). `Kind` names the `kind` of a table that has the key.",
        "",
        *keys_table(sections.pop("")),
        *("```{toctree}", ":maxdepth: 1", "", *(f"keys/{section}" for section in sections), "```", ""),
    ]
    yield "keys", "\n".join(lines)
    for section, entries in sections.items():
        names = sorted({entry.key.rpartition(".")[2] for entry in entries})
        tables: dict[str, list[Entry]] = {}  # [model] and its tables: [model.encoder], ...
        for entry in entries:
            tables.setdefault(".".join(entry.key.split(".")[:2]) if entry.key.count(".") > 1 else "", []).append(entry)
        page = [f"# Keys of a recipe: [{section}]", "", *index(names), *keys_table(tables.pop("", []))]
        for name, inner in tables.items():
            page += [f"## [{name}]", "", *keys_table(inner)]
        yield f"keys/{section}", "\n".join(page)


def keys_table(entries: list[Entry]) -> list[str]:
    """Return the lines of a table of keys."""
    rows = ((f"`{e.key}`", e.doc, f"`{e.type}`", f"`{shown(e.default)}`", e.kind) for e in entries)
    return table(("Key", "Meaning", "Values", "Default", "Kind"), rows)


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
    """List the endpoints of the server with their parameters and answers; its limits and errors."""
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


def shown(value: object) -> str:
    """Write a default as a recipe writes it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return " ".join(map(str, value)) or '""' if isinstance(value, (list, tuple)) else str(value) or '""'


PAGES = {
    "settings": settings_list,
    "recipes": recipe_list,
    "presets": preset_list,
    "endpoints": endpoint_list,
    "mistakes": mistakes.page,
    "imported": imported.page,
    "source-files": source_files,
}
