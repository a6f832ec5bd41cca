"""Start of the page: the model of the server, and the gallery of tiny models."""

from typing import Any

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.gallery import Gallery
from glassformer.apps.inspector.inspector import Inspector
from glassformer.apps.inspector.panels.card import card
from glassformer.common.errors import UserError


@route("GET", "/api/health", is_quick=True)
def health(inspector: Inspector) -> dict[str, Any]:
    """Answer that the server runs."""
    return {"ok": True}


@route("GET", "/api/session")
def session(inspector: Inspector) -> dict[str, Any]:
    """Answer the first model, the folder, the models of the gallery, and whether pages may open other folders."""
    gallery = None
    if inspector.gallery is not None:
        gallery = inspector.gallery.list()
    return {
        "model": inspector.first or None,
        "folder": str(inspector.folder or ""),
        "gallery": gallery,
        "opens_folders": inspector.opens_folders,
    }


@route("POST", "/api/train")
def train(inspector: Inspector, name: str) -> dict[str, Any]:
    """Start or continue the training of a model of the gallery; `live` shows it."""
    _gallery(inspector).train(name)
    return session(inspector)


@route("POST", "/api/open")
def open_model(
    inspector: Inspector, name: str | None = None, folder: str | None = None, step: int | None = None
) -> dict[str, Any]:
    """Open a model of the gallery, or the newest model of a folder, or that of a step; answer the facts."""
    if name is not None:
        folder = str(_gallery(inspector).ready(name))
    return card(inspector, page_data.model_id(inspector.load(inspector.folder_of(folder), step)))


def _gallery(inspector: Inspector) -> Gallery:
    if inspector.gallery is None:
        raise UserError("there is no gallery: start `glassformer inspect` without a folder")
    return inspector.gallery
