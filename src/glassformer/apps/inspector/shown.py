"""One run of a model over a text or a pair: its tensors, its attention weights, and the scores of each head."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import Packed
from glassformer.common.errors import UserError
from glassformer.inspection.ablation import MEANS, Part, ablate
from glassformer.inspection.attention_maps import MISSING, Heads, Kind, checked, kind_of
from glassformer.inspection.capture import Trace, capture_tensors
from glassformer.inspection.head_scores import LayerScores, Scores, ids_of, score_numbers, uniform_attention
from glassformer.inspection.head_weights import HeadWeights, head_weights
from glassformer.inspection.lens import residual_names
from glassformer.models.transformer import Transformer
from glassformer.tasks.trained_model import TrainedModel


@dataclass
class Shown:
    """One run of a model over a text or a pair."""

    model: TrainedModel
    trace: Trace
    attention: dict[Kind, list[Heads]]
    """By kind of attention and layer."""
    thumbnails: dict[Kind, Tensor]
    """By kind of attention: (layers, H, h, w), uint8."""
    scores: Scores
    name: str = ""
    ablated: dict[tuple[str, bool], Tensor] = field(default_factory=dict)
    """Logits of the latest ablation, by the names of its parts and its kind of replacement."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of the tensors of the flow; see `panels/flow.py`."""
    part: dict[str, Tensor] = field(default_factory=dict)
    """Tensors of the block that the flow shows, or of all places outside of blocks."""

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

    def logits(self, off: str, mean: bool) -> Tensor:
        """Return the logits of the run without the parts `off`, names with commas; see `ablation.ablate`."""
        if not off:
            return self.trace["logits"]
        if (off, mean) not in self.ablated:
            network, inputs = self.model.network, self.trace.inputs
            parts, means = [Part.parse(name) for name in off.split(",")], None
            if mean:
                means = capture_tensors(network, inputs, MEANS)
            with ablate(network, parts, means):
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
