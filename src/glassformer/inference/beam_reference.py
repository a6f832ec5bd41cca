"""Reference beam search for one sentence, without cache or batch; `beam` must find the same hypotheses."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from glassformer.inference.constraints import Constraints, Past
from glassformer.inference.search import Hypothesis, Search, coverage_penalties, length_penalty


@torch.inference_mode()
def beam_search_reference(
    forward: Callable[..., Tensor],
    source_ids: Tensor | None,
    search: Search,
    prefix: Sequence[int] = (),
    prompt: Sequence[int] = (),
    attention: Callable[..., Tensor] | None = None,
) -> list[Hypothesis]:
    """Return the hypotheses of `source_ids` (S,), or the continuations of a `prompt`, best first, as `beam` does.

    `forward(token_ids, source_ids=…)` returns logits (1, T, V), as every encoder-decoder does. Without a source, it
    gets only `token_ids`. Each step calls it with every whole hypothesis. A coverage penalty needs `attention`: a
    function of the same arguments that returns the attention weights (1, T, S) to the source.
    """
    before = list(prompt) if search.start_id is None else [search.start_id]
    of_source = {} if source_ids is None else {"source_ids": source_ids[None]}
    constraints = Constraints(search.config, search.suppress_ids, search.ends, "cpu")

    def logits(ids: Sequence[int]) -> Tensor:
        """Return logits (T, V): row t is for the id after the first t ids."""
        return forward(torch.tensor([[*before, *ids]]), **of_source)[0, len(before) - 1 :]

    def next_log_probs(ids: Sequence[int]) -> list[float]:
        """Return log p of each next id after the rules of the search."""
        past = Past([*before, *ids], len(before))
        return search.scores(logits(ids)[-1:].clone(), constraints, [past])[0].tolist()

    def hypothesis(ids: list[int], log_prob: float, *, ended: bool) -> Hypothesis:
        coverage = 0.0
        if search.reads_coverage and attention is not None:
            weights = attention(torch.tensor([[*before, *ids[:-1]]]), **of_source)  # (1, T, S)
            coverage = float(coverage_penalties(weights.sum(dim=1), search.config))
        return search.hypothesis(ids, log_prob, coverage, ended=ended)

    # One hypothesis: the prefix
    limit = min(search.config.max_new_tokens, search.max_len + 1 - len(prompt))
    if source_ids is not None:
        limit = search.limit(len(source_ids))
    of_prefix = [float(logits(prefix).log_softmax(dim=-1)[t, token]) for t, token in enumerate(prefix)]
    live = [(list(prefix), sum(of_prefix[search.n_forced :]))]
    finished: list[Hypothesis] = []
    beaten = False
    while live and len(live[0][0]) < limit:
        # All continuations of all live hypotheses, best first
        continuations = [
            (log_prob + more, parent, token)
            for parent, (ids, log_prob) in enumerate(live)
            for token, more in enumerate(next_log_probs(ids))
            if more > -math.inf
        ]
        if not continuations:
            break
        continuations.sort(key=lambda c: (-c[0], c[1], c[2]))
        # The best of them: finished, or live
        former, live = live, []
        n_chosen = search.n_candidates_per_sentence
        if not search.replaces_finished:
            n_chosen -= len(finished)
        for rank, (log_prob, parent, token) in enumerate(continuations[:n_chosen]):
            ids = [*former[parent][0], token]
            if token in search.ends and rank < search.config.beam:
                finished.append(hypothesis(ids, log_prob, ended=True))
            elif token not in search.ends and len(live) < search.config.beam:
                live.append((ids, log_prob))
        finished.sort(key=lambda h: -h.score)
        if live and len(live[0][0]) < limit and _is_over(live[0], finished, limit, search):
            beaten = True
            break
    # The ranking
    unfinished = [hypothesis(ids, log_prob, ended=False) for ids, log_prob in live]
    if not search.replaces_finished:
        ranked = [*finished, *sorted(unfinished, key=lambda h: -h.score)]
    elif beaten:
        ranked = finished
    else:
        ranked = sorted([*finished, *unfinished], key=lambda h: -h.score)
    return ranked[: search.n_best]


def _is_over(live: tuple[Sequence[int], float], finished: Sequence[Hypothesis], limit: int, search: Search) -> bool:
    """Return True if the rule of `early_stopping` ends the search; `live` is the best live hypothesis."""
    ids, log_prob = live
    config, n_best = search.config, search.n_best
    if config.early_stopping == "full" and config.beam > 1:
        return len(finished) >= config.beam
    if config.early_stopping == "estimate" and config.beam > 1:
        score = log_prob / length_penalty(len(ids), config)
        return len(finished) >= config.beam and score <= finished[config.beam - 1].score
    could_reach = max(log_prob / length_penalty(n, config) for n in range(len(ids) + 1, limit + 1))
    return len(finished) >= n_best and could_reach <= finished[n_best - 1].score
