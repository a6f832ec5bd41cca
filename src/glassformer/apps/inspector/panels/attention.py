"""Attention: small pictures of all heads, weights of a layer or a head, alignments, and the scores of the heads."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import Packed, route
from glassformer.apps.inspector.inspector import Inspector
from glassformer.apps.inspector.shown import Shown
from glassformer.inspection.attention_maps import aligned, checked
from glassformer.inspection.head_scores import MARGIN, NAMES, LayerScores, best_heads, random_scores
from glassformer.models.transformer import Transformer


@route("GET", "/api/run/{run}/thumbnails")
def thumbnails(inspector: Inspector, run: str, kind: str) -> Packed:
    """Answer small pictures of all heads of a kind of attention."""
    shown, which = inspector.run_of(run), page_data.kind_named(kind)
    shown.layers(which)  # raises UserError without them
    return shown.packed(shown.thumbnails[which])


@route("GET", "/api/run/{run}/attention")
def attention(inspector: Inspector, run: str, kind: str, layer: int, head: int | None = None) -> Packed:
    """Answer the attention weights of one layer, or of one head of it."""
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
    """Answer the scores of all heads beside their baselines, and the best head of each pattern (`best_heads`)."""
    shown = inspector.run_of(run)
    kinds = {kind: score_table(layers) for kind, layers in shown.scores.items()}
    return {**shown.names, "names": NAMES, "margin": MARGIN, "best": _best(inspector, shown), "kinds": kinds}


def _best(inspector: Inspector, shown: Shown) -> list[dict[str, Any]]:
    model = shown.model
    if not isinstance(model.network, Transformer):
        return []
    random = inspector.once(f"random scores of {page_data.model_id(model)}", lambda: random_scores(model))
    best = best_heads(shown.scores, random)
    return [{"name": name, **page_data.without_nan(head._asdict())} for name, head in best.items()]


def score_table(layers: Iterable[LayerScores]) -> dict[str, Any]:
    """Return the scores of the heads of each layer, and those of uniform attention."""
    heads, uniform = [], []
    for layer in layers:
        heads.append([page_data.without_nan(head) for head in layer.heads])
        uniform.append(page_data.without_nan(layer.uniform))
    return {"heads": heads, "uniform": uniform}


@route("GET", "/api/run/{run}/alignment")
def alignment(inspector: Inspector, run: str, layer: int | None = None, head: int | None = None) -> dict[str, Any]:
    """Answer the weights from the written tokens to the source, and the largest one of each row as a link."""
    shown = inspector.run_of(run)
    matrix = aligned(shown.layers("cross"), layer, head)
    best = matrix.max(dim=1)
    links = [[t, s, w] for t, (s, w) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))]
    return {**shown.names, "rows": "written", "columns": "source", "weights": matrix.tolist(), "links": links}
