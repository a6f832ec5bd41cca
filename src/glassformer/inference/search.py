"""Hypotheses and rules of a beam search: scores, limits, the end of the search, and the coverage of the source."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from glassformer.common.errors import UserError, require_integer
from glassformer.config.run import BeamConfig
from glassformer.inference.constraints import Constraints, Past, require_end
from glassformer.inference.contexts import Ids
from glassformer.inference.decodable import Attending, Decodable
from glassformer.inference.sampling import log_softmax


@dataclass(frozen=True)
class Hypothesis:
    """A target with its log-probability and score."""

    ids: list[int]
    """The ids after the start id; the last one is the end token if `ended`."""
    log_prob: float
    """Log-probability of all ids given the source or the prompt, in nats, after the repetition penalty."""
    score: float
    """log_prob / length penalty, plus the coverage penalty."""
    ended: bool

    @property
    def text_ids(self) -> list[int]:
        """The ids without the end token."""
        return self.ids[:-1] if self.ended else self.ids


@dataclass(frozen=True)
class Step:
    """One step of the search for one source, as an observer receives it."""

    before: list[tuple[list[int], float]]
    """Live hypotheses before the step: ids and log p."""
    ranked: list[tuple[float, int, int]]
    """Candidates (-log p, index in `before`, id), best first; more than the search chooses from."""
    live: list[tuple[list[int], float]]
    """Live hypotheses after the step."""
    finished: list[Hypothesis]
    """All finished hypotheses so far."""


Observer = Callable[[int, Step], None]
"""Function that gets (index of the source, step) after each step of the search for each source."""


def length_penalty(length: int, config: BeamConfig) -> float:
    """Return the divisor of log p: ((5 + n) / 6)^a (Wu 2016, equation 14), or n^a (a = 1: the score is the average).

    >>> length_penalty(7, BeamConfig()), length_penalty(7, BeamConfig(length_penalty_type="average"))
    (2.0, 7.0)
    """
    base = (5 + length) / 6 if config.length_penalty_type == "gnmt" else length
    return float(base**config.length_penalty)


@dataclass(frozen=True)
class Search:
    """Settings of a beam search, the special ids of its targets, and the rules that follow from both.

    Raises `UserError` if `n_best` is not from 1 to the beam, and for a minimum of new tokens above the maximum.
    """

    config: BeamConfig
    start_id: int | None
    """Id that begins a target; None for continuations of prompts."""
    end_id: int | None
    """Id that ends a target. The ids of `config.end_ids` end a target, too."""
    max_len: int
    """The model's context."""
    n_best: int = 1
    """Number of targets per source."""
    suppress_ids: Ids = ()
    """Ids that are never chosen."""
    n_forced: int = 0
    """Number of first ids of a prefix that count with log p 0, because every target begins with them."""

    def __post_init__(self) -> None:
        require_end(self.config)
        require_integer("n_best", self.n_best, 1, "the number of targets per source")
        if self.n_best > self.config.beam:
            raise UserError(
                f"n_best is {self.n_best} and must be from 1 to the beam, {self.config.beam}: change n_best or the beam"
            )

    @cached_property
    def ends(self) -> frozenset[int]:
        """All ids that end a target."""
        return frozenset(end for end in (self.end_id, *self.config.end_ids) if end is not None)

    @cached_property
    def replaces_finished(self) -> bool:
        """True if another hypothesis takes the place of a finished one, as in fairseq and transformers."""
        return self.config.early_stopping != "shrink" and self.config.beam > 1

    @property
    def n_candidates_per_sentence(self) -> int:
        """Number of best continuations of a sentence among which a step chooses finished and live hypotheses.

        If finished hypotheses are replaced, it is 2 · beam (fairseq's `cand_size`), and `beam` more for each end id
        after the first. A parent has at most one continuation per end id, so at least `beam` candidates do not end.
        """
        if self.replaces_finished:
            return (1 + max(1, len(self.ends))) * self.config.beam
        return self.config.beam

    def limit(self, source_length: int) -> int:
        """Return the maximum number of ids in the output of a source of `source_length` tokens.

        >>> Search(BeamConfig(max_new_tokens=100, max_ratio=1.5), 0, 1, max_len=512).limit(source_length=8)
        22
        """
        limits = [self.config.max_new_tokens, self.max_len]
        if self.config.max_ratio:
            limits.append(int(self.config.max_ratio * source_length) + 10)
        return min(limits)

    @property
    def reads_coverage(self) -> bool:
        """True if scores depend on the attention to the source."""
        return self.config.coverage_penalty > 0 and self.config.beam > 1

    def hypothesis(self, ids: list[int], log_prob: float, coverage: float = 0.0, *, ended: bool) -> Hypothesis:
        """Return a hypothesis with its score, to which the `coverage` penalty is added."""
        return Hypothesis(ids, log_prob, log_prob / length_penalty(len(ids), self.config) + coverage, ended)

    def scores(self, logits: Tensor, constraints: Constraints, pasts: Sequence[Past]) -> Tensor:
        """Return log p (R, V) of the next id of each hypothesis after all rules; -inf excludes an id.

        A repetition penalty multiplies log p of each token that occurred before, as beam search in transformers does.
        Log p of a hypothesis is the sum after this penalty. A beam of 1 penalises logits instead, as greedy generation
        does.
        """
        if self.config.beam == 1:
            log_probs = log_softmax(constraints.penalise_(logits.clone(), pasts))
        else:
            log_probs = constraints.penalise_(log_softmax(logits), pasts)
        return constraints.exclude_(log_probs, pasts)

    def is_decided(self, finished: Iterable[Hypothesis], live: tuple[Ids, float], limit: int) -> bool:
        """Return True if the rule of `early_stopping` ends the search; `live` is the best live one (ids, log p).

        "full" only counts finished hypotheses. "estimate" compares them with the score of `live` at its present length.
        The other rules compare them with the largest score that `live` can still reach: log p only decreases, so this
        is its present value, divided by the largest penalty of a possible length. A penalty that grows with the length
        is largest at `limit`, and another one is largest after one more id.
        """
        ids, log_prob = live
        n_needed, lengths = self.n_best, [len(ids) + 1, limit]
        if self.replaces_finished and self.config.early_stopping != "never":
            n_needed, lengths = self.config.beam, [len(ids)]  # the whole beam
        scores = sorted((h.score for h in finished), reverse=True)
        if len(scores) < n_needed or self.config.early_stopping == "full":
            return len(scores) >= n_needed
        return log_prob / max(length_penalty(n, self.config) for n in lengths) <= scores[n_needed - 1]


