"""Help texts of verbs, of groups of verbs, and of single options and keys; 80 columns wide.

A verb that takes all keys of a run lists only the most used ones; `--help all` lists all.
"""

import textwrap
from collections.abc import Sequence
from typing import Any

from glassformer.apps.cli.arguments import METAVARS, Group, Option, Signature, dashed
from glassformer.config import recipes
from glassformer.config.changes import whole_keys
from glassformer.config.run import Run
from glassformer.config.schema import Entry, type_text
from glassformer.config.written import toml_value

WIDTH = 80
WRAP: dict[str, Any] = {"width": WIDTH, "break_on_hyphens": False, "break_long_words": False}
COLUMN = 30
"""Column where explanations begin if all names of a list are shorter; otherwise they go below the names."""
N_FIRST = 10
"""Number of options and keys that are listed first."""
FIRST_KEYS = (
    *("size", "train.max_steps", "train.batch_size", "train.optimizer.learning_rate", "train.device", "train.seed"),
    *("data.path", "model.d_model", "tokenizer.vocab_size", "train.precision"),
)
"""The most used keys."""
ALL = "all"
"""The word after `--help` that asks for every key."""
NAMES = {type_text(kind): name for kind, name in METAVARS.items()}
"""For each type as text, the placeholder of its values."""

Row = tuple[str, list[str]]
"""A name and its meanings, one text per meaning."""


def of_group(group: Group, name: str) -> str:
    """Return the help of a group of verbs."""
    rows = [(verb, [sentence(function.__doc__)]) for verb, function in group.verbs.items()]
    more = f"`glassformer {name} VERB --help` describes one verb."
    return "\n".join([f"usage: glassformer {name} VERB …", "", *_wrapped(group.doc), "", *table(rows), "", more])


def of_verb(verb: Signature, *, is_whole: bool = False) -> str:
    """Return the help of a verb: the most used options, the other options, each once, and examples.

    If the verb has many keys of a run, only the most used ones are listed. `is_whole` lists all keys, by section.
    """
    lines = textwrap.wrap(f"usage: {verb.usage}", WIDTH, subsequent_indent=" " * 7)
    for paragraph in verb.doc.split("\n\n"):
        lines += ["", *_wrapped(paragraph)]
    # What the short help shows: own options, and the keys to change first
    keys = verb.keys
    is_whole = is_whole or len(keys) <= 2 * N_FIRST
    is_long = bool(keys) or len(verb.options) > N_FIRST
    usual = ["", *(group for group, (_, make) in verb.groups.items() if getattr(make, "is_usual", False))]
    own = [option for option in verb.options if option.group in usual or not is_long]
    taken = {option.name for option in verb.options}
    first = [key for key in FIRST_KEYS if key in keys and _short_name(key) not in taken][: max(0, N_FIRST - len(own))]
    parts = {
        "": [(place.metavar, [place.doc]) for place in verb.places if place.doc],
        "Most used options:" if is_long else "Options:": [*map(_row, own), *(_short_row(keys[key]) for key in first)],
    }
    for group, (title, _) in verb.groups.items():
        parts[f"{title}:"] = [_row(option) for option in verb.options if option.group == group and option not in own]
    for key in (key for key in keys if key not in first and is_whole):
        parts.setdefault(f"[{key.partition('.')[0]}]", []).append(_key_row(keys[key]))
    # The lines of each part
    for title, rows in parts.items():
        if rows:
            lines += ["", *filter(None, [title]), *table(rows)]
    if verb.examples:
        lines += ["", "Examples:", *(f"  {example}" for example in verb.examples)]
    if verb.keys:
        more = f" `glassformer {verb.verb} --help {ALL}` lists all keys." * (not is_whole)
        lines += ["", *_wrapped(f"`glassformer {verb.verb} --help KEY` explains one key or a section.{more}")]
    return "\n".join(lines)


def of_option(verb: Signature, name: str) -> str:
    """Return the help of one option, one key, or all keys of a section, by full or short name."""
    name = name.lstrip("-")
    if name == ALL:
        return of_verb(verb, is_whole=True)
    for option in verb.options:
        if option.name == name.replace("_", "-"):
            return "\n".join(table([_row(option)]))
    keys = verb.keys
    if not keys:
        raise verb.unknown(name)
    [key] = whole_keys(Run(), {name: ""}, [recipes.PRESET, recipes.SIZE])
    if key in keys:
        return "\n".join(_explained(keys[key]))
    below = [_key_row(entries) for inner, entries in keys.items() if inner.startswith(f"{key}.")]
    if not below:
        raise verb.unknown(name)
    return "\n".join([f"[{key}]", *table(below)])


