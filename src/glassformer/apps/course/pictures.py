"""Pictures of the course: drawings as SVG, and interactive pictures, which have a static one if JavaScript is off.

Both are files of the package, so that a notebook needs no other file and no network.
"""

import base64
import json
import secrets
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from glassformer.common.errors import UserError, did_you_mean
from glassformer.common.figures import drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_DRAWINGS = resources.files(__package__) / "drawings"


@dataclass(frozen=True)
class Drawing:
    """A drawing. A notebook shows it in the text colour of the page, so it suits light and dark pages."""

    svg: str

    def _repr_html_(self) -> str:
        return self.svg

    def _repr_svg_(self) -> str:
        """Return the drawing for viewers that remove HTML; there it has the colour black."""
        return self.svg


def drawing(name: str) -> Drawing:
    """Return a drawing by its name; raise `UserError` for an unknown name."""
    if name not in drawing_names():
        raise UserError(f"unknown drawing {name!r}: {did_you_mean(name, drawing_names())}")
    return Drawing((_DRAWINGS / f"{name}.svg").read_text("utf-8"))


def drawing_names() -> list[str]:
    """Return the names of all drawings.

    >>> "attention" in drawing_names()
    True
    """
    return sorted(path.name.removesuffix(".svg") for path in _DRAWINGS.iterdir())


_WIDGETS = resources.files(__package__) / "widgets"
_BASE = "base"
"""The script with the parts of all widgets."""


@dataclass(frozen=True)
class Widget:
    """An interactive picture; a notebook shows its HTML, which needs no other file."""

    name: str
    alt: str
    picture: bytes
    data: dict[str, Any]

    def _repr_html_(self) -> str:
        place = f"glassformer-{self.name}-{secrets.token_hex(4)}"
        source = base64.b64encode(self.picture).decode("ascii")
        data = json.dumps(self.data).replace("</", "<\\/")
        call = f'draw(document.getElementById("{place}"), {data});'
        return (
            f'<div id="{place}"><img alt="{escape(self.alt)}" src="data:image/png;base64,{source}"></div>\n'
            f"<script>(() => {{\n{_script(_BASE)}\n{_script(self.name)}\n{call}\n}})()</script>"
        )


def widget(name: str, picture: "Figure", alt: str, **data: Any) -> Widget:
    """Return the interactive picture `name` of some data.

    `picture` (`figures.new_figure`) is shown where JavaScript is off; `alt` describes it in a sentence.
    Raises `UserError` for an unknown name.
    """
    if name not in widget_names():
        raise UserError(f"unknown widget {name!r}: {did_you_mean(name, widget_names())}")
    return Widget(name, alt, drawn(picture, "png", dpi=100), data)


def widget_names() -> list[str]:
    """Return the names of all widgets.

    >>> widget_names()
    ['masks', 'merges', 'scaling', 'temperature']
    """
    return sorted(path.name.removesuffix(".js") for path in _WIDGETS.iterdir() if path.name != f"{_BASE}.js")


def _script(name: str) -> str:
    return (_WIDGETS / f"{name}.js").read_text("utf-8")
