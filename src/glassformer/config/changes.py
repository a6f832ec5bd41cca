"""Changes of a configuration: by dotted keys, by short names, and by the text of flags."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from glassformer.common.errors import UserError, nearest_name, shown, suggestion
from glassformer.config.schema import RENAMED, SAME, FlagText, current_name, from_dict, known_keys, to_dict

T = TypeVar("T")

NO_KEY = {
    "task": "the recipe decides the task (see `glassformer recipes`): train a recipe, and give your data as data.path",
    "resume": "continue a run with `glassformer resume FOLDER`, in Python glassformer.resume(FOLDER)",
    **dict.fromkeys(("out_dir", "output_dir", "save_dir"), "the run folder is `out`"),
    **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs"), "a run counts optimizer steps: train.max_steps"),
}
"""Names that are no key of a run, and what to do instead."""


def apply_flags(value: T, flags: Mapping[str, str], where: str = "the command line") -> T:
    """Copy a configuration with some dotted keys replaced by the text of flags.

    >>> from glassformer.config.transformer import Stack
    >>> apply_flags(Stack(), {"n-layers": "3"}).n_layers
    3
    """
    return apply_changes(value, {flag: FlagText(text) for flag, text in flags.items()}, where)


def apply_changes(value: T, changes: Mapping[str, Any], where: str = "") -> T:
    """Copy a configuration with some dotted keys replaced by plain values, or by whole dataclasses.

    >>> from glassformer.config.transformer import RotaryPositions, TransformerConfig, Stack
    >>> config = TransformerConfig(decoder=Stack())
    >>> changed = apply_changes(config, {"positions": RotaryPositions(), "positions.base": 500.0, "max_len": 64})
    >>> changed.positions.base, changed.max_len
    (500.0, 64)
    """
    nested: dict[str, Any] = {}
    for name, new in sorted(changes.items(), key=lambda change: change[0].count(".")):  # outer tables first
        *path, leaf = name.replace("-", "_").split(".")
        inner = nested
        for part in path:
            if not isinstance(inner.get(part), dict):
                inner[part] = {}
            inner = inner[part]
        inner[leaf] = to_dict(new)
    return from_dict(type(value), merged(to_dict(value), nested), where)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables with some values replaced; a table of another `kind` replaces the whole old table.

    >>> merged({"a": {"kind": "x", "n": 1}, "b": 2}, {"a": {"n": 3}})
    {'a': {'kind': 'x', 'n': 3}, 'b': 2}
    """
    whole = dict(base)
    for key, new in changes.items():
        old = whole.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping) and new.get("kind") in (None, old.get("kind")):
            new = merged(old, new)
        whole[key] = new
    return whole


def whole_keys(
    value: Any, changes: Mapping[str, Any], others: Sequence[str] = (), sections: Sequence[str] = ()
) -> dict[str, Any]:
    """Replace short names of keys by the dotted keys that they mean; a table is replaced by its keys, one by one.

    A short name is the last part of a dotted key. If several keys match, the keys that `value` has are preferred, then
    those in the first of `sections` with a match, then the one with the fewest dots. Names may also mean keys in
    `others`. Raises `UserError` for a name that is unknown or ambiguous.

    >>> from glassformer.config.run import Run
    >>> whole_keys(Run(), {"max_steps": 5, "optimizer": {"learning_rate": 0.1}, "train.batch-size": 8})
    {'train.max_steps': 5, 'train.optimizer.learning_rate': 0.1, 'train.batch_size': 8}
    """
    if not changes:
        return {}
    known = _with_tables([*known_keys(type(value)), *others])
    own = _with_tables(_dotted(to_dict(value)))
    whole: dict[str, Any] = {}
    for name, new in changes.items():
        key = _whole_key(name.replace("-", "_"), known, own, sections)
        dotted = _dotted({key: new})
        if twice := [key for key in dotted if key in whole]:
            raise UserError(f"{twice[0]} is given twice: give it once")
        whole |= dotted
    return whole


def _whole_key(name: str, known: Sequence[str], own: Sequence[str], sections: Sequence[str]) -> str:
    if old := [key for key in RENAMED if name in (key, key.rsplit(".", 1)[-1])]:
        return current_name(old[0])
    if "." in name or name in known:
        return name  # `from_dict` suggests the nearest key for an unknown dotted key
    if name in NO_KEY:
        raise UserError(f"unknown key {name}: {NO_KEY[name]}")
    if same := [key for key in own if key.rsplit(".", 1)[-1] == SAME.get(name)]:
        hint = " or ".join(same[:2])
        with suppress(UserError):  # an ambiguous short name
            hint = f"{SAME[name]}, here {_whole_key(SAME[name], known, own, sections)}"
        raise UserError(f"unknown key {name}: did you mean {hint}?")
    alike = [key for key in known if key.rsplit(".", 1)[-1] == name]
    found = alike
    if len(alike) > 1:
        found = [key for key in alike if key in own]
    relatives = [key for key in own if key.endswith(f"_{name}")]
    if relatives and not any(key in own for key in found):
        raise UserError(f"{name} may mean {' or '.join([*found, *relatives])}: give the full key")
    for section in sections:
        nearest = sorted((key.count("."), key) for key in found if key.startswith(f"{section}."))
        if nearest and len(found) > 1:
            found = [key for dots, key in nearest if dots == nearest[0][0]]
            break
    if len(found) == 1:
        return found[0]
    if alike:
        raise UserError(f"{name} may mean {' or '.join(found or alike)}: give the full key")
    leaves = {key.rsplit(".", 1)[-1]: key for key in reversed([*own, *known])}  # keys of `value` take precedence
    near = None if name in SAME else nearest_name(name, leaves, cutoff=0.7)
    raise UserError(f"unknown key {shown(name)}{suggestion(leaves.get(near or ''))}")


def _with_tables(keys: Iterable[str]) -> list[str]:
    """Return dotted keys and the tables that contain them."""
    parts_of_keys = [key.split(".")[:n] for key in keys for n in range(1, key.count(".") + 2)]
    return list(dict.fromkeys(".".join(parts) for parts in parts_of_keys))


def _dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables. The keys are dotted keys."""
    values: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            values |= _dotted(value, f"{prefix}{name}.")
        else:
            values[f"{prefix}{name}"] = value
    return values
