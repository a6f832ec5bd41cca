"""Beam search: the tree of its hypotheses, and its results."""

from dataclasses import asdict, dataclass
from typing import Any

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.inspector import Inspector
from glassformer.common.errors import UserError
from glassformer.inspection.beam_tree import beam_tree

MAX_BEAM = 32
MAX_PENALTY = 10


@dataclass(frozen=True)
class Settings:
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
def beam(inspector: Inspector, source: str, settings: Settings, model: str | None = None) -> dict[str, Any]:
    """Answer the tree of a beam search and its results, best first."""
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