class Steps:
    """A model, its state, and `coverage` (R, S): the sums of its attention to the source, if a search needs them."""

    def __init__(self, model: Decodable, state: Any, coverage: Tensor | None = None) -> None:
        self.model, self.state, self.coverage = model, state, coverage

    def step(self, token_ids: Tensor, real: Tensor | None = None) -> Tensor:
        """Read (R, T) more tokens; return logits (R, T, V)."""
        if self.coverage is None:
            logits, self.state = self.model.step(token_ids, self.state, real)
            return logits
        weights = None
        if isinstance(self.model, Attending):
            logits, self.state, weights = self.model.step_attending(token_ids, self.state, real)
        if weights is None:
            raise UserError(
                "coverage_penalty needs the attention of one model to the source, which this model or ensemble does "
                "not have: leave it out"
            )
        if real is not None:
            weights = weights * real[:, :, None]
        self.coverage = self.coverage + weights.sum(dim=1)
        return logits

    def select(self, rows: Tensor) -> None:
        self.state = self.state.select(rows)
        if self.coverage is not None:
            self.coverage = self.coverage[rows]

    def penalties(self, config: BeamConfig) -> list[float]:
        """Return the coverage penalty of each row, or an empty list if the search needs no coverage."""
        if self.coverage is None:
            return []
        return coverage_penalties(self.coverage, config).tolist()


def coverage_penalties(coverage: Tensor, config: BeamConfig) -> Tensor:
    """Return the coverage penalty of each row; `coverage` (R, S) is the sum of the attention to each source token.

    It is β Σᵢ log min(Σⱼ pᵢⱼ, 1) (Wu 2016, equation 14), where pᵢⱼ is the weight of source token i when id j is chosen,
    including the end. The weights are those of the decoder's last layer, averaged over heads; a recurrent model has one
    attention. The penalty is added to the score. It does not change log p or the choice of live hypotheses, only the
    ranking of results and the end of the search. It is at most 0, so the largest score that a live hypothesis can reach
    is computed without it. A sum of attention of 0 counts as the smallest normal number, so that the result is finite.

    >>> coverage_penalties(torch.tensor([[1.5, 0.5], [1.0, 2.0]]), BeamConfig(coverage_penalty=1.0))
    tensor([-0.6931,  0.0000])
    """
    return config.coverage_penalty * coverage.clamp(torch.finfo(coverage.dtype).tiny, 1).log().sum(dim=1)
