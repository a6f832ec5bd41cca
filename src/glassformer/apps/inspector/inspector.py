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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import Packed
from glassformer.apps.inspector.gallery import Gallery
from glassformer.common.errors import Progress, UserError
from glassformer.evaluation.sweep_table import FILE as SWEEP_TABLE
from glassformer.inspection.ablation import MEANS, Part, ablate
from glassformer.inspection.attention_maps import MISSING, Heads, HeadWeights, Kind, checked, head_weights, kind_of
from glassformer.inspection.capture import Trace, capture_tensors
from glassformer.inspection.head_scores import LayerScores, Scores, ids_of, score_numbers, uniform_attention
from glassformer.inspection.lens import residual_names
from glassformer.loading import load
from glassformer.models.transformer import Transformer
from glassformer.store.manifest import Manifest
from glassformer.tasks.trained_model import TrainedModel

FOLDER = Path(__file__).parent
"""The folder of `page/` and `panels/`."""
MAX_RUNS = 8
"""Number of runs that are kept; the oldest one is dropped first."""
MAX_MODELS = 3
"""Number of models that are kept besides the first; the oldest one is dropped first."""
SHARED_SECONDS = 5
"""The limit in place of `MAX_SECONDS` if other programs use the model, too, as with `glassformer serve`."""
MAX_SECONDS = 100
"""Largest time of a request for a set of texts, checked after each text; the worker's deadline is longer."""

Example = Mapping[str, Any]
"""An input of the page: `text`, `source` and `target`, or `messages`."""
Result = TypeVar("Result")


@dataclass
class Shown:
    """One run of a model over a text or a pair."""

    model: TrainedModel
    trace: Trace
    attention: dict[Kind, list[Heads]]
    """The attention weights of each layer, by kind of attention."""
    thumbnails: dict[Kind, Tensor]
    """Small pictures of all heads, by kind of attention: (layers, H, h, w), uint8."""
    scores: Scores
    name: str = ""
    ablated: dict[tuple[str, bool], Tensor] = field(default_factory=dict)
    """Logits of the latest ablation. The key has the names of the parts, and True if means replaced them."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of the tensors of the flow; see `panels/tensors.py`."""
    part: dict[str, Tensor] = field(default_factory=dict)
    """Tensors of the block that the panel Flow shows, and all tensors outside of blocks."""

    def layers(self, kind: Kind) -> list[Heads]:
        """Return the weights of the heads of each layer; raise `UserError` if the model has no such attention."""
        if kind not in self.attention:
            raise UserError(f"{self.model.name} has no {MISSING[kind]}")
        return self.attention[kind]

    def heads(self, kind: Kind, layer: int) -> Heads:
        """Return the weights of the heads of a layer."""
        layers = self.layers(kind)
        return layers[checked("layer", layer, len(layers))]

    @property
    def names(self) -> dict[str, str]:
        """Names of the model and the run, for an answer."""
        return {"model": page_data.model_id(self.model), "run": self.name}

    def packed(self, x: Tensor) -> Packed:
        """Return an array of this run."""
        return replace(page_data.packed(x), names=self.names)

    def means(self, mean: bool) -> dict[str, Tensor] | None:
        """Return the tensors whose means replace parts that are switched off; None if zeros replace them."""
        return capture_tensors(self.model.network, self.trace.inputs, MEANS) if mean else None

    def logits(self, off: str, mean: bool) -> Tensor:
        """Return the logits of the run without the parts `off`, separated by commas; see `ablation.ablate`."""
        if not off:
            return self.trace["logits"]
        if (off, mean) not in self.ablated:
            network, inputs = self.model.network, self.trace.inputs
            with ablate(network, [Part.parse(name) for name in off.split(",")], self.means(mean)):
                self.ablated = {(off, mean): capture_tensors(network, inputs, ["logits"])["logits"]}
        return self.ablated[off, mean]


def show(model: TrainedModel, trace: Trace) -> Shown:
    """Run a model; reduce the attention weights of each head to a thumbnail and scores."""
    tensors, weights = _run(model, trace)
    attention = dict[Kind, list[Heads]]()
    pictures, scores = dict[Kind, list[Tensor]](), dict[Kind, list[LayerScores]]()
    for path, heads in weights.items():
        kind = kind_of(f"{path}.")
        ids, of_layer, numbers = ids_of(trace.inputs, kind), list[Tensor](), list[dict[str, float]]()
        for head in heads:  # one head at a time: its matrices stay in the cache of the processor
            of_layer.append(page_data.thumbnails(head))
            numbers.append(score_numbers(head, ids))
        scores.setdefault(kind, []).append(LayerScores(numbers, score_numbers(uniform_attention(_allowed(heads)), ids)))
        pictures.setdefault(kind, []).append(torch.stack(of_layer))
        attention.setdefault(kind, []).append(heads)
    thumbnails = {kind: torch.stack(of_kind) for kind, of_kind in pictures.items()}
    return Shown(model, replace(trace, tensors=tensors), attention, thumbnails, scores)


