"""Settings from other packages: members that a tagged union gets beside its own.

A package names what it adds in its entry points, in a group; what is registered by hand comes from a notebook.
"""

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from glassformer.errors import UserError

TASKS = "glassformer.tasks"
"""The group of tasks: objects whose `settings` is the dataclass of their objective."""
_registered: dict[str, list[type]] = {}


@dataclass(frozen=True)
class Extensible:
    """Marks a union, `Annotated[A | B, Extensible(group)]`, whose members may come from other packages too."""

    group: str


def register_settings(group: str, settings: type) -> None:
    """Add a member to a union by hand; one of the same kind is replaced."""
    kept = [cls for cls in _registered.get(group, []) if _kind(cls) != _kind(settings)]
    _registered[group] = [*kept, settings]


def registered_settings(group: str) -> tuple[type, ...]:
    """The members that other packages and `register_settings` add to the unions of a group.

    Raises `UserError` for an installed package whose entry point cannot be loaded.
    """
    return (*(cls for cls in _installed(group) if cls not in _registered.get(group, [])), *_registered.get(group, []))


def entry_points(group: str) -> Mapping[str, metadata.EntryPoint]:
    """The entry points of a group by their names."""
    return _entry_points(group, tuple(sys.path))


@functools.cache
def _entry_points(group: str, path: tuple[str, ...]) -> Mapping[str, metadata.EntryPoint]:
    """`path` is where packages are looked for; it may grow."""
    return {entry.name: entry for entry in metadata.entry_points(group=group)}


def _installed(group: str) -> list[type]:
    found = []
    for entry in entry_points(group).values():
        try:
            settings: type = entry.load().settings
        except Exception as error:  # other people's code
            package = "an installed package" if entry.dist is None else f"the package {entry.dist.name}"
            raise UserError(f"{entry.name!r} ({group}) of {package} cannot be loaded: {error}") from error
        if _kind(settings) != entry.name:
            raise UserError(
                f"the entry point {entry.name!r} ({group}) must have the name of its kind, {_kind(settings)!r}"
            )
        found.append(settings)
    return found


def _kind(settings: Any) -> str:
    return str(settings.kind)
