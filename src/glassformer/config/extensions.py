"""Settings of other packages: members that they add to a union, by an entry point or by hand in a notebook."""

import functools
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from glassformer.common.errors import UserError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

TASKS = "glassformer.tasks"
"""Entry-point group of tasks: objects whose `settings` is the dataclass of their objective."""
OPTIMIZERS = "glassformer.optimizers"
"""Group of optimizers: objects whose `settings` is the dataclass of their settings."""
_registered: dict[str, list[type[Any]]] = {}


@dataclass(frozen=True)
class Extensible:
    """Marker of a union, `Annotated[A | B, Extensible(group)]`, to which other packages may add members."""

    group: str


def register_settings(group: str, settings: type[Any]) -> None:
    """Add a member to a union by hand; it replaces a member of the same kind."""
    others = [cls for cls in _registered.get(group, []) if cls.kind != settings.kind]
    _registered[group] = [*others, settings]


def registered_settings(group: str) -> tuple[type, ...]:
    """Return the members that other packages and `register_settings` add to the unions of a group.

    Raises `UserError` if an entry point of an installed package cannot be loaded.
    """
    return (*(cls for cls in _installed(group) if cls not in _registered.get(group, [])), *_registered.get(group, []))


def entry_points(group: str) -> "Mapping[str, EntryPoint]":
    """Return the entry points of a group by name."""
    return _entry_points(group, tuple(sys.path))


@functools.cache
def _entry_points(group: str, path: tuple[str, ...]) -> "Mapping[str, EntryPoint]":
    """Read the entry points once for each search `path`, which may grow."""
    from importlib import metadata  # a slow import, which most verbs do not need

    return {entry.name: entry for entry in metadata.entry_points(group=group)}


def _installed(group: str) -> list[type]:
    installed = []
    for entry in entry_points(group).values():
        try:
            settings: type[Any] = entry.load().settings
        except Exception as error:  # code of another package
            package = "an installed package" if entry.dist is None else f"the package {entry.dist.name}"
            raise UserError(f"{entry.name!r} ({group}) of {package} cannot be loaded: {error}") from error
        if (kind := settings.kind) != entry.name:
            raise UserError(f"the entry point {entry.name!r} ({group}) must have the name of its kind, {kind!r}")
        installed.append(settings)
    return installed


def members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, including those of other packages (`Extensible`), or the type alone."""
    groups = [mark.group for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, Extensible)]
    return (*own_members(kind), *(cls for group in groups for cls in registered_settings(group)))


def own_members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union without those of other packages, or the type alone."""
    if hasattr(kind, "__metadata__"):  # Annotated
        kind = kind.__origin__
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)
