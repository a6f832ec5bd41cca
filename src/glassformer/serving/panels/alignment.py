"""Alignment: attention weights between the target and the source."""

from collections.abc import Sequence
from typing import Any

import torch

from glassformer.errors import UserError
from glassformer.inspection.attention_maps import checked, layer_or_default
from glassformer.serving.app import one_answer, route
from glassformer.serving.inspector import Inspector


@route("GET", "/api/run/{run}/alignment", embedded=one_answer)
def alignment(inspector: Inspector, run: str, layer: int | None = None, head: int | None = None) -> dict[str, Any]:
    """Answer the weights from the written tokens to the source, and the largest one of each row as a link."""
    shown = inspector.run_of(run)
    layers = shown.attention.get("cross")
    if layers is None:
        raise UserError(f"{shown.model.name} has no attention from a target to a source, so it has no alignment")
    heads = layers[layer_or_default(layer, len(layers))]
    chosen: Sequence[int] = range(len(heads))
    if head is not None:
        chosen = [checked("head", head, len(heads))]
    matrix = torch.stack([heads[i] for i in chosen]).mean(dim=0)
    best = matrix.max(dim=1)
    links = [[t, s, w] for t, (s, w) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))]
    return {**shown.names, "rows": "written", "columns": "source", "weights": matrix.tolist(), "links": links}
