"""Recipes: one TOML file per tested run, with its expected result. `REFERENCE.toml` documents every key."""

from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from glassformer import files
from glassformer.config.presets import preset
from glassformer.config.run import Run
from glassformer.config.schema import apply_changes, from_dict, parse_toml, to_dict, whole_keys
from glassformer.errors import UserError, did_you_mean

PRESET = "model.preset"
"""Key of `[model]` that names the preset to start from; it is not a field and is removed when a recipe is read."""


def names() -> list[str]:
    """Return the names of the recipes in the package."""
    here = package_files("glassformer.recipes")
    found = (item.name for item in here.iterdir() if item.name.endswith(".toml"))
    return sorted(name.removesuffix(".toml") for name in found if not name.startswith("REFERENCE"))


def run_of(source: str | Path) -> Run:
    """Build the run that `glassformer train SOURCE` starts.

    `source` is the name of a recipe, a TOML file, or a text file or folder of texts (`for_text`).

    >>> run_of("copy-task").name
    'copy-task'
    """
    name = str(files.as_path(source, "source"))
    is_text = not name.endswith(".toml") and name not in names()
    is_text = is_text and (files.exists(Path(name)) or Path(name).suffix != "" or "/" in name)
    return for_text(name) if is_text else load(name)


def with_changes(run: Run, changes: Mapping[str, Any] | None = None, where: str = "", **settings: Any) -> Run:
    """Copy a run with some of its keys replaced, by whole or short name (`schema.whole_keys`).

    `changes` and `settings` have the same effect. If a short name matches several keys, the first of `[train]`,
    `[data]`, `[tokenizer]` and `[model]` with a match is used. `model.preset` replaces the whole model by a preset, and
    other keys of the model then change it. Raises `UserError` for a key that is unknown, ambiguous, or given twice.

    >>> with_changes(load("copy-task"), {"max_steps": 5, "model.preset": "gpt2"}, d_model=96).model.d_model
    96
    >>> with_changes(load("copy-task"), seed=3).train.seed
    3
    """
    if twice := set(changes or {}) & set(settings):
        raise UserError(f"{min(twice)} is given twice: give it once")
    whole = whole_changes(run, {**(changes or {}), **settings})
    name = whole.pop(PRESET, None)
    return apply_changes(run if name is None else replace(run, model=preset(str(name))), whole, where)


def whole_changes(run: Run, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of `with_changes` by the whole names of their keys."""
    return whole_keys(run, changes, [PRESET], ("train", "data", "tokenizer", "model"))


def load(name: str | Path) -> Run:
    """Load the run of a recipe, by the recipe's name or the path of a TOML file.

    >>> load("copy-task").name
    'copy-task'
    """
    name = str(files.as_path(name, "name"))
    if name.endswith(".toml"):
        return parse(files.read_text(Path(name)), name)
    return parse(text(name), f"recipe {name}")


def text(name: str) -> str:
    """Return the TOML of a recipe in the package, or of REFERENCE."""
    if name not in [*names(), "REFERENCE"]:
        hint = did_you_mean(name, names(), "known recipes are", cutoff=0.4)
        raise UserError(f"no recipe or file is called {name!r}: {hint}")
    return (package_files("glassformer.recipes") / f"{name}.toml").read_text("utf-8")


def parse(text: str, where: str) -> Run:
    """Parse a run from TOML. `preset = "name"` in `[model]` starts from that preset; the other keys change it."""
    table = parse_toml(text, where)
    model = table.get("model")
    if isinstance(model, dict) and "preset" in model:
        base = to_dict(preset(str(model.pop("preset"))))
        table["model"] = _merged(base, model)
    table.setdefault("name", Path(where).stem.removeprefix("recipe "))
    return from_dict(Run, table, where)


def for_text(path: str | Path) -> Run:
    """Build a run for the user's own text, sized to its length.

    On two cores it takes 1 to 2 minutes for a short text and about 15 minutes for tens of MB; use a GPU for more."""
    path = files.as_path(path, "path")
    if not files.exists(path):
        raise UserError(f"no such file: {path}")
    parts = [item for item in path.rglob("*") if item.is_file()] if path.is_dir() else [path]
    size = _suited(sum(part.stat().st_size for part in parts))
    if path.suffix.lower() in (".tsv", ".csv"):
        raise UserError(
            f"{path} is a table, and a language model needs plain text: for labelled texts, run glassformer train "
            f"docstrings --data.path {path}; for pairs, glassformer train multi30k-en-de-tiny --data.path {path} (in "
            f'Python: glassformer.train("docstrings", changes={{"data.path": "{path}"}})); to train on the table as '
            "plain text, rename it to .txt"
        )
    _, vocab_size, model, context, batch_size, steps, dropout = size
    template = f"""
        [model]
        preset = "{model}"
        max_len = {context}
        tie_output = true
        embedding_dropout = {dropout}
        residual_dropout = {dropout}
        [model.init]
        kind = "normal"
        [tokenizer]
        vocab_size = {vocab_size}
        [train]
        max_steps = {steps}
        batch_size = {batch_size}
        eval_every = {steps // 8}
        [train.optimizer]
        kind = "muon"
        learning_rate = 0.01
        [train.optimizer.adamw]
        learning_rate = 0.01
        weight_decay = 0.0
        [train.schedule]
        kind = "linear"
        [generation]
        temperature = 0.8
        top_k = 50
    """
    run = parse(template, f"the defaults for {path}")
    return from_dict(Run, _merged(to_dict(run), {"name": path.stem or "run", "data": {"path": str(path)}}))


def vocab_size_for(n_bytes: int) -> int:
    """Return a suitable vocabulary size for a text of `n_bytes`.

    >>> vocab_size_for(1_000_000)
    2048
    """
    return _suited(n_bytes)[1]


_BY_SIZE: list[tuple[float, int, str, int, int, int, float]] = [
    # maximum bytes, vocabulary, preset, context, rows, steps, dropout
    (1 << 17, 1024, "modern-mini", 64, 16, 400, 0.2),
    (1 << 19, 2048, "modern-mini", 128, 16, 600, 0.2),
    (1 << 22, 2048, "modern-mini", 128, 16, 1600, 0.1),
    (1 << 26, 4096, "modern-mini", 128, 32, 4000, 0.0),
    (float("inf"), 8192, "modern-small", 256, 32, 10000, 0.0),
]


def _suited(n_bytes: int) -> tuple[float, int, str, int, int, int, float]:
    return next(size for size in _BY_SIZE if n_bytes <= size[0])


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge `changes` into `base` key by key; a table of another `kind` replaces the old one."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        same_kind = (
            isinstance(old, dict) and isinstance(value, dict) and value.get("kind", old.get("kind")) == old.get("kind")
        )
        merged[key] = _merged(old, value) if same_kind else value  # type: ignore[arg-type]
    return merged
