"""Beam search: the most probable target of each source that a few hypotheses at a time can find.

A hypothesis is the target's ids after the start id, its end token included when it ended. Its log p is the sum of
log softmax over its ids, a forced prefix included, and its score is log p / penalty(length), divided once. Each
step takes, of all continuations of a sentence's live hypotheses, the best `beam - finished` by log p: those that
end are finished and hold their place, the others live on, so that beam 1 is greedy whatever the penalty. Of equal
continuations the better parent's comes first, then the smaller id. A sentence is done when nothing lives, when
`n_best` hypotheses are finished and no live one can win any more, or at its limit, where the live ones count as
unfinished and rank last.

With `early_stopping = "never"` (the rule of transformers) a finished hypothesis frees its place, and `beam` hypotheses
live at every step: those of the best `beam` that end are finished, the best `beam` that do not live on; and at the
limit all rank by score. A beam of 1 is greedy all the same.

`beam_reference` says the same for one sentence without a cache; here many go together, and with `decode_sorted` any
number of them, in batches.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.config.run import BeamConfig
from glassformer.data.batching import batches_by_length, pad
from glassformer.errors import UserError
from glassformer.inference.decodable import Branching, Decodable
from glassformer.inference.sampling import log_softmax

CHUNK = 64
"""Tokens of the vocabulary whose maximum is taken first."""
MAX_TOKENS = 8192
"""Source positions of a batch, padding included, times the beam: bounds memory, and is enough to be fast."""


@dataclass(frozen=True)
class Hypothesis:
    """A target and what the model thinks of it."""

    ids: list[int]
    """After the start id; the end token is the last one when it `ended`."""
    log_prob: float
    """log p of all ids given the source, in nats."""
    score: float
    """log_prob / length penalty."""
    ended: bool


def length_penalty(length: int, config: BeamConfig) -> float:
    """What divides log p: ((5 + n) / 6)^a (Wu 2016, equation 14), or n^a: the average when a = 1.

    >>> length_penalty(7, BeamConfig()), length_penalty(7, BeamConfig(length_penalty_type="average"))
    (2.0, 7.0)
    """
    base = (5 + length) / 6 if config.length_penalty_type == "gnmt" else length
    return float(base**config.length_penalty)


def finished_leave(config: BeamConfig) -> bool:
    """Whether a finished hypothesis gives its place to another one."""
    return config.early_stopping == "never" and config.beam > 1


def n_continuations(config: BeamConfig) -> int:
    """Continuations of a sentence that are looked at: where finished ones leave, as many may end as may live.

    >>> n_continuations(BeamConfig(4)), n_continuations(BeamConfig(4, early_stopping="never"))
    (4, 8)
    """
    return (2 if finished_leave(config) else 1) * config.beam


def output_limit(config: BeamConfig, source_length: int, max_len: int) -> int:
    """The most ids that the output of a source of so many tokens may have.

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
    prefixes: Sequence[Sequence[int]] = (),
    suppress_ids: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """At most `n_best` hypotheses of every source, best first.

    `source_ids` (N, S) and `source_attention_mask` (N, S), True = real. `max_len` is the model's context: an output
    has at most so many ids, `max_new_tokens`, or `max_ratio` × source + 10, its prefix and end included. `prefixes`,
    when given, are the ids that each target begins with; ids in `suppress_ids` are not chosen.

    Raises `UserError` for an `n_best` above the beam, and for a prefix longer than an output may be.
    """
    n_sources, n_columns = source_ids.shape
    lengths = [n_columns] * n_sources if source_attention_mask is None else source_attention_mask.sum(dim=1).tolist()
    limits = [output_limit(config, length, max_len) for length in lengths]
    prefixes = prefixes or [()] * n_sources
    _check(config, n_best, prefixes, limits, end_id)
    if not n_sources:
        return []

    def tensor(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=source_ids.device)

    state = model.start(n_sources, max(limits), source_ids, source_attention_mask)
    log_probs, forced, state = _read(model, state, start_id, prefixes, limits, source_ids.device)
    searches = [
        _Search(config, n_best, limit, end_id, list(prefix), log_prob)
        for limit, prefix, log_prob in zip(limits, prefixes, forced, strict=True)
    ]
    if config.beam > 1 and isinstance(state, Branching):
        state = state.branched()
    banned = tensor(suppress_ids)
    n_looked_at = config.beam + finished_leave(config)  # of a row, one may end and leave its place
    going = searches
    while True:
        rows = _advance(going, _continuations(log_probs.index_fill_(1, banned, -torch.inf), n_looked_at))
        going = [search for search in going if not search.is_done]
        if not going:
            return [search.result() for search in searches]
        if rows != list(range(len(log_probs))):
            state = state.select(tensor(rows))
        last = tensor([ids[-1] for search in going for ids, _ in search.live])
        logits, state = model.step(last[:, None], state)
        log_probs = log_softmax(logits[:, -1])