def _run(model: TrainedModel, trace: Trace) -> tuple[dict[str, Tensor], dict[str, Heads]]:
    """Return the tensors that the panels read, and the attention weights by the path of their module."""
    network, weights = model.network, dict[str, Heads]()
    if isinstance(network, Transformer):
        with head_weights(network) as of_heads:
            tensors = capture_tensors(network, trace.inputs, [*residual_names(network).values(), "logits"])
        return tensors, weights | of_heads
    tensors = capture_tensors(network, trace.inputs, ["*.weights", "logits"])
    for name in [name for name in tensors if name.endswith(".weights")]:
        weights[name] = tensors.pop(name)[0]
    return tensors, weights


def _allowed(heads: Heads) -> Tensor:
    """Return (T, S): True where a query may attend to a key."""
    if isinstance(heads, HeadWeights):
        return heads.allowed()
    return torch.ones_like(heads[0], dtype=torch.bool)


class Inspector:
    """The models that are open, and their latest runs.

    Without a model, `folder` is a run before its first checkpoint or a sweep, or the gallery offers models.
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
        """Name of the model with which the server was started, for requests that name no model; "" without one."""
        self.progress, self.is_stopped = (0, 0), False
        """Numbers of finished and of all runs of a long request, (0, 0) without one, and whether a page stopped it."""
        self._results: dict[str, Any] = {}
        self._latest: dict[str, tuple[str, Any]] = {}
        if model is not None:
            self.folder = model.folder
            self.first = self.keep(model)

    @property
    def is_sweep(self) -> bool:
        """True if the folder is that of a sweep: it has a table, and a model for each run that is done."""
        return not self.first and self.folder is not None and (self.folder / SWEEP_TABLE).exists()

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
        """Return a folder that this server has opened or offers; without a name, the folder of its start."""
        if name is None and self.folder is not None:
            return self.folder
        if name is None:
            raise UserError("the model has no folder with checkpoints")
        folders = [self.folder]
        if self.gallery is not None:
            folders = [Path(entry["folder"]) for entry in self.gallery.list()]
        if self.folder is not None and self.is_sweep:
            folders += self.folder.glob("*/seed-*[0-9]")
        paths = {str(path): path for path in (*folders, *self.compared) if path is not None}
        if name not in paths:
            raise UserError(f"the server has not opened the folder {name!r:.200}: open it again")
        return paths[name]

    def add_run(self, model: TrainedModel, trace: Trace) -> Shown:
        """Run a model over the inputs of a trace, unless this run is kept; keep it, and drop the oldest of too many."""
        content = json.dumps([page_data.model_id(model), *(x.tolist() for x in trace.inputs.values())])
        name = hashlib.sha256(content.encode()).hexdigest()[:16]
        if name not in self.runs or self.runs[name].model is not model:
            self.runs[name] = show(model, trace)
            self.runs[name].name = name
        shown = self.runs[name]
        self.runs.move_to_end(name)
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

    def reporting(self, shared_limit: float = SHARED_SECONDS) -> Progress:
        """Return a function that stores how many runs of a long request are done.

        The function raises `UserError` after `/api/stop`, and after `MAX_SECONDS`, or `shared_limit` seconds if
        other programs use the model. A request has a deadline; work after it would keep the next requests waiting.
        """
        begin = time.monotonic()
        limit = MAX_SECONDS if self.opens_folders else shared_limit
        self.progress, self.is_stopped = (0, 0), False

        def report(done: int, total: int) -> None:
            seconds = time.monotonic() - begin
            self.progress = done, total
            if self.is_stopped or done == total or seconds > limit:
                self.progress = 0, 0
            if self.is_stopped and done < total:
                raise UserError(f"stopped after {done} of {total}")
            if done < total and seconds > limit:
                took = f"{done} of {total} took {seconds:.0f} s, and a request may take {limit}"
                raise UserError(
                    f"{took}: give fewer or shorter texts, or call the function in Python, which has no limit"
                )

        return report


def published_step(folder: Path) -> int | None:
    """Return the step of the model of a run folder; None before the first checkpoint."""
    try:
        return Manifest.read(folder).step
    except (UserError, OSError):
        return None
