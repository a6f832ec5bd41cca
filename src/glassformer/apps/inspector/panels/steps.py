"""Step by step: the candidates of the next token after ids."""

from typing import Any

import torch

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.inspector import Inspector
from glassformer.common.errors import UserError
from glassformer.inference.sampling import log_softmax
from glassformer.inference.text import never_written
from glassformer.inspection.capture import capture

N_NEXT = 50
"""Number of most probable tokens that are sent by name."""


@route("POST", "/api/next")
def next_token(
    inspector: Inspector, ids: list[int], source_ids: list[int] | None = None, model: str | None = None
) -> dict[str, Any]:
    """Answer the next tokens after ids, without those that generation never writes: the most probable ones and all
    logits. Answer the entropy and the text too.
    """
    chosen = inspector.model_of(model)
    if chosen.is_seq2seq:
        trace = capture(chosen, source=source_ids, target=ids, names=["logits"])
    elif chosen.is_causal_lm:
        trace = capture(chosen, ids, names=["logits"])
    else:
        raise UserError(f"{chosen.name} does not predict next tokens")
    logits = trace["logits"][0, -1:]
    never = never_written(chosen.tokenizer, chosen.config.vocab_size, but=page_data.end_ids(chosen))
    logits[:, never] = -torch.inf  # as in generation
    log_probs = log_softmax(logits)
    [top], [entropy] = page_data.top(log_probs, page_data.vocabulary(chosen), N_NEXT), page_data.entropies(log_probs)
    return {
        "model": page_data.model_id(chosen),
        "top": top,
        "entropy": entropy,
        "text": chosen.tokenizer.decode(ids),
        "logits": page_data.packed(logits[0]).to_json(),
    }
