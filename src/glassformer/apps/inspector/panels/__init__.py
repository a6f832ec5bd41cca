"""Panels of the page. A script `NAME.js` draws a panel and asks for answers, which the Python modules here compute.

Each module registers its answers with `app.route`. `VIEWS` of `page/main.js` lists the views with their panels.
"""

from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules
from types import MethodType

from glassformer.apps.inspector.app import ROUTES, Call
from glassformer.apps.inspector.inspector import Inspector

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def calls(inspector: Inspector) -> list[Call]:
    """Return the routes of all panels, with functions that answer for this inspector."""
    return [replace(call, function=MethodType(call.function, inspector)) for call in ROUTES]
