"""Comparison: a second checkpoint, or a second model of the same vocabulary; and any model beside the first."""

from pathlib import Path
from typing import Any

from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.inspector import Inspector
from glassformer.apps.inspector.panels.card import card
from glassformer.common.errors import UserError
from glassformer.loading import load_model
from glassformer.tasks.trained_model import TrainedModel


@route("POST", "/api/compare")
def compare(
    inspector: Inspector, first: str | None = None, step: int | None = None, folder: str | None = None
) -> dict[str, Any]:
    """Open a checkpoint of the run of the first model, or a model of one vocabulary; answer its facts."""
    one = inspector.model_of(first)
    if (step is None) == (folder is None):
        raise UserError("give a step or a folder")
    if folder is None and one.folder is None:
        raise UserError("the model has no folder with checkpoints")
    other = _loaded(inspector, folder or str(one.folder), step, str(one.device))
    for name in ("tokenizer", "source_tokenizer"):
        if getattr(one, name).fingerprint != getattr(other, name).fingerprint:
            raise UserError(f"{other.name} has another {name.replace('_', ' ')}: choose a model of one vocabulary")
    return _kept(inspector, other)


@route("POST", "/api/beside")
def beside(inspector: Inspector, folder: str) -> dict[str, Any]:
    """Open any model for the second of two views; answer its facts."""
    return _kept(inspector, _loaded(inspector, folder, None, inspector.device))


def _loaded(inspector: Inspector, folder: str, step: int | None, device: str) -> TrainedModel:
    """Load a model of a folder; another folder than that of the server needs `opens_folders`."""
    if step is None and not inspector.opens_folders:
        raise UserError("this server opens no other folder: choose a step, or start `glassformer inspect`")
    try:
        return load_model(Path(folder), step, device)
    except OSError as error:
        raise UserError(f"{folder:.200} cannot be read: {error.strerror}") from error


def _kept(inspector: Inspector, model: TrainedModel) -> dict[str, Any]:
    if model.folder is not None:
        inspector.compared.add(model.folder)
    return card(inspector, inspector.keep(model))