class _Search:
    """The search of one sentence: its live hypotheses (ids and log p), best first, and the finished ones."""

    def __init__(
        self, config: BeamConfig, n_best: int, limit: int, end_id: int, prefix: list[int], log_prob: float
    ) -> None:
        self.config, self.n_best, self.limit, self.end_id = config, n_best, limit, end_id
        self.live = [(prefix, log_prob)]
        self.finished: list[Hypothesis] = []
        self.parents = [0]  # of the live ones, among those that lived a step before
        self.stuck = False  # nothing can follow

    def advance(self, continuations: Iterable[tuple[float, int, int]]) -> None:
        """Chooses from (-log p, parent, id)."""
        if self.is_done:  # from the start: the prefix is as long as an output may be
            return
        beam = self.config.beam
        n_held = 0 if finished_leave(self.config) else len(self.finished)
        best = sorted(continuations)[: n_continuations(self.config) - n_held]
        if not best:
            self.stuck = True
            return
        former, self.live, self.parents = self.live, [], []
        for rank, (cost, parent, token) in enumerate(best):
            ids = [*former[parent][0], token]
            if token != self.end_id:
                self.live.append((ids, -cost))
                self.parents.append(parent)
            elif rank < beam:
                self.finished.append(self.hypothesis(ids, -cost, ended=True))
        del self.live[beam:], self.parents[beam:]

    def hypothesis(self, ids: list[int], log_prob: float, ended: bool) -> Hypothesis:
        return Hypothesis(ids, log_prob, log_prob / length_penalty(len(ids), self.config), ended)

    @property
    def is_at_end(self) -> bool:
        """Nothing lives, or may go on."""
        return not self.live or self.stuck or len(self.live[0][0]) >= self.limit

    @property
    def is_done(self) -> bool:
        """Nothing lives, or may go on, or can win any more."""
        if self.is_at_end:
            return True
        if len(self.finished) < self.n_best:
            return False
        ids, log_prob = self.live[0]
        # log p only falls; the penalty is largest at one end of the lengths to come.
        largest = max(length_penalty(n, self.config) for n in (len(ids) + 1, self.limit))
        to_beat = sorted((h.score for h in self.finished), reverse=True)[self.n_best - 1]
        return log_prob / largest <= to_beat

    def result(self) -> list[Hypothesis]:
        unfinished = [self.hypothesis(ids, log_prob, ended=False) for ids, log_prob in self.live]
        if finished_leave(self.config):
            may_win = unfinished if self.is_at_end else []
            return sorted([*self.finished, *may_win], key=lambda h: -h.score)[: self.n_best]
        ranked = [sorted(group, key=lambda h: -h.score) for group in (self.finished, unfinished)]
        return [*ranked[0], *ranked[1]][: self.n_best]


