"""Texts: a set of texts, one per line, and those in which a head or a neuron is most active."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.inspector import Inspector
from glassformer.common.errors import UserError
from glassformer.inspection.strongest import StrongText, strongest
from glassformer.inspection.texts import line_of, validation_texts

N_TEXTS = 200
"""Number of texts from the validation data of a run."""
N_TOKENS = 48
"""Number of tokens of each."""
MAX_TEXTS = 2000
"""Largest number of texts of a request."""


def texts_of(lines: Sequence[str]) -> list[str]:
    """Return the lines that have words; raise `UserError` without one, and for more than `MAX_TEXTS`."""
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise UserError("there is no text: write one per line")
    if len(texts) > MAX_TEXTS:
        raise UserError(f"there are {len(texts):,} texts and a request takes at most {MAX_TEXTS:,}: leave some out")
    return texts


@route("GET", "/api/texts")
def texts(inspector: Inspector, model: str | None = None) -> dict[str, Any]:
    """Answer texts of the validation data of the run, one per line; none if the model was not trained here."""
    chosen = inspector.model_of(model)
    lines = [line_of(sides) for sides in validation_texts(chosen, N_TEXTS, N_TOKENS)]
    return {"model": page_data.model_id(chosen), "lines": lines}


@route("GET", "/api/progress", is_quick=True)
def progress(inspector: Inspector) -> dict[str, Any]:
    """Answer how many texts of the latest set are done, and their number."""
    done, total = inspector.progress
    return {"done": done, "total": total}


@route("POST", "/api/strongest")
def strongest_texts(
    inspector: Inspector, lines: list[str], units: str, unit: int, model: str | None = None
) -> dict[str, Any]:
    """Answer the texts in which a head or a neuron is most active, beside a random text of the set."""
    chosen, given = inspector.model_of(model), texts_of(lines)
    name = page_data.model_id(chosen)
    key = hashlib.sha256(json.dumps([name, units, given]).encode()).hexdigest()
    found = inspector.latest("strongest", key, lambda: strongest(chosen, given, units, progress=inspector.reporting()))
    median, high = found.baseline(unit)
    return {
        "model": name,
        "units": units,
        "unit": unit,
        "n_units": found.n_units,
        "n_texts": found.n_texts,
        "median": median,
        "high": high,
        "texts": [_answer(text) for text in found.texts(unit)],
    }


def _answer(text: StrongText) -> dict[str, Any]:
    activity = [x if x == x else None for x in text.activity]
    return {"number": text.number, "tokens": text.tokens, "activity": activity, "strength": text.strength}
