"""Tensors of a run: attention weights and the scores of heads, the tensors of the flow, and active experts."""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import Packed, route
from glassformer.apps.inspector.inspector import Inspector, Shown
from glassformer.common.errors import UserError
from glassformer.config.schema import to_dict
from glassformer.config.transformer import TransformerConfig
from glassformer.inspection.attention_maps import aligned, checked
from glassformer.inspection.capture import FLOW, capture_tensors, tensor_shapes
from glassformer.inspection.head_scores import (
    MARGIN,
    NAMES,
    LayerScores,
    Scores,
    n_random,
    random_scores,
    ranked_heads,
)
from glassformer.models.transformer import Transformer


@route("GET", "/api/run/{run}/thumbnails")
def thumbnails(inspector: Inspector, run: str, kind: str) -> Packed:
    """Return small pictures of all heads of a kind of attention."""
    shown, which = inspector.run_of(run), page_data.kind_named(kind)
    shown.layers(which)  # raises UserError without them
    return shown.packed(shown.thumbnails[which])


@route("GET", "/api/run/{run}/attention")
def attention(inspector: Inspector, run: str, kind: str, layer: int, head: int | None = None) -> Packed:
    """Return the attention weights of one layer, or of one head of it."""
    shown = inspector.run_of(run)
    heads = shown.heads(page_data.kind_named(kind), layer)
    if head is None:
        return shown.packed(torch.stack([fractions(weights) for weights in heads]))
    return shown.packed(fractions(heads[checked("head", head, len(heads))])[None])


def fractions(weights: Tensor) -> Tensor:
    """Return weights from 0 to 1 as uint16: 65535 is 1.

    >>> fractions(torch.tensor([0.0, 0.5, 1.0])).to(torch.int32)
    tensor([    0, 32768, 65535], dtype=torch.int32)
    """
    return (weights * 65535).round_().to(torch.int32).to(torch.uint16)


@route("GET", "/api/run/{run}/scores")
def scores(inspector: Inspector, run: str) -> dict[str, Any]:
    """Return the scores of all heads beside their baselines, and the heads found for each pattern."""
    shown = inspector.run_of(run)
    kinds = {kind: score_table(layers) for kind, layers in shown.scores.items()}
    known, model = {**shown.names, "names": NAMES, "margin": MARGIN, "kinds": kinds}, shown.model
    if not isinstance(model.network, Transformer):
        return {**known, "ranked": [], "random": None, "n_random": None}
    random = inspector.once(f"random scores of {page_data.model_id(model)}", lambda: random_scores(model))
    on_random = {kind: score_table(layers) for kind, layers in random.items()}
    return {**known, "ranked": _ranked(shown, random), "random": on_random, "n_random": n_random(model)}


def _ranked(shown: Shown, random: Scores) -> list[dict[str, Any]]:
    """Return the heads that pass for each pattern, on the text or on random tokens; without one, the clearest head."""
    return [
        {"name": name, **page_data.without_nan(head._asdict())}
        for name, heads in ranked_heads(shown.scores, random).items()
        for head in [one for one in heads if one.is_on_one] or heads[:1]
    ]


def score_table(layers: Iterable[LayerScores]) -> dict[str, Any]:
    """Return the scores of the heads of each layer, and the scores of uniform attention."""
    heads, uniform = [], []
    for layer in layers:
        heads.append([page_data.without_nan(head) for head in layer.heads])
        uniform.append(page_data.without_nan(layer.uniform))
    return {"heads": heads, "uniform": uniform}


@route("GET", "/api/run/{run}/alignment")
def alignment(inspector: Inspector, run: str, layer: int | None = None, head: int | None = None) -> dict[str, Any]:
    """Return the weights from the written tokens to the source, and the largest weight of each row as a link."""
    shown = inspector.run_of(run)
    matrix = aligned(shown.layers("cross"), layer, head)
    best = matrix.max(dim=1)
    links = [[t, s, w] for t, (s, w) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))]
    return {**shown.names, "rows": "written", "columns": "source", "weights": matrix.tolist(), "links": links}


MAX_ROWS = 64
"""Largest number of tokens of an answer."""
_BLOCK = re.compile(r"(encoder|decoder)\.blocks\.\d+\.")


@route("GET", "/api/run/{run}/flow")
def flow(inspector: Inspector, run: str) -> dict[str, Any]:
    """Return names and shapes of the tensors of a run, in the order of the computation, and the model's settings."""
    shown = inspector.run_of(run)
    return {**shown.names, "tensors": list(_shapes(shown).items()), "config": to_dict(shown.model.config)}


def _shapes(shown: Shown) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that the page draws, without the logits, which are too large."""
    if not shown.shapes:
        shapes = tensor_shapes(shown.model.network, shown.trace.inputs, FLOW)
        shown.shapes = {name: shape for name, shape in shapes.items() if len(shape) > 1 and name != "logits"}
    return shown.shapes


@route("GET", "/api/run/{run}/tensor")
def tensor(
    inspector: Inspector, run: str, name: str, head: int | None = None, first: int = 0, count: int = MAX_ROWS
) -> Packed:
    """Return `count` tokens of a tensor of a run, from `first` on, in float32; of an attention, one head."""
    shown = inspector.run_of(run)
    x = _tensor(shown, name)
    if head is not None and x.ndim != 3:
        raise UserError(f"{name} has no heads: leave out head")
    if head is not None and not 0 <= head < x.shape[0]:
        raise UserError(f"head: expected 0 to {x.shape[0] - 1}, got {head}")
    if not (0 <= first < x.shape[-2] and 1 <= count <= MAX_ROWS):
        raise UserError(f"expected first from 0 to {x.shape[-2] - 1} and count from 1 to {MAX_ROWS}")
    if head is not None:
        x = x[head]
    return shown.packed(x[..., first : first + count, :])


def _tensor(shown: Shown, name: str) -> Tensor:
    """Return a tensor without the batch. All tensors of its block, and all outside of blocks, are computed and kept."""
    if name not in _shapes(shown):
        raise UserError(f"the run has no tensor {name!r:.80}: reload the page")
    if name not in shown.part:
        names = [other for other in _shapes(shown) if _block(other) in ("", _block(name))]
        shown.part = capture_tensors(shown.model.network, shown.trace.inputs, names)
    x = shown.part[name]
    return x if x.ndim == 2 else x[0]  # positions are the same for all rows


def _block(name: str) -> str:
    match = _BLOCK.match(name)
    return match[0] if match else ""


@route("GET", "/api/run/{run}/experts")
def experts(inspector: Inspector, run: str) -> dict[str, Any]:
    """Answer, by stack, layer and token, the active experts and their weights, the largest first."""
    shown = inspector.run_of(run)
    config = shown.model.config
    if not isinstance(config, TransformerConfig) or config.experts is None:
        raise UserError(f"{shown.model.name} has no experts")
    stacks: dict[str, list[list[list[tuple[int, float]]]]] = {}
    for name, weights in capture_tensors(shown.model.network, shown.trace.inputs, ["*.ff.router"]).items():
        best = weights[0].topk(config.experts.n_active)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        of_tokens = [list(zip(numbers, values, strict=True)) for numbers, values in pairs]
        stacks.setdefault(name.split(".")[0], []).append(of_tokens)
    return {**shown.names, "n_experts": config.experts.n_experts, "stacks": stacks}