def _advance(searches: Sequence[_Search], found: tuple[list[int], list[int], list[float]]) -> list[int]:
    """Lets every search choose among the continuations (row, id, log p) of its rows; the parents' rows that stay."""
    begin, at, stay = 0, 0, []
    for search in searches:
        end = begin + len(search.live)
        upto = bisect_left(found[0], end)
        search.advance(
            (-(search.live[row - begin][1] + log_prob), row - begin, token)
            for row, token, log_prob in zip(*(values[at:upto] for values in found), strict=True)
        )
        if not search.is_done:
            stay += [begin + parent for parent in search.parents]
        begin, at = end, upto
    return stay


def _continuations(log_probs: Tensor, n: int) -> tuple[list[int], list[int], list[float]]:
    """Row, id and log p of the `n` best continuations of each row, of all that tie with the n-th, and a few more.

    The n best chunks of a row are known by their maxima, and each holds a token as good as the worst of these: what
    is below that is out. So only chunks are sorted, and ties are never cut.
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
    prefixes: Sequence[Sequence[int]],
    limits: Sequence[int],
    device: torch.device,
) -> tuple[Tensor, list[float], Any]:
    """Reads start ids and prefixes: log p (N, V) of what follows, log p of each prefix, and the state."""
    inputs = [[start_id, *prefix][:limit] for prefix, limit in zip(prefixes, limits, strict=True)]
    token_ids, real = (x.to(device) for x in pad(inputs, 0))  # (N, T)
    given, is_given = (x.to(device) for x in pad(prefixes, 0))  # (N, T or T - 1)
    logits, state = model.step(token_ids, state, None if bool(real.all()) else real)
    log_probs = log_softmax(logits)  # (N, T, V)
    of_given = log_probs[:, : given.shape[1]].gather(2, given[:, :, None]).squeeze(2)
    forced = of_given.masked_fill(~is_given, 0.0).cpu().double().sum(dim=1)  # MPS has no double precision
    last = real.sum(dim=1) - 1
    return log_probs[torch.arange(len(inputs), device=device), last], forced.tolist(), state


def _check(
    config: BeamConfig, n_best: int, prefixes: Sequence[Sequence[int]], limits: Sequence[int], end_id: int
) -> None:
    if not 1 <= n_best <= config.beam:
        raise UserError(f"n_best is {n_best} and the beam {config.beam}: ask for at least one, or widen the beam")
    for number, (prefix, limit) in enumerate(zip(prefixes, limits, strict=True), 1):
        if len(prefix) > limit:
            raise UserError(
                f"the prefix of output {number} has {len(prefix)} tokens and the output at most {limit}: shorten the "
                "prefix, or allow more with max_new_tokens or max_ratio, as far as the model's context reaches"
            )
        if end_id in prefix:
            raise ValueError(f"the prefix of output {number} holds the end token")


def decode_sorted(
    model: Decodable,
    sources: Sequence[Sequence[int]],
    config: BeamConfig,
    *,
    start_id: int,
    end_id: int,
    max_len: int,
    n_best: int = 1,
    prefix: Sequence[int] = (),
    suppress_ids: Sequence[int] = (),
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
    max_tokens: int = MAX_TOKENS,
    takes: Callable[[int], bool] | None = None,
) -> list[list[Hypothesis]]:
    """`beam_search` over all of `sources` (ids, with whatever ends them); result i is of source i.

    Every target begins with `prefix`. The longest sources go first, so that a batch too large for the memory
    shows at once. `progress(done, total)` is told of every batch. Where `takes` is given, batches whose number it does
    not take are passed over, and their sources have no result.
    """
    found: list[list[Hypothesis]] = [[] for _ in sources]
    n_done = 0
    batches = batches_by_length([len(source) for source in sources], max_tokens // config.beam)
    for number, batch in enumerate(batches):
        if takes is not None and not takes(number):
            continue
        source_ids, mask = pad([sources[i] for i in batch], 0)
        results = beam_search(
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
        for i, result in zip(batch, results, strict=True):
            found[i] = result
        n_done += len(batch)
        if progress is not None:
            progress(n_done, len(sources))
    return found
