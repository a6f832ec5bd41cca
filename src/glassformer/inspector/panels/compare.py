"""Comparison: a second checkpoint, or a second model of the same vocabulary."""

from pathlib import Path
from typing import Any

from glassformer.errors import UserError
from glassformer.inspector.app import route
from glassformer.inspector.inspector import Inspector
from glassformer.inspector.panels.card import card
from glassformer.loading import load_model


@route("POST", "/api/compare")
def compare(
    inspector: Inspector, first: str | None = None, step: int | None = None, folder: str | None = None
) -> dict[str, Any]:
    """Open a checkpoint of the run of the first model, or a model of one vocabulary; answer its facts."""
    one = inspector.model_of(first)
    if (step is None) == (folder is None):
        raise UserError("give a step or a folder")
    if folder is not None and not inspector.opens_folders:
        raise UserError("this server opens no other folder: choose a step, or start `glassformer inspect`")
    if folder is None and one.folder is None:
        raise UserError("the model has no folder with checkpoints")
    path = Path(folder or str(one.folder))
    other = load_model(path, step, str(one.device))
    for name in ("tokenizer", "source_tokenizer"):
        if getattr(one, name).fingerprint != getattr(other, name).fingerprint:
            raise UserError(f"{other.name} has another {name.replace('_', ' ')}: choose a model of one vocabulary")
    inspector.compared.add(path)
    return card(inspector, inspector.keep(other))
