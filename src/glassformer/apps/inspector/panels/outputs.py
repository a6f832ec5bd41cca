"""The outputs of a model: logits, next tokens, the predictions of each layer, terms of a logit, and a beam search."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import Packed, route
from glassformer.apps.inspector.inspector import MAX_SECONDS, Inspector
from glassformer.common.errors import UserError
from glassformer.inference.sampling import log_softmax
from glassformer.inference.text import never_written
from glassformer.inspection.attention_maps import checked
from glassformer.inspection.attribution import logit_attribution
from glassformer.inspection.beam_tree import beam_tree
from glassformer.inspection.capture import capture
from glassformer.inspection.input_effects import input_effects
from glassformer.inspection.lens import LensCells, lens_cells, lens_labels
from glassformer.inspection.texts import end_ids


@route("GET", "/api/run/{run}/logits")
def logits(inspector: Inspector, run: str, position: int, off: str = "", mean: bool = False) -> Packed:
    """Return the logits (V,) at a position of the target, or of the only text, without the parts `off`."""
    shown = inspector.run_of(run)
    n_positions = shown.trace["logits"].shape[1]
    if shown.trace["logits"].ndim != 3:
        raise UserError("the model gives logits for the whole text only")
    return shown.packed(shown.logits(off, mean)[0, checked("position", position, n_positions)])


N_NEXT = 50
"""Number of most probable tokens that are sent by name."""


@route("POST", "/api/next")
def next_token(
    inspector: Inspector, ids: list[int], source_ids: list[int] | None = None, model: str | None = None
) -> dict[str, Any]:
    """Return the most probable next tokens that generation may write, all logits, the entropy and the text.

    `never` is the probability of the other tokens, such as `[PAD]`: the probabilities here are scaled to sum to 1
    without it.
    """
    chosen = inspector.model_of(model)
    if chosen.is_seq2seq:
        trace = capture(chosen, source=source_ids, target=ids, names=["logits"])
    elif chosen.is_causal_lm:
        trace = capture(chosen, ids, names=["logits"])
    else:
        raise UserError(f"{chosen.name} does not predict next tokens")
    logits = trace["logits"][0, -1:]
    never = never_written(chosen.tokenizer, chosen.config.vocab_size, but=end_ids(chosen))
    never_mass = float(log_softmax(logits)[0, never].exp().sum())
    logits[:, never] = -torch.inf  # as in generation
    log_probs = log_softmax(logits)
    [top], [entropy] = page_data.top(log_probs, page_data.vocabulary(chosen), N_NEXT), page_data.entropies(log_probs)
    return {
        "model": page_data.model_id(chosen),
        "top": top,
        "entropy": entropy,
        "never": never_mass,
        "text": chosen.tokenizer.decode(ids),
        "logits": page_data.packed(logits[0]).to_json(),
    }


@route("GET", "/api/run/{run}/lens")
def lens(inspector: Inspector, run: str, norm: bool = True) -> dict[str, Any]:
    """Return the most probable tokens of each layer and position, and probability and rank of the actual token."""
    shown = inspector.run_of(run)
    network, names = shown.model.network, page_data.vocabulary(shown.model)
    cells = lens_cells(network, shown.trace, lens_labels(network, shown.trace.inputs), norm=norm)
    rows = [_row(cells, layer, names) for layer in range(len(cells.layers))]
    return {**shown.names, "layers": cells.layers, "cells": rows}


def _row(cells: LensCells, layer: int, names: Sequence[str]) -> list[dict[str, Any]]:
    row = []
    parts = cells.top_ids, cells.top_probabilities, cells.label_probability, cells.label_rank
    for ids, probabilities, of_label, rank in zip(*(part[layer].tolist() for part in parts), strict=True):
        top = [[i, names[i], p] for i, p in zip(ids, probabilities, strict=True)]
        cell = {"top": top, "next": of_label, "rank": rank + 1}
        if rank < 0:  # no label
            cell["rank"] = None
        row.append(page_data.without_nan(cell))
    return row


@route("GET", "/api/run/{run}/attribution")
def attribution(
    inspector: Inspector, run: str, position: int | None = None, token: str = "", against: str = ""
) -> dict[str, Any]:
    """Return the terms of the logit of a token at a position, beside their baselines; see `logit_attribution`."""
    shown = inspector.run_of(run)
    found = logit_attribution(shown.model, shown.trace, token or None, against or None, position)
    cells, rows, columns = found.grid()
    names: dict[int | None, str] = dict(enumerate(page_data.vocabulary(shown.model)))
    return {
        **shown.names,
        "token": names[found.token],
        "against": names.get(found.against),
        "position": found.position % shown.trace["logits"].shape[1],
        "logit": found.logit,
        "terms": {name: asdict(term) | {"is_beyond": term.is_beyond} for name, term in found.terms.items()},
        "cells": cells,
        "rows": rows,
        "columns": columns,
    }


@route("GET", "/api/run/{run}/inputs")
def inputs(
    inspector: Inspector, run: str, position: int | None = None, token: str = "", against: str = ""
) -> dict[str, Any]:
    """Return the effect of each input token on the logit of a token or a label; see `input_effects`."""
    shown = inspector.run_of(run)
    report = inspector.reporting(MAX_SECONDS)
    found = input_effects(shown.model, shown.trace, token or None, against or None, position, progress=report)
    return {
        **shown.names,
        **page_data.measure_names(shown.model, found.measure),
        "logit": found.logit,
        "exact": found.exact.tolist(),
        "estimate": found.estimated.tolist(),
        **page_data.without_nan({"correlation": found.correlation}),
    }


MAX_BEAM = 32
MAX_PENALTY = 10


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the search; see `BeamConfig`."""

    beam: int = 4
    length_penalty: float = 1.0
    length_penalty_type: str = "gnmt"
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise `UserError` for values that would take too long, or that the page does not offer."""
        if not 1 <= self.beam <= MAX_BEAM:
            raise UserError(f"beam: expected 1 to {MAX_BEAM}, got {self.beam}")
        if not 0 <= self.length_penalty <= MAX_PENALTY:
            raise UserError(f"length_penalty: expected 0 to {MAX_PENALTY}, got {self.length_penalty}")


@route("POST", "/api/beam")
def beam(inspector: Inspector, source: str, settings: SearchSettings, model: str | None = None) -> dict[str, Any]:
    """Return the tree of a beam search and its results, best first."""
    chosen = inspector.model_of(model)
    chosen.require_source()
    named = {name: value for name, value in asdict(settings).items() if value is not None}
    tree = beam_tree(chosen, source, **named)
    texts = chosen.tokenizer.tokens([node.token_id for node in tree.nodes])
    return {
        "model": page_data.model_id(chosen),
        "nodes": [asdict(node) | {"token": text} for node, text in zip(tree.nodes, texts, strict=True)],
        "results": [{"node": i, "text": chosen.tokenizer.decode(h.text_ids), **asdict(h)} for i, h in tree.results],
        "unknown": page_data.unknown_in(chosen, {"source": source}),
    }
