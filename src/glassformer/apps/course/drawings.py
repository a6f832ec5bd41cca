"""Drawings of the course as SVG: files of the package, so that a notebook needs no other file."""

from dataclasses import dataclass
from importlib import resources

from glassformer.common.errors import UserError, did_you_mean

_FOLDER = resources.files(__package__) / "drawings"


@dataclass(frozen=True)
class Drawing:
    """A drawing; a notebook shows it with the text colour around it, so it suits light and dark pages."""

    svg: str

    def _repr_html_(self) -> str:
        return self.svg


def drawing(name: str) -> Drawing:
    """Return a drawing by its name; raise `UserError` for an unknown name."""
    if name not in names():
        raise UserError(f"unknown drawing {name!r}: {did_you_mean(name, names())}")
    return Drawing((_FOLDER / f"{name}.svg").read_text("utf-8"))


def names() -> list[str]:
    """Return the names of all drawings.

    >>> "attention" in names()
    True
    """
    return sorted(path.name.removesuffix(".svg") for path in _FOLDER.iterdir())
