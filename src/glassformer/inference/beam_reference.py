"""Beam search of one sentence as it is meant: no cache, no batch; `beam` must find the same."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from glassformer.inference.beam import Hypothesis, length_penalty
from glassformer.run_config import BeamConfig


@torch.inference_mode()
def beam_search_reference(
    forward: Callable[..., Tensor],
    source_ids: Tensor,
    config: BeamConfig,
    *,
    start_id: int,
    end_id: int,
    max_len: int,
    n_best: int = 1,
    prefix: Sequence[int] = (),
    never: Sequence[int] = (),
) -> list[Hypothesis]:
    """The hypotheses of `source_ids` (S,), best first, by the rules of `beam`.

    `forward(token_ids, source_ids=…)` gives logits (1, T, V), as every encoder-decoder's does; it is asked for the
    whole of every hypothesis at every step.
    """

    def log_probs(ids: Sequence[int]) -> Tensor:
        """(T, V): row t is what may follow the first t ids."""
        return forward(torch.tensor([[start_id, *ids]]), source_ids=source_ids[None])[0].log_softmax(dim=-1)

    def hypothesis(ids: list[int], log_prob: float, ended: bool) -> Hypothesis:
        return Hypothesis(ids, log_prob, log_prob / length_penalty(len(ids), config), ended)

    limit = min(config.max_new_tokens, max_len)
    if config.max_ratio:
        limit = min(limit, int(config.max_ratio * len(source_ids)) + 10)
    live = [(list(prefix), sum(float(log_probs(prefix)[t, token]) for t, token in enumerate(prefix)))]
    finished: list[Hypothesis] = []
    refills = config.refill and config.beam > 1
    n_to_beat = config.beam if refills else n_best
    while live and len(live[0][0]) < limit:
        continuations = [
            (log_prob + more, parent, token)
            for parent, (ids, log_prob) in enumerate(live)
            for token, more in enumerate(log_probs(ids)[-1].tolist())
            if token not in never
        ]
        if not continuations:
            break
        continuations.sort(key=lambda c: (-c[0], c[1], c[2]))
        best = continuations[: config.beam if refills else config.beam - len(finished)]
        going_on = best
        if refills and len(live[0][0]) + 1 < limit:
            going_on = [c for c in continuations if c[2] != end_id][: config.beam]
        former = live
        live = [([*former[parent][0], token], log_prob) for log_prob, parent, token in going_on if token != end_id]
        ended = [([*former[parent][0], token], log_prob) for log_prob, parent, token in best if token == end_id]
        finished += [hypothesis(ids, log_prob, ended=True) for ids, log_prob in ended]
        finished = sorted(finished, key=lambda h: -h.score)[: config.beam]
        if live and len(finished) >= n_to_beat:
            ids, log_prob = live[0]
            could_reach = max(log_prob / length_penalty(n, config) for n in range(len(ids) + 1, limit + 1) or [limit])
            if could_reach <= finished[n_to_beat - 1].score:
                break
    unfinished = [hypothesis(ids, log_prob, ended=False) for ids, log_prob in live]
    if refills:
        return sorted([*finished, *unfinished], key=lambda h: -h.score)[:n_best]
    return [*finished, *sorted(unfinished, key=lambda h: -h.score)][:n_best]
