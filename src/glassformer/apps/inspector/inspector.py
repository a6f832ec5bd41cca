"""The inspector: the models that are open, their latest runs, and the folders that a request may name.

A request names its model, `FOLDER@STEP`, or its run; an answer names both. The server has no current model, so pages in
several tabs cannot change each other's answers. The name of a run is a hash of its model and its input. The functions
that answer the requests are in `panels/`.
"""

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.gallery import Gallery
from glassformer.apps.inspector.shown import Shown, show
from glassformer.common.errors import Progress, UserError
from glassformer.inspection.capture import Trace
from glassformer.loading import load
from glassformer.store.manifest import Manifest
from glassformer.tasks.trained_model import TrainedModel

FOLDER = Path(__file__).parent
"""The folder of `page/` and `panels/`."""
MAX_RUNS = 8
"""Number of runs that are kept; the oldest one is dropped first."""
MAX_MODELS = 3
"""Number of models that are kept besides the first; the oldest one is dropped first."""
SHARED_SECONDS = 5
"""The same where other requests use the model, as below `glassformer serve`."""
MAX_SECONDS = 100
"""Largest time of a request for a set of texts, checked after each text; the worker's deadline is longer."""

Example = Mapping[str, Any]
"""An input of the page: `text`, `source` and `target`, or `messages`."""
Result = TypeVar("Result")


class Inspector:
    """The models that are open, and their latest runs.

    Without a model, `folder` is a run before its first checkpoint, or the gallery offers models.
    """

    def __init__(
        self,
        model: TrainedModel | None,
        examples: Sequence[Example] = (),
        *,
        folder: Path | None = None,
        gallery: Gallery | None = None,
        device: str = "auto",
        opens_folders: bool = True,
    ) -> None:
        """`opens_folders` is False if pages may not open other folders for a comparison."""
        self.examples = list(examples)
        """Inputs with which the server was started."""
        self.folder = folder
        self.gallery, self.device, self.opens_folders = gallery, device, opens_folders
        self.models: dict[str, TrainedModel] = {}
        self.runs: OrderedDict[str, Shown] = OrderedDict()
        self.compared: set[Path] = set()
        """Folders of other models that a page has opened."""
        self.first = ""
        """Model of requests that name none: the one with which the server was started; empty without one."""
        self.progress = 0, 0
        """Texts that are done, and all, of the latest work on a set of texts; the worker does one at a time."""
        self._results: dict[str, Any] = {}
        self._latest: dict[str, tuple[str, Any]] = {}
        if model is not None:
            self.folder = model.folder
            self.first = self.keep(model)

    def keep(self, model: TrainedModel) -> str:
        """Keep a model, and drop the oldest of too many; return its name."""
        name = page_data.model_id(model)
        self.models.pop(name, None)
        self.models[name] = model
        others = [one for one in self.models if one != self.first]
        for one in others[: max(0, len(others) - MAX_MODELS)]:
            del self.models[one]
        return name

    def model_of(self, name: str | None) -> TrainedModel:
        """Return the model of a request; load it again if it is no longer kept."""
        name = name or self.first
        if not name and self.gallery is None:
            raise UserError("no model is open: the run has no checkpoint yet")
        if not name:
            raise UserError("no model is open: choose one of the gallery")
        if name not in self.models:
            folder, _, step = name.rpartition("@")
            path = self.folder_of(folder)
            if not (step.isdecimal() and step.isascii()):
                raise UserError(f"the server has no model {name!r:.200}: open it again")
            self.load(path, int(step))
            if name not in self.models:
                raise UserError(f"the server has no model {name!r:.200}: open it again")
        return self.models[name]

    def load(self, folder: Path, step: int | None) -> TrainedModel:
        """Load the model of a step, or the newest one, and keep it."""
        if step == published_step(folder):
            step = None
        model = load(folder, step=step, device=self.device)
        self.keep(model)
        return model

    def folder_of(self, name: str | None) -> Path:
        """Return a folder that this server has opened or offers; by default that of its start."""
        if name is None and self.folder is not None:
            return self.folder
        if name is None:
            raise UserError("the model has no folder with checkpoints")
        folders = [self.folder]
        if self.gallery is not None:
            folders = [Path(entry["folder"]) for entry in self.gallery.list()]
        paths = {str(path): path for path in (*folders, *self.compared) if path is not None}
        if name not in paths:
            raise UserError(f"the server has not opened the folder {name!r:.200}: open it again")
        return paths[name]

    def add_run(self, model: TrainedModel, trace: Trace) -> Shown:
        """Run a model over the inputs of a trace; keep the run, and drop the oldest of too many."""
        shown = show(model, trace)
        content = json.dumps([page_data.model_id(model), *(x.tolist() for x in trace.inputs.values())])
        shown.name = hashlib.sha256(content.encode()).hexdigest()[:16]
        self.runs[shown.name] = shown
        self.runs.move_to_end(shown.name)
        while len(self.runs) > MAX_RUNS:
            self.runs.popitem(last=False)
        return shown

    def run_of(self, name: str) -> Shown:
        """Return the run of a request."""
        if name not in self.runs:
            raise UserError(f"the run {name!r:.40} is no longer kept: run the text again")
        self.runs.move_to_end(name)
        return self.runs[name]

    def once(self, key: str, compute: Callable[[], Result]) -> Result:
        """Return the result of this key; compute it on its first use."""
        if key not in self._results:
            self._results[key] = compute()
        result: Result = self._results[key]
        return result

    def latest(self, kind: str, key: str, compute: Callable[[], Result]) -> Result:
        """Return the result of this key if it is the latest one of its kind; compute it otherwise."""
        if kind not in self._latest or self._latest[kind][0] != key:
            self._latest[kind] = key, compute()
        result: Result = self._latest[kind][1]
        return result

    def reporting(self) -> Progress:
        """Return a function that stores how many texts of a set are done.

        It raises `UserError` after `MAX_SECONDS`, or `SHARED_SECONDS` if others use the model: a request has a
        deadline, and later work would keep the next requests waiting.
        """
        begin = time.monotonic()
        limit = MAX_SECONDS if self.opens_folders else SHARED_SECONDS
        self.progress = 0, 0

        def report(done: int, total: int) -> None:
            self.progress = done, total
            seconds = time.monotonic() - begin
            if done < total and seconds > limit:
                took = f"{done} of {total} texts took {seconds:.0f} s, and a request may take {limit}"
                raise UserError(f"{took}: leave texts out, or call the function in Python, which has no limit")

        return report


def published_step(folder: Path) -> int | None:
    """Return the step of the model that `open` loads; None before the first one."""
    try:
        return Manifest.read(folder).step
    except (UserError, OSError):
        return None
