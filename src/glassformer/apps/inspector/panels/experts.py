"""Experts: which experts read which token."""

from typing import Any

from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.inspector import Inspector
from glassformer.common.errors import UserError
from glassformer.config.transformer import TransformerConfig
from glassformer.inspection.capture import capture_tensors


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
