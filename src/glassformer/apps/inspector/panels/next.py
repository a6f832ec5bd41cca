"""Next token: the logits at a position of a run."""

from glassformer.apps.inspector.app import Packed, route
from glassformer.apps.inspector.inspector import Inspector
from glassformer.common.errors import UserError
from glassformer.inspection.attention_maps import checked


@route("GET", "/api/run/{run}/logits")
def logits(inspector: Inspector, run: str, position: int, off: str = "", mean: bool = False) -> Packed:
    """Answer the logits (V,) at a position of the target, or of the only text, without the parts `off`."""
    shown = inspector.run_of(run)
    n_positions = shown.trace["logits"].shape[1]
    if shown.trace["logits"].ndim != 3:
        raise UserError("the model gives logits for the whole text only")
    return shown.packed(shown.logits(off, mean)[0, checked("position", position, n_positions)])
