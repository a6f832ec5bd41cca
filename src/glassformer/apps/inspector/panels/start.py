"""The models of the page: the first one, the gallery, a second one beside it, and a run while it trains."""

from pathlib import Path
from typing import Any

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.gallery import Gallery
from glassformer.apps.inspector.inspector import Inspector, published_step
from glassformer.apps.inspector.panels.card import card
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.evaluation import metrics
from glassformer.loading import load
from glassformer.store import checkpoint
from glassformer.store.lock import is_locked, owner
from glassformer.store.model_directory import RUN, read_run
from glassformer.tasks.trained_model import TrainedModel
from glassformer.training.metrics_log import NAME as METRICS


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
        return load(Path(folder), step=step, device=device)
    except OSError as error:
        raise UserError(f"{folder:.200} cannot be read: {error.strerror}") from error


def _kept(inspector: Inspector, model: TrainedModel) -> dict[str, Any]:
    if model.folder is not None:
        inspector.compared.add(model.folder)
    return card(inspector, inspector.keep(model))


MAX_LINES = 1 << 24
"""Largest number of bytes that are read at once."""


@route("GET", "/api/live", is_quick=True)
def live(inspector: Inspector, since: int = 0, folder: str | None = None) -> dict[str, Any]:
    """Answer the lines that a run has logged from byte `since` on, and whether it is running."""
    of_run = inspector.folder_of(folder)
    if since < 0:
        raise UserError(f"since: expected a place in the log, 0 or more, got {since}")
    text, path = b"", of_run / METRICS
    if path.exists():
        with path.open("rb") as file:
            since = min(since, path.stat().st_size)  # a resumed run may have shortened its log
            file.seek(since)
            text = file.read(MAX_LINES)
    whole = text[: text.rfind(b"\n") + 1]
    return {
        "folder": str(of_run),
        "offset": since + len(whole),
        "lines": [files.parse_json(line.decode(errors="replace")) for line in whole.splitlines()],
        "is_running": is_locked(of_run),
        "checkpoints": checkpoint.steps(of_run),
        "max_steps": _max_steps(of_run),
        "model_step": published_step(of_run),
        "metrics": {name: metrics.title(name) for name in metrics.METRICS},
    }


def _max_steps(folder: Path) -> int | None:
    """Return the last step of a run; before its first checkpoint, the owner file of its lock has it."""
    for place in (folder, *(checkpoint.path_of(folder, step) for step in reversed(checkpoint.steps(folder)))):
        if (place / RUN).exists():
            return read_run(place).train.max_steps
    steps = owner(folder).get("max_steps")
    return steps if isinstance(steps, int) else None
