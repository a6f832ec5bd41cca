"""Beam search: a search for the most probable target of each source, with a few hypotheses at a time.

A hypothesis is the ids of a target after the start id, including the end token once it has ended. Its log p is the
sum of log softmax over its ids, including a forced prefix but not the tokens that every target begins with (BART's
`<s>`, a language); its score is log p / penalty(length), divided once. Each step takes the best `beam - finished`
continuations, by log p, of all live hypotheses of a sentence. Those that end are finished and keep their place, and
the others stay live, so that beam 1 is greedy for every penalty. Of equal continuations, the one of the better parent
comes first, then the smaller id. A sentence is done when no hypothesis is live, when `n_best` hypotheses are finished
and no live one can still win, or at its limit; there, live hypotheses count as unfinished and rank last.

With another `early_stopping` (the rules of transformers), a finished hypothesis frees its place, so that `beam`
hypotheses are live at every step. Of the best `beam` continuations, those that end are finished; the best `beam` that
do not end stay live. At the limit, all rank by score. A beam of 1 is also greedy. The rules differ in the end of the
search: "never" (no live hypothesis can still win), "full" (`beam` hypotheses are finished), "estimate" (`beam` are
finished, and the best live one, divided by the penalty of its present length, is not better than the worst of them).

A repetition penalty multiplies log p of each token that occurred before, as the beams of transformers do: log p of a
hypothesis is the sum of these products. A beam of 1 penalises logits instead, as greedy generation does. Repeated
n-grams and early ends are excluded (`constraints`), and log p of the others stays.

A coverage penalty adds β Σᵢ log min(Σⱼ pᵢⱼ, 1) to the score of a hypothesis (Wu 2016, equation 14), where pᵢⱼ is the
weight of source token i when id j is chosen, including the end. "summary" adds β Σᵢ (1 - max(Σⱼ pᵢⱼ, 1)) (OpenNMT). The
weights are those of the decoder's last layer, their mean over heads; a recurrent model has one attention. Both sums are
at most 0, so that the bound of a live hypothesis is that without them. They do not change log p or the choice of live
hypotheses, only the ranking of finished ones and the end of the search.

`continue_prompts` searches continuations of prompts with a language model by the same rules, with n = the number of new
ids.

The same with fairseq's names:

| fairseq's `SequenceGenerator`                      | here                                                    |
|----------------------------------------------------|---------------------------------------------------------|
| `beam_size` rows per sentence                      | a row per live hypothesis; with "shrink", fewer in time |
| `cand_size`, the best 2 · beam of all rows         | `n_candidates_per_sentence`; "shrink" needs only `beam` |
| an end is finalized if among the first `beam_size` | the same (`SentenceSearch.advance`)                     |
| the best `beam_size` others are the next rows      | `live`                                                  |
| search ends when `beam_size` are finalized         | `early_stopping = "full"`                               |

`beam_reference` gives the same results for one sentence without a cache. This module decodes many sentences together;
`decode_sorted` decodes any number of them in batches.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.common.errors import UserError, require_integer
from glassformer.config.run import BeamConfig
from glassformer.data.batching import batches_by_length, pad, padded
from glassformer.inference.constraints import Constraints, Past, require_end
from glassformer.inference.contexts import Context, Ids, SourceBatch, read_contexts
from glassformer.inference.decodable import Attending, Decodable, branched
from glassformer.inference.rows import check_prompts
from glassformer.inference.sampling import all_ends, log_softmax
from glassformer.models.fitting import InParts
from glassformer.nn.kernels.packed import PackedWeights

CHUNK = 64
"""Size in tokens of a chunk of the vocabulary; the maximum of each chunk is computed first."""
MAX_TOKENS = 8192
"""Maximum of source positions (padding included) × beam in a batch; limits memory and is large enough for speed."""


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
"""(index of the source, step) → None; called after each step of each source."""


def length_penalty(length: int, config: BeamConfig) -> float:
    """Return the divisor of log p: ((5 + n) / 6)^a (Wu 2016, equation 14), or n^a (the average if a = 1).

    >>> length_penalty(7, BeamConfig()), length_penalty(7, BeamConfig(length_penalty_type="average"))
    (2.0, 7.0)
    """
    base = (5 + length) / 6 if config.length_penalty_type == "gnmt" else length
    return float(base**config.length_penalty)


@dataclass(frozen=True)
class Search:
    """Settings of a beam search, and the special ids of its targets.

    Raises `UserError` if `n_best` is not from 1 to the beam, and for a minimum of new tokens above the maximum.
    """

    config: BeamConfig
    start_id: int | None
    """Begins a target; None for continuations of prompts."""
    end_id: int | None
    """Ends a target, as do the ids of `config.end_ids`."""
    max_len: int
    """The model's context."""
    n_best: int = 1
    """Number of targets per source."""
    suppress_ids: Ids = ()
    """Ids that are never chosen."""
    n_forced: int = 0
    """Number of the first ids of a prefix that have log p 0, because every target begins with them."""

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
        return all_ends([] if self.end_id is None else [self.end_id], self.config)

    @cached_property
    def replaces_finished(self) -> bool:
        """True if another hypothesis takes the place of a finished one, as in fairseq and transformers."""
        return self.config.early_stopping != "shrink" and self.config.beam > 1

    @property
    def n_candidates_per_sentence(self) -> int:
        """Number of the best continuations of a sentence from which a step takes finished and live hypotheses.

        If finished hypotheses are replaced: 2 · beam, fairseq's `cand_size`, and `beam` more for each further end id.
        Each parent has at most one continuation per end id, so that at least `beam` candidates do not end.
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
        """Return log p (R, V) of the next id of each hypothesis after all rules; -inf excludes an id."""
        if self.config.beam == 1:
            log_probs = log_softmax(constraints.penalise_(logits.clone(), pasts))
        else:
            log_probs = constraints.penalise_(log_softmax(logits), pasts)
        return constraints.exclude_(log_probs, pasts)

    def is_decided(self, finished: Iterable[Hypothesis], live: tuple[Ids, float], limit: int) -> bool:
        """Return True if the search ends by the rule of `early_stopping`: the best `live` one (ids, log p) cannot win.

        "estimate" compares the live hypothesis at its present length. The other rules compare its largest possible
        score: log p only decreases, and the penalty is largest at the shortest or at the longest remaining length.
        """
        ids, log_prob = live
        n_needed, lengths = self.n_best, [len(ids) + 1, limit]
        if self.replaces_finished and self.config.early_stopping != "never":
            n_needed, lengths = self.config.beam, [len(ids)]  # the whole beam
        scores = sorted((h.score for h in finished), reverse=True)
        if len(scores) < n_needed or self.config.early_stopping == "full":
            return len(scores) >= n_needed
        return log_prob / max(length_penalty(n, self.config) for n in lengths) <= scores[n_needed - 1]


@torch.inference_mode()
def beam_search(
    model: Decodable,
    sources: SourceBatch,
    search: Search,
    *,
    prefixes: Sequence[Ids] = (),
    observer: Observer | None = None,
) -> list[list[Hypothesis]]:
    """Return at most `n_best` hypotheses of every source, best first.

    The number of ids of an output, including prefix and end, is limited by `max_len`, `max_new_tokens` and `max_ratio`
    × source + 10. A target begins with the ids of its item in `prefixes`, if given. An `observer` receives every step
    (`inspection/beam_tree.py`) and does not change the results.

    Raises `UserError` if a prefix is longer than the limit of the output.
    """
    source_ids, mask = sources
    n_sources, n_columns = source_ids.shape
    if not n_sources:
        return []
    lengths = [n_columns] * n_sources if mask is None else mask.sum(dim=1).tolist()
    limits = [search.limit(length) for length in lengths]
    prefixes = prefixes or [()] * n_sources
    _check(prefixes, limits, search.end_id)
    assert search.start_id is not None
    with PackedWeights():
        # Read the sources, the start id and the prefixes
        state = model.start(n_sources, max(limits), source_ids, mask)
        inputs = [[search.start_id, *prefix][:limit] for prefix, limit in zip(prefixes, limits, strict=True)]
        coverage = None
        if search.reads_coverage:
            coverage = torch.zeros(source_ids.shape, device=source_ids.device)
            if mask is not None:
                coverage = (~mask).float()  # padding is covered, and gets no weight
        reader = _Steps(model, state, coverage)
        logits, forced = _read(reader, inputs, prefixes, search.n_forced, source_ids.device)
        sentences = [
            SentenceSearch(search, limit, list(prefix), log_prob, observer and partial(observer, i), [search.start_id])
            for i, (limit, prefix, log_prob) in enumerate(zip(limits, prefixes, forced, strict=True))
        ]
        return _searched(reader, logits, sentences, search)


@torch.inference_mode()
def continue_prompts(
    model: Decodable, prompts: Sequence[Ids], search: Search, device: torch.device | str = "cpu"
) -> list[list[Hypothesis]]:
    """Return at most `n_best` continuations of every prompt by a language model, best first.

    The ids of a hypothesis are the new ones. Their number is limited by `max_new_tokens` and the context; the last one
    may follow a full context. Raises `UserError` for an empty or overlong prompt, and for settings that need a source.
    """
    for name in ("max_ratio", "coverage_penalty"):
        if getattr(search.config, name):
            raise UserError(f"{name} needs a source, and a language model reads none: leave it out")
    check_prompts(prompts, search.max_len)
    limits = [min(search.config.max_new_tokens, search.max_len + 1 - len(prompt)) for prompt in prompts]
    room = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
    with PackedWeights():
        contexts = [Context(tuple(prompt)) for prompt in prompts]
        logits, state = read_contexts(model, contexts, min(room, search.max_len), device)
        sentences = [
            SentenceSearch(search, limit, [], 0.0, before=prompt) for limit, prompt in zip(limits, prompts, strict=True)
        ]
        return _searched(_Steps(model, state), logits, sentences, search)


class _Steps:
    """A model with its state, and the sums of its attention (R, S) to the source if a search needs them."""

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
        """Return the coverage penalty of each row; no values if no search needs them."""
        if self.coverage is None:
            return []
        return coverage_penalties(self.coverage, config).tolist()


def coverage_penalties(coverage: Tensor, config: BeamConfig) -> Tensor:
    """Return what coverage (R, S), the sums of attention to each source token, adds to the score of each row.

    A sum of 0 counts as the smallest normal number, so that the result is finite.

    >>> coverage_penalties(torch.tensor([[1.5, 0.5], [1.0, 2.0]]), BeamConfig(coverage_penalty=1.0))
    tensor([-0.6931,  0.0000])
    """
    if config.coverage_penalty_type == "gnmt":
        penalties = coverage.clamp(torch.finfo(coverage.dtype).tiny, 1).log().sum(dim=1)
    else:
        penalties = (1 - coverage.clamp(min=1)).sum(dim=1)
    return config.coverage_penalty * penalties


def _searched(
    reader: _Steps, logits: Tensor, sentences: Sequence["SentenceSearch"], search: Search
) -> list[list[Hypothesis]]:
    """Search from the logits (N, V) of the first id of each sentence."""
    device = logits.device

    def tensor(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    if search.config.beam > 1:
        reader.state = branched(reader.state)
    # `beam` candidates of each row that do not end, those that end, and some not chosen, for an observer
    n_candidates_per_row = search.config.beam
    if search.replaces_finished:
        n_candidates_per_row += len(search.ends)
    if any(sentence.observer is not None for sentence in sentences):
        n_candidates_per_row += search.config.beam
    # Step by step, with the rows of all live hypotheses
    constraints, unfinished = Constraints(search.config, search.suppress_ids, search.ends, device), sentences
    while True:
        pasts = [past for sentence in unfinished for past in sentence.pasts] if constraints.read_past else []
        candidates = _continuations(search.scores(logits, constraints, pasts), n_candidates_per_row)
        rows = _advance(unfinished, candidates, reader.penalties(search.config))
        unfinished = [sentence for sentence in unfinished if not sentence.is_done]
        if not unfinished:
            return [sentence.result() for sentence in sentences]
        if rows != list(range(len(logits))):
            reader.select(tensor(rows))
        last = tensor([ids[-1] for sentence in unfinished for ids, _ in sentence.live])
        logits = reader.step(last[:, None])[:, -1]


class SentenceSearch:
    """Search for one sentence: live hypotheses (ids and log p), best first, and finished hypotheses."""

    def __init__(
        self,
        search: Search,
        limit: int,
        prefix: list[int],
        log_prob: float,
        observer: Callable[[Step], None] | None = None,
        before: Ids = (),
    ) -> None:
        """Begin with the forced `prefix` of a target, after the ids `before` it: the start id, or the prompt."""
        self.search, self.limit, self.observer, self.before = search, limit, observer, before
        self.live = [(prefix, log_prob)]
        self.coverage = [0.0]  # penalties of the live hypotheses
        self.finished: list[Hypothesis] = []
        self.parents = [0]  # indices of the parents among the live hypotheses of the previous step
        self.stuck = False  # no continuation is possible

    @property
    def pasts(self) -> list[Past]:
        """The ids before the next one of each live hypothesis."""
        return [Past([*self.before, *ids], len(self.before)) for ids, _ in self.live]

    def advance(self, continuations: Iterable[tuple[float, int, int]], coverage: Sequence[float] = ()) -> None:
        """Choose among continuations (-log p, parent, id); `coverage` has the penalties of all parents, or none."""
        if self.is_done:  # already at the start: the prefix has the maximum length
            self.coverage = list(coverage) or self.coverage
            return
        search, beam = self.search, self.search.config.beam
        n_chosen = search.n_candidates_per_sentence
        if not search.replaces_finished:
            n_chosen -= len(self.finished)
        ranked = sorted(continuations)
        best = ranked[:n_chosen]
        if not best:
            self.stuck = True
            return
        former, self.live, self.parents = self.live, [], []
        coverage = coverage or [0.0] * len(former)
        for rank, (cost, parent, token) in enumerate(best):
            ids = [*former[parent][0], token]
            if token not in search.ends:
                self.live.append((ids, -cost))
                self.parents.append(parent)
            elif rank < beam:
                self.finished.append(search.hypothesis(ids, -cost, coverage[parent], ended=True))
        del self.live[beam:], self.parents[beam:]
        self.coverage = [coverage[parent] for parent in self.parents]
        if self.observer is not None:
            self.observer(Step(former, ranked, list(self.live), list(self.finished)))

    @property
    def is_at_end(self) -> bool:
        """True if no hypothesis is live or can be continued."""
        return not self.live or self.stuck or len(self.live[0][0]) >= self.limit

    @property
    def is_done(self) -> bool:
        """True if no live hypothesis can be continued, or can win by the rule of `early_stopping`."""
        return self.is_at_end or self.search.is_decided(self.finished, self.live[0], self.limit)

    def result(self) -> list[Hypothesis]:
        unfinished = [
            self.search.hypothesis(ids, log_prob, coverage, ended=False)
            for (ids, log_prob), coverage in zip(self.live, self.coverage, strict=True)
        ]
        if not self.search.replaces_finished:
            ranked = [*_by_score(self.finished), *_by_score(unfinished)]
        elif self.is_at_end:
            ranked = _by_score([*self.finished, *unfinished])
        else:
            ranked = _by_score(self.finished)
        return ranked[: self.search.n_best]


def _by_score(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda h: -h.score)


def _advance(
    sentences: Sequence[SentenceSearch],
    continuations: tuple[list[int], list[int], list[float]],
    coverage: Sequence[float] = (),
) -> list[int]:
    """Advance each search with the continuations (row, id, log p) of its rows; return the parent rows to keep."""
    begin, at, stay = 0, 0, []
    for sentence in sentences:
        end = begin + len(sentence.live)
        upto = bisect_left(continuations[0], end)
        of_sentence = zip(*(values[at:upto] for values in continuations), strict=True)
        sentence.advance(
            ((-(sentence.live[row - begin][1] + p), row - begin, token) for row, token, p in of_sentence),
            coverage[begin:end],
        )
        if not sentence.is_done:
            stay += [begin + parent for parent in sentence.parents]
        begin, at = end, upto
    return stay


def _continuations(log_probs: Tensor, n: int) -> tuple[list[int], list[int], list[float]]:
    """Return row, id and log p of the `n` best continuations per row, with all ties of the n-th and a few more.

    The n chunks with the largest maxima contain at least n tokens that are not below the smallest of these maxima. So
    all tokens below it are dropped without sorting the whole row, and ties are never cut.
    """
    # The chunks
    size = CHUNK if n * CHUNK <= log_probs.shape[1] else 1
    missing = -log_probs.shape[1] % size
    if missing:
        log_probs = F.pad(log_probs, (0, missing), value=-torch.inf)
    chunks = log_probs.unflatten(1, (-1, size))  # (R, C, size)
    maxima = chunks.amax(dim=2)
    threshold = maxima.topk(min(n, maxima.shape[1])).values[:, -1:]
    # The tokens that are not below the smallest maximum
    rows, numbers_of_chunks = (maxima >= threshold).nonzero(as_tuple=True)
    best = chunks[rows, numbers_of_chunks]
    which, offsets = ((best >= threshold[rows]) & (best > -torch.inf)).nonzero(as_tuple=True)
    values = best[which, offsets]
    token_ids = numbers_of_chunks[which] * size + offsets
    numbers = [x.to(values.dtype) for x in (rows[which], token_ids)]  # exact below 2^24
    rows_of, ids, log_p = torch.stack([*numbers, values]).cpu()  # one copy
    return rows_of.long().tolist(), ids.long().tolist(), log_p.tolist()


def _read(
    reader: _Steps, inputs: Sequence[Ids], prefixes: Sequence[Ids], n_forced: int, device: torch.device
) -> tuple[Tensor, list[float]]:
    """Read start ids and prefixes; return the logits (N, V) of the next id, and log p of each prefix.

    The first `n_forced` ids of a prefix have log p 0.
    """
    token_ids, real = padded(inputs, device)  # (N, T)
    forced_ids, is_forced = (x.to(device) for x in pad(prefixes, 0))  # (N, T or T - 1)
    logits = reader.step(token_ids, real)  # (N, T, V)
    of_forced = log_softmax(logits)[:, : forced_ids.shape[1]].gather(2, forced_ids[:, :, None]).squeeze(2)
    sums = of_forced.masked_fill(~is_forced, 0.0)[:, n_forced:].cpu().double().sum(dim=1)  # MPS has no double precision
    last = torch.tensor([len(ids) - 1 for ids in inputs], device=device)
    return logits[torch.arange(len(inputs), device=device), last], sums.tolist()


def _check(prefixes: Sequence[Ids], limits: Sequence[int], end_id: int | None) -> None:
    for number, (prefix, limit) in enumerate(zip(prefixes, limits, strict=True), 1):
        if len(prefix) > limit:
            raise UserError(
                f"the prefix of output {number} has {len(prefix)} tokens and the output may have {limit}: shorten the "
                "prefix, or increase max_new_tokens or max_ratio (the model's context is the upper limit)"
            )
        if end_id in prefix:
            raise ValueError(f"the prefix of output {number} contains the end token")


def decode_sorted(
    model: Decodable,
    sources: Sequence[Ids],
    search: Search,
    *,
    prefix: Ids = (),
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
    takes: Callable[[int], bool] | None = None,
) -> list[list[Hypothesis]]:
    """Decode all `sources` (ids with their end tokens); result i belongs to source i.

    Every target begins with `prefix`. The longest sources are decoded first; a batch that does not fit in
    memory is decoded in parts. `progress(done, total)` is called after every batch. If `takes` is given, batches for
    whose number it returns False are skipped, and their sources have no result.
    """
    hypotheses: list[list[Hypothesis]] = [[] for _ in sources]
    n_done, in_parts = 0, InParts()

    def results_of(batch: Sequence[int]) -> list[list[Hypothesis]]:
        in_batch = padded([sources[i] for i in batch], device)
        return beam_search(model, in_batch, search, prefixes=[prefix] * len(batch))

    batches = batches_by_length([len(source) for source in sources], MAX_TOKENS // search.config.beam)
    for number, batch in enumerate(batches):
        if takes is not None and not takes(number):
            continue
        for i, result in in_parts.each([batch], results_of):
            hypotheses[i] = result
        n_done += len(batch)
        if progress is not None:
            progress(n_done, len(sources))
    return hypotheses
