"""Alignment: attention weights between the target and the source."""

from typing import Any

from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.inspector import Inspector
from glassformer.inspection.attention_maps import aligned


@route("GET", "/api/run/{run}/alignment")
def alignment(inspector: Inspector, run: str, layer: int | None = None, head: int | None = None) -> dict[str, Any]:
    """Answer the weights from the written tokens to the source, and the largest one of each row as a link."""
    shown = inspector.run_of(run)
    matrix = aligned(shown.layers("cross"), layer, head)
    best = matrix.max(dim=1)
    links = [[t, s, w] for t, (s, w) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))]
    return {**shown.names, "rows": "written", "columns": "source", "weights": matrix.tolist(), "links": links}
