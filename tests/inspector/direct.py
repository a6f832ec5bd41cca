"""The inspector with the answers of its panels as methods, without a server."""

from collections.abc import Callable
from typing import Any

from glassformer.apps.inspector import inspector
from glassformer.apps.inspector.app import accepted, arguments
from glassformer.apps.inspector.panels import calls


class Inspector(inspector.Inspector):
    """An inspector whose methods are the functions of all routes, also by the last word of their path."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the function of a route; its arguments are those of a request."""
        for call in calls(self):
            if name in (call.function.__name__, call.path.rpartition("/")[2]):
                function = call.function
                return lambda *values, **named: function(
                    **arguments(function, {}, {}, dict(zip(accepted(function), values, strict=False)) | named)
                )
        raise AttributeError(f"no route has the name {name}")
