"""Attribution: the logit of a token as a sum of terms, one per head, feed-forward and bias."""

from dataclasses import asdict
from typing import Any

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.inspector import Inspector
from glassformer.inspection.attribution import logit_attribution


@route("GET", "/api/run/{run}/attribution")
def attribution(
    inspector: Inspector, run: str, position: int | None = None, token: str = "", against: str = ""
) -> dict[str, Any]:
    """Answer the terms of the logit of a token at a position, beside their baselines; see `logit_attribution`."""
    shown = inspector.run_of(run)
    found = logit_attribution(shown.model, shown.trace, token or None, against or None, position)
    cells, rows, columns = found.grid()
    names = page_data.vocabulary(shown.model)
    other = None
    if found.against is not None:
        other = names[found.against]
    return {
        **shown.names,
        "token": names[found.token],
        "against": other,
        "position": found.position % shown.trace["logits"].shape[1],
        "logit": found.logit,
        "terms": {name: asdict(term) | {"is_beyond": term.is_beyond} for name, term in found.terms.items()},
        "cells": cells,
        "rows": rows,
        "columns": columns,
    }
