"""What a model thinks of targets that are given: forced decoding."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from glassformer.data.batching import pad
from glassformer.inference.beam import log_softmax
from glassformer.inference.decodable import Decodable
from glassformer.inference.translate import batches_by_length

MAX_TOKENS = 2048
"""Source and target positions of a batch, padding included: a row of logits stands at each of the target's."""


@dataclass(frozen=True)
class ForcedScore:
    """log p of a target given its source."""

    token_log_probs: list[float]
    """Of each id given the source and the ids before it, in nats."""

    @property
    def log_prob(self) -> float:
        return sum(self.token_log_probs)


@torch.inference_mode()
def forced_scores(
    model: Decodable,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    start_id: int,
    device: torch.device | str = "cpu",
    max_tokens: int = MAX_TOKENS,
) -> list[ForcedScore]:
    """log p of target i (ids after the start id, end token included when it counts) given source i.

    Teacher forcing: a whole target is one step. It is what beam search calls `log_prob` for the same ids.
    """
    found: list[ForcedScore] = [ForcedScore([]) for _ in sources]
    sizes = [len(source) + len(target) for source, target in zip(sources, targets, strict=True)]
    for batch in batches_by_length(sizes, max_tokens):
        source_ids, source_mask = pad([sources[i] for i in batch], 0)
        inputs, mask = pad([[start_id, *targets[i]][:-1] or [start_id] for i in batch], 0)
        labels, _ = pad([list(targets[i]) or [0] for i in batch], 0)
        whole = bool(source_mask.all()), bool(mask.all())
        state = model.start(
            len(batch), inputs.shape[1], source_ids.to(device), None if whole[0] else source_mask.to(device)
        )
        logits, _ = model.step(inputs.to(device), state, None if whole[1] else mask.to(device))
        log_probs = log_softmax(logits).gather(2, labels.to(device)[:, :, None]).squeeze(2)  # (B, T)
        for i, of_row in zip(batch, log_probs.tolist(), strict=True):
            found[i] = ForcedScore(of_row[: len(targets[i])])
    return found
