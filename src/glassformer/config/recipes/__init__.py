"""Recipes: one TOML file for each tested run, with its expected result. The recipe REFERENCE has every key.

`data/own_data.py` builds the run for the user's own data.
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from glassformer.common import files
from glassformer.common.errors import UserError, did_you_mean, quoted
from glassformer.config.changes import apply_changes, merged, whole_keys
from glassformer.config.presets import preset
from glassformer.config.run import Run
from glassformer.config.schema import from_dict, to_dict
from glassformer.config.sizes import sized
from glassformer.config.written import parse_toml, reference

PRESET = "model.preset"
"""Key of `[model]` that names the preset to start from; it is not a field and is removed when a recipe is read."""

SIZE = "size"
"""Key that scales the model and its training together (`config.sizes`); it is not a field of a run."""


def names() -> list[str]:
    """Return the names of the recipes in the package."""
    here = package_files("glassformer.config.recipes")
    found = (item.name for item in here.iterdir() if item.name.endswith(".toml"))
    return sorted(name.removesuffix(".toml") for name in found)


def is_written(source: str | Path) -> bool:
    """Return True for the name of a recipe and for a TOML file, False for own data."""
    return source in names() or str(source).endswith(".toml")


def with_changes(run: Run, changes: Mapping[str, Any] | None = None, where: str = "", **settings: Any) -> Run:
    """Copy a run with some of its keys replaced, by whole or short name (`schema.whole_keys`).

    `changes` and `settings` have the same effect. If a short name matches several keys, the first of `[train]`,
    `[data]`, `[tokenizer]` and `[model]` with a match is used. `model.preset` replaces the whole model by a preset,
    then `size` scales model and training together (`sizes.sized`), and the other keys change the result. Raises
    `UserError` for a key that is unknown, ambiguous, or given twice.

    >>> with_changes(load("copy-task"), {"max_steps": 5, "model.preset": "gpt2"}, d_model=96).model.d_model
    96
    >>> with_changes(load("copy-task"), seed=3).train.seed
    3
    """
    if twice := set(changes or {}) & set(settings):
        raise UserError(f"{min(twice)} is given twice: give it once")
    whole = whole_changes(run, {**(changes or {}), **settings})
    name = whole.pop(PRESET, None)
    if name is not None:
        run = replace(run, model=preset(str(name)))
    size = whole.pop(SIZE, None)
    if size is not None:
        run = sized(run, int(size) if isinstance(size, str) and size.isdecimal() else size)
    return apply_changes(run, whole, where)


def whole_changes(run: Run, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of `with_changes` by the whole names of their keys."""
    return whole_keys(run, changes, [PRESET, SIZE], ("train", "data", "tokenizer", "model"))


def load(name: str | Path) -> Run:
    """Load the run of a recipe, by the recipe's name or the path of a TOML file.

    >>> load("copy-task").name
    'copy-task'
    """
    path = files.as_path(name, "name")
    if path.suffix == ".toml":
        return parse(files.read_text(path), str(path))
    return parse(text(str(name)), f"recipe {name}")


def text(name: str) -> str:
    """Return the TOML of a recipe in the package, or of REFERENCE."""
    if name == "REFERENCE":
        return reference()
    if name not in names():
        raise unknown(name)
    return (package_files("glassformer.config.recipes") / f"{name}.toml").read_text("utf-8")


def unknown(name: str) -> UserError:
    """Return the error for a name that no recipe has."""
    hint = did_you_mean(name, names(), "known recipes are", cutoff=0.4)
    return UserError(f"no recipe or file is called {quoted(name)}: {hint}")


def parse(text: str, where: str) -> Run:
    """Parse a run from TOML. `preset = "name"` in `[model]` starts from that preset; the other keys change it."""
    table = parse_toml(text, where)
    model = table.get("model")
    if isinstance(model, dict) and "preset" in model:
        base = to_dict(preset(str(model.pop("preset"))))
        table["model"] = merged(base, model)
    table.setdefault("name", Path(where).stem.removeprefix("recipe "))
    return from_dict(Run, table, where)