def sentence(doc: str | None) -> str:
    """Return the first paragraph of a docstring in one line."""
    return " ".join((doc or "").split("\n\n")[0].split())


def table(rows: Sequence[Row], column: int = COLUMN) -> list[str]:
    """Return the lines of names and their meanings, side by side if all names are short."""
    is_short = all(len(name) <= column - 4 for name, _ in rows)
    lines = []
    for name, meanings in rows:
        indent = " " * (column if is_short else 6)
        texts = [line for meaning in meanings for line in _wrapped(meaning, indent)]
        if is_short:
            texts[0] = f"  {name}".ljust(column) + texts[0].lstrip()
        else:
            lines.append(f"  {name}")
        lines += texts
    return [line.rstrip() for line in lines]


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(" ".join(text.split()), initial_indent=indent, subsequent_indent=indent, **WRAP) or [""]


def _row(option: Option) -> Row:
    notes = [" | ".join(option.choices)] if option.choices else []
    if not option.is_required and option.default not in (None, False, "", ()):
        notes.append(f"default {_shown(option.default)}")
    return f"{dashed(option.name)} {option.metavar}".strip(), [_with_notes(option.doc, notes)]


def _key_row(entries: Sequence[Entry]) -> Row:
    """Return a key and one text per meaning. The kinds of runs that have the key follow it, or precede each text."""
    kind = entries[0].type
    metavar = "LIST" if kind.startswith(("[", "list of")) else NAMES.get(kind.removesuffix(" | none"), "NAME")
    head = f"--{entries[0].key.replace('_', '-')} {metavar}".strip()
    rows = []
    for kinds, doc, values, default in _meanings(entries):
        is_named = values.removesuffix(" | none") in NAMES
        rows.append((kinds, _with_notes(doc, [values] * (not is_named) + [f"default {default}"])))
    [(kinds, text), *others] = rows
    if others or len(f"{head}  ({kinds})") > WIDTH - 2:
        return head, [f"{kinds}: {text}" for kinds, text in rows]
    return head + (f"  ({kinds})" if kinds else ""), [text]


def _short_row(entries: Sequence[Entry]) -> Row:
    entry = entries[0]
    metavar = NAMES.get(entry.type.removesuffix(" | none"), "NAME")
    return f"--{_short_name(entry.key)} {metavar}", [_with_notes(entry.doc, [f"default {_shown(entry.default)}"])]


def _short_name(key: str) -> str:
    return key.rsplit(".", 1)[-1].replace("_", "-")


def _meanings(entries: Sequence[Entry]) -> list[tuple[str, str, str, str]]:
    """Return each meaning of a key: the kinds of runs with the key, its description, its values and its default."""
    alike: dict[tuple[str, str], dict[str, list[str]]] = {}
    for entry in entries:
        kinds = alike.setdefault((entry.doc, entry.type), {}).setdefault(_shown(entry.default), [])
        if entry.kind not in ("", *kinds):
            kinds.append(entry.kind)
    meanings = []
    for (doc, values), defaults in alike.items():
        by_kind = [f"{default} for {' and '.join(kinds)}" for default, kinds in defaults.items()]
        all_kinds = dict.fromkeys(kind for kinds in defaults.values() for kind in kinds)
        meanings.append((", ".join(all_kinds), doc, values, ", ".join(by_kind if len(defaults) > 1 else defaults)))
    return meanings


def _explained(entries: Sequence[Entry]) -> list[str]:
    """Explain one key: description, values, default, kinds, and its form in a recipe and on the command line."""
    entry = entries[0]
    lines = [entry.key]
    for kinds, doc, values, default in _meanings(entries):
        facts = {"values": values, "default": default, "kinds": kinds}
        lines += ["", *_wrapped(doc, "  "), *table([(name, [text]) for name, text in facts.items() if text], 12)]
    if entry.members:
        members = [(member.kind, [sentence(member.__doc__)]) for member in entry.members]
        lines += ["", "Kinds:", *table(members, 4 + max(len(kind) for kind, _ in members))]
    path, _, leaf = entry.key.rpartition(".")
    value = next((each.default for each in entries if each.default is not None), "…")
    shown = _shown(value)
    if " " in shown:
        shown = f'"{shown}"'
    if path:
        lines += ["", "In a recipe:", f"  [{path}]", f"  {leaf} = {toml_value(value)}"]
    return [*lines, "", "On the command line:", f"  --{entry.key.replace('_', '-')} {shown}"]


def _with_notes(doc: str, notes: Sequence[str]) -> str:
    return f"{doc.rstrip('.')} ({'; '.join(notes)})" if notes else doc


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        value = " ".join(map(str, value))
    return str(value) or '""'
