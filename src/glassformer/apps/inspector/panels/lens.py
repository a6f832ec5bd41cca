"""Logit lens: the prediction of each layer at each position."""

from collections.abc import Sequence
from typing import Any

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.inspector import Inspector
from glassformer.inspection.lens import LensCells, lens_cells, lens_labels


@route("GET", "/api/run/{run}/lens")
def lens(inspector: Inspector, run: str, norm: bool = True) -> dict[str, Any]:
    """Answer the most probable tokens of each layer and position, and probability and rank of the actual token."""
    shown = inspector.run_of(run)
    network, names = shown.model.network, page_data.vocabulary(shown.model)
    cells = lens_cells(network, shown.trace, lens_labels(network, shown.trace.inputs), norm=norm)
    rows = [_row(cells, layer, names) for layer in range(len(cells.layers))]
    return {**shown.names, "layers": cells.layers, "cells": rows}


def _row(cells: LensCells, layer: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the cells of a layer, one per position."""
    row = []
    parts = cells.top_ids, cells.top_probabilities, cells.label_probability, cells.label_rank
    for ids, probabilities, of_label, rank in zip(*(part[layer].tolist() for part in parts), strict=True):
        top = [[i, names[i], p] for i, p in zip(ids, probabilities, strict=True)]
        cell = {"top": top, "next": of_label, "rank": rank + 1}
        if rank < 0:  # no label
            cell["rank"] = None
        row.append(page_data.without_nan(cell))
    return row
