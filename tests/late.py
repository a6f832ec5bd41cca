"""Large libraries that a test file names at its top and imports in its tests: no process imports them to collect."""

import importlib
from importlib.util import find_spec
from typing import Any

import pytest


class Late:
    """A module that is imported when one of its names is first used."""

    def __init__(self, name: str) -> None:
        vars(self)["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for by pytest, of everything in a file
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


def module(name: str) -> Any:
    """Return a module that is imported at its first use."""
    return Late(name)


def optional(*names: str) -> Any:
    """Return the first of these modules, imported at its first use; skip the file if one is not installed."""
    for name in names:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)
    return Late(names[0])
