"""Beam search: a search for the most probable target of each source, with a few hypotheses at a time.

A hypothesis is the ids of a target after the start id, including the end token once it has ended. Its log p is the
sum of log softmax over its ids, including a forced prefix; its score is log p / penalty(length), divided once. Each
step takes the best `beam - finished` continuations, by log p, of all live hypotheses of a sentence. Those that end are
finished and keep their place, and the others stay live, so that beam 1 is greedy for every penalty. Of equal
continuations, the one of the better parent comes first, then the smaller id. A sentence is done when no hypothesis is
live, when `n_best` hypotheses are finished and no live one can still win, or at its limit; there, live hypotheses
count as unfinished and rank last.

With another `early_stopping` (the rules of transformers), a finished hypothesis frees its place, so that `beam`
hypotheses are live at every step. Of the best `beam` continuations, those that end are finished; the best `beam` that
do not end stay live. At the limit, all rank by score. A beam of 1 is also greedy. The rules differ in the end of the
search: "never" (no live hypothesis can still win), "full" (`beam` hypotheses are finished), "estimate" (`beam` are
finished, and the best live one, divided by the penalty of its present length, is not better than the worst of them).

`beam_reference` gives the same results for one sentence without a cache. This module decodes many sentences together;
`decode_sorted` decodes any number of them in batches.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.config.run import BeamConfig
from glassformer.data.batching import batches_by_length, pad
from glassformer.errors import UserError, require_integer
from glassformer.fitting import InParts
from glassformer.inference.decodable import Branching, Decodable
from glassformer.inference.sampling import all_ends, log_softmax
from glassformer.kernels.packed import PackedWeights

Ids = Sequence[int]

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
    """Log-probability of all ids given the source, in nats."""
    score: float
    """log_prob / length penalty."""
    ended: bool

    @classmethod
    def scored(cls, ids: list[int], log_prob: float, config: BeamConfig, *, ended: bool) -> "Hypothesis":
        return cls(ids, log_prob, log_prob / length_penalty(len(ids), config), ended)

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


def finished_leave(config: BeamConfig) -> bool:
    """Return True if a finished hypothesis frees its place for another one."""
    return config.early_stopping != "shrink" and config.beam > 1


def n_continuations(config: BeamConfig) -> int:
    """Return the number of candidates per sentence.

    If finished hypotheses free their places, there are enough for `beam` live ones, with any number of end tokens.

    >>> n_continuations(BeamConfig(4)), n_continuations(BeamConfig(4, early_stopping="never"))
    (4, 8)
    """
    return (2 + len(config.end_ids) if finished_leave(config) else 1) * config.beam


def is_decided(
    finished: Iterable[Hypothesis], live: tuple[Ids, float], limit: int, n_best: int, config: BeamConfig
) -> bool:
    """Return True if the search ends by the rule of `early_stopping`: the best `live` one (ids and log p) cannot win.

    "estimate" compares the live hypothesis at its present length. The other rules compare its largest possible score:
    log p only decreases, and the penalty is largest at the shortest or at the longest remaining length.
    """
    is_whole_beam = finished_leave(config) and config.early_stopping != "never"
    n_needed = config.beam if is_whole_beam else n_best
    scores = sorted((h.score for h in finished), reverse=True)
    if len(scores) < n_needed or config.early_stopping == "full":
        return len(scores) >= n_needed
    ids, log_prob = live
    lengths = (len(ids),) if is_whole_beam else (len(ids) + 1, limit)
    return log_prob / max(length_penalty(n, config) for n in lengths) <= scores[n_needed - 1]


def output_limit(config: BeamConfig, source_length: int, max_len: int) -> int:
    """Return the maximum number of ids in the output of a source of `source_length` tokens.

    >>> output_limit(BeamConfig(max_new_tokens=100, max_ratio=1.5), source_length=8, max_len=512)
    22
    """
    by_ratio = int(config.max_ratio * source_length) + 10 if config.max_ratio else max_len
    return min(config.max_new_tokens, max_len, by_ratio)


@torch.inference_mode()
def beam_search(
    model: Decodable,
    source_ids: Tensor,
    source_attention_mask: Tensor | None,
    config: BeamConfig,
    *,
    start_id: int,
    end_id: int,
    max_len: int,
    n_best: int = 1,
    prefixes: Sequence[Ids] = (),
    suppress_ids: Ids = (),
    observer: Observer | None = None,
) -> list[list[Hypothesis]]:
    """Return at most `n_best` hypotheses of every source, best first.

    `source_ids` (N, S) and `source_attention_mask` (N, S), True = real. `max_len` is the model's context. The number of
    ids of an output, including prefix and end, is limited by `max_len`, `max_new_tokens` and `max_ratio` × source + 10.
    A target ends with `end_id` or one of `config.end_ids`. It begins with the ids of its item in `prefixes`, if given;
    ids in `suppress_ids` are not chosen. An `observer` receives every step (`inspection/beam_tree.py`) and does not
    change the results.

    Raises `UserError` if `n_best` is above the beam, or if a prefix is longer than the limit of the output.
    """
    n_sources, n_columns = source_ids.shape
    lengths = [n_columns] * n_sources if source_attention_mask is None else source_attention_mask.sum(dim=1).tolist()
    limits = [output_limit(config, length, max_len) for length in lengths]
    prefixes = prefixes or [()] * n_sources
    _check(config, n_best, prefixes, limits, end_id)
    ends = all_ends([end_id], config)
    if not n_sources:
        return []

    def tensor(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=source_ids.device)

    with PackedWeights():
        state = model.start(n_sources, max(limits), source_ids, source_attention_mask)
        log_probs, forced, state = _read(model, state, start_id, prefixes, limits, source_ids.device)
        searches = [
            _Search(config, n_best, limit, ends, list(prefix), log_prob, observer and partial(observer, i))
            for i, (limit, prefix, log_prob) in enumerate(zip(limits, prefixes, forced, strict=True))
        ]
        if config.beam > 1 and isinstance(state, Branching):
            state = state.branched()
        banned = tensor(suppress_ids)
        n_looked_at = config.beam + finished_leave(config) * len(ends)  # per row; those that end free their places
        n_looked_at += 0 if observer is None else config.beam  # candidates that are shown and never chosen
        going = searches
        while True:
            rows = _advance(going, _continuations(log_probs.index_fill_(1, banned, -torch.inf), n_looked_at))
            if not (going := [search for search in going if not search.is_done]):
                return [search.result() for search in searches]
            if rows != list(range(len(log_probs))):
                state = state.select(tensor(rows))
            last = tensor([ids[-1] for search in going for ids, _ in search.live])
            logits, state = model.step(last[:, None], state)
            log_probs = log_softmax(logits[:, -1])


class _Search:
    """Search for one sentence: live hypotheses (ids and log p), best first, and finished hypotheses."""

    def __init__(
        self,
        config: BeamConfig,
        n_best: int,
        limit: int,
        ends: frozenset[int],
        prefix: list[int],
        log_prob: float,
        observer: Callable[[Step], None] | None = None,
    ) -> None:
        self.observer = observer
        self.config, self.n_best, self.limit, self.ends = config, n_best, limit, ends
        self.live = [(prefix, log_prob)]
        self.finished: list[Hypothesis] = []
        self.parents = [0]  # indices of the parents among the live hypotheses of the previous step
        self.stuck = False  # no continuation is possible

    def advance(self, continuations: Iterable[tuple[float, int, int]]) -> None:
        """Choose among continuations (-log p, parent, id)."""
        if self.is_done:  # already at the start: the prefix has the maximum length
            return
        beam = self.config.beam
        n_held = 0 if finished_leave(self.config) else len(self.finished)
        ranked = sorted(continuations)
        best = ranked[: n_continuations(self.config) - n_held]
        if not best:
            self.stuck = True
            return
        former, self.live, self.parents = self.live, [], []
        for rank, (cost, parent, token) in enumerate(best):
            ids = [*former[parent][0], token]
            if token not in self.ends:
                self.live.append((ids, -cost))
                self.parents.append(parent)
            elif rank < beam:
                self.finished.append(Hypothesis.scored(ids, -cost, self.config, ended=True))
        del self.live[beam:], self.parents[beam:]
        if self.observer is not None:
            self.observer(Step(former, ranked, list(self.live), list(self.finished)))

    @property
    def is_at_end(self) -> bool:
        """True if no hypothesis is live or can be continued."""
        return not self.live or self.stuck or len(self.live[0][0]) >= self.limit

    @property
    def is_done(self) -> bool:
        """True if no live hypothesis can be continued, or can win by the rule of `early_stopping`."""
        return self.is_at_end or is_decided(self.finished, self.live[0], self.limit, self.n_best, self.config)

    def result(self) -> list[Hypothesis]:
        unfinished = [Hypothesis.scored(ids, log_prob, self.config, ended=False) for ids, log_prob in self.live]
        if finished_leave(self.config):
            may_win = unfinished if self.is_at_end else []
            return sorted([*self.finished, *may_win], key=lambda h: -h.score)[: self.n_best]
        ranked = [sorted(group, key=lambda h: -h.score) for group in (self.finished, unfinished)]
        return [*ranked[0], *ranked[1]][: self.n_best]


def _advance(searches: Sequence[_Search], found: tuple[list[int], list[int], list[float]]) -> list[int]:
    """Advance each search with the continuations (row, id, log p) of its rows; return the parent rows to keep."""
    begin, at, stay = 0, 0, []
    for search in searches:
        end = begin + len(search.live)
        upto = bisect_left(found[0], end)
        own = zip(*(values[at:upto] for values in found), strict=True)
        search.advance((-(search.live[row - begin][1] + p), row - begin, token) for row, token, p in own)
        if not search.is_done:
            stay += [begin + parent for parent in search.parents]
        begin, at = end, upto
    return stay


def _continuations(log_probs: Tensor, n: int) -> tuple[list[int], list[int], list[float]]:
    """Return row, id and log p of the `n` best continuations per row, with all ties of the n-th and a few more.

    The n chunks with the largest maxima contain at least n tokens that are not below the smallest of these maxima. So
    all tokens below it are dropped without sorting the whole row, and ties are never cut.
    """
    size = CHUNK if n * CHUNK <= log_probs.shape[1] else 1
    missing = -log_probs.shape[1] % size
    padded = F.pad(log_probs, (0, missing), value=-torch.inf) if missing else log_probs
    chunks = padded.unflatten(1, (-1, size))  # (R, C, size)
    maxima = chunks.amax(dim=2)
    threshold = maxima.topk(min(n, maxima.shape[1])).values[:, -1:]
    rows, places = (maxima >= threshold).nonzero(as_tuple=True)
    inside = chunks[rows, places]
    which, offsets = ((inside >= threshold[rows]) & (inside > -torch.inf)).nonzero(as_tuple=True)
    values = inside[which, offsets]
    numbers = [x.to(values.dtype) for x in (rows[which], places[which] * size + offsets)]  # exact below 2^24
    found = torch.stack([*numbers, values]).cpu()  # one copy
    return found[0].long().tolist(), found[1].long().tolist(), found[2].tolist()


def _read(
    model: Decodable,
    state: Any,
    start_id: int,
    prefixes: Sequence[Ids],
    limits: Sequence[int],
    device: torch.device,
) -> tuple[Tensor, list[float], Any]:
    """Read start ids and prefixes; return log p (N, V) of the next id, log p of each prefix, and the state."""
    inputs = [[start_id, *prefix][:limit] for prefix, limit in zip(prefixes, limits, strict=True)]
    token_ids, real = (x.to(device) for x in pad(inputs, 0))  # (N, T)
    given, is_given = (x.to(device) for x in pad(prefixes, 0))  # (N, T or T - 1)
    logits, state = model.step(token_ids, state, None if bool(real.all()) else real)
    log_probs = log_softmax(logits)  # (N, T, V)
    of_given = log_probs[:, : given.shape[1]].gather(2, given[:, :, None]).squeeze(2)
    forced = of_given.masked_fill(~is_given, 0.0).cpu().double().sum(dim=1)  # MPS has no double precision
    last = real.sum(dim=1) - 1
    return log_probs[torch.arange(len(inputs), device=device), last], forced.tolist(), state


def _check(config: BeamConfig, n_best: int, prefixes: Sequence[Ids], limits: Sequence[int], end_id: int) -> None:
    require_integer("n_best", n_best, 1, "the number of targets per source")
    if n_best > config.beam:
        raise UserError(f"n_best is {n_best} and must be from 1 to the beam, {config.beam}: change n_best or the beam")
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
    config: BeamConfig,
    *,
    start_id: int,
    end_id: int,
    max_len: int,
    n_best: int = 1,
    prefix: Ids = (),
    suppress_ids: Ids = (),
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
    max_tokens: int = MAX_TOKENS,
    takes: Callable[[int], bool] | None = None,
) -> list[list[Hypothesis]]:
    """Run `beam_search` on all `sources` (ids with their end tokens); result i belongs to source i.

    Every target begins with `prefix`. The longest sources are decoded first; a batch that does not fit in memory is
    decoded in parts. `progress(done, total)` is called after every batch. If `takes` is given, batches for whose number
    it returns False are skipped, and their sources have no result.
    """
    found: list[list[Hypothesis]] = [[] for _ in sources]
    n_done, in_parts = 0, InParts()

    def results_of(batch: Sequence[int]) -> list[list[Hypothesis]]:
        source_ids, mask = pad([sources[i] for i in batch], 0)
        return beam_search(
            model,
            source_ids.to(device),
            None if bool(mask.all()) else mask.to(device),
            config,
            start_id=start_id,
            end_id=end_id,
            max_len=max_len,
            n_best=n_best,
            prefixes=[prefix] * len(batch),
            suppress_ids=suppress_ids,
        )

    batches = batches_by_length([len(source) for source in sources], max_tokens // config.beam)
    for number, batch in enumerate(batches):
        if takes is not None and not takes(number):
            continue
        results = (result for part in in_parts(batch, results_of) for result in part)
        for i, result in zip(batch, results, strict=True):
            found[i] = result
        n_done += len(batch)
        if progress is not None:
            progress(n_done, len(sources))
    return found
