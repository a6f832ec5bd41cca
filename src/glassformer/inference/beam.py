"""Beam search: a search for the most probable target of each source, with a few hypotheses at a time.

A hypothesis consists of the ids of a target after the start id, with the end token if the target has ended. Its log p
is the sum of log softmax over its ids. The sum includes a forced prefix, but not the tokens that every target begins
with (BART's `<s>`, a language). Its score is log p / penalty(length). A hypothesis that has not ended is live.

The default of `early_stopping` is "shrink": a finished hypothesis keeps its place in the beam. Each step chooses the
best `beam - (number of finished)` continuations, by log p, of all live hypotheses of a sentence. A continuation that
ends becomes a finished hypothesis, and the others stay live. So a beam of 1 is greedy for every penalty. Of equal
continuations, the one of the better parent comes first, then the one with the smaller id. The search for a sentence
ends when no hypothesis is live, when `n_best` hypotheses are finished and no live one can still win, or at the limit
of the length. At the limit, live hypotheses are returned as unfinished, after the finished ones.

The other values of `early_stopping` are rules of transformers. With them, a finished hypothesis frees its place, so
`beam` hypotheses are live at every step. A continuation that ends is finished if it is among the best `beam` of all.
The best `beam` continuations that do not end stay live. At the limit, all hypotheses rank by score. A beam of 1 is
greedy here, too. The rules differ in the end of the search. It ends when no live hypothesis can still win ("never"),
when `beam` hypotheses are finished ("full"), or when moreover the best live hypothesis, scored at its present length,
is not better than the worst of these ("estimate").

The same rules with fairseq's names:

| fairseq's `SequenceGenerator`                      | here                                                    |
|----------------------------------------------------|---------------------------------------------------------|
| `beam_size` rows per sentence                      | at most `beam` rows, one per live hypothesis            |
| `cand_size`, the best 2 · beam of all rows         | `n_candidates_per_sentence`; "shrink" needs only `beam` |
| an end is finalized if among the first `beam_size` | the same (`SentenceSearch.advance`)                     |
| the best `beam_size` others are the next rows      | `live`                                                  |
| search ends when `beam_size` are finalized         | `early_stopping = "full"`                               |

`beam_reference` gives the same results for one sentence without a cache. `search.py` has the rules of scores.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.common.errors import UserError
from glassformer.data.batching import batches_by_length, pad, padded
from glassformer.inference.constraints import Constraints, Past
from glassformer.inference.contexts import Ids, SourceBatch
from glassformer.inference.decodable import Decodable, branched
from glassformer.inference.sampling import log_softmax
from glassformer.inference.search import Hypothesis, Observer, Search, Step, Steps
from glassformer.models.devices import InParts
from glassformer.nn.kernels.linear import PackedWeights

CHUNK = 64
"""Number of tokens in a chunk of the vocabulary. `_continuations` computes the maximum of each chunk first."""
MAX_TOKENS = 8192
"""Largest number of source positions (padding included) × beam in a batch. It limits memory."""


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

    Every target begins with `prefix`. The longest sources are decoded first. A batch that does not fit in memory is
    decoded in parts. `progress(done, total)` is called after every batch. If `takes` is given, batch n is decoded only
    if `takes(n)` is True. The sources of other batches have no hypotheses.
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

    The number of ids of a target, with its prefix and its end, is at most `max_len`, `max_new_tokens` and `max_ratio` ×
    (length of the source) + 10. If `prefixes` is given, target i begins with the ids `prefixes[i]`. An `observer`
    receives every step (`inspection/beam_tree.py`) and does not change the results.

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
        reader = Steps(model, state, coverage)
        logits, forced = _read(reader, inputs, prefixes, search.n_forced, source_ids.device)
        sentences = [
            SentenceSearch(search, limit, list(prefix), log_prob, observer and partial(observer, i), [search.start_id])
            for i, (limit, prefix, log_prob) in enumerate(zip(limits, prefixes, forced, strict=True))
        ]
        return searched(reader, logits, sentences, search)


def searched(
    reader: Steps, logits: Tensor, sentences: Sequence["SentenceSearch"], search: Search
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each sentence; `logits` (N, V) are those of its first id after the prefix."""
    device = logits.device

    def tensor(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    if search.config.beam > 1:
        reader.state = branched(reader.state)
    # Candidates per row: `beam` that do not end, one per end id, and `beam` more that an observer shows as not chosen
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
    """The search for one sentence, with its live hypotheses (ids and log p), best first, and its finished ones."""

    def __init__(
        self,
        search: Search,
        limit: int,
        prefix: list[int],
        log_prob: float,
        observer: Callable[[Step], None] | None = None,
        before: Ids = (),
    ) -> None:
        """Begin with the forced `prefix` of a target. The ids `before` it are the start id, or a prompt."""
        self.search, self.limit, self.observer, self.before = search, limit, observer, before
        self.live = [(prefix, log_prob)]
        self.coverage = [0.0]  # coverage penalties of the live hypotheses
        self.finished: list[Hypothesis] = []
        self.parents = [0]  # indices of the parents among the live hypotheses of the previous step
        self.stuck = False  # no continuation is possible

    @property
    def pasts(self) -> list[Past]:
        """For each live hypothesis, the ids before its next id."""
        return [Past([*self.before, *ids], len(self.before)) for ids, _ in self.live]

    def advance(self, continuations: Iterable[tuple[float, int, int]], coverage: Sequence[float] = ()) -> None:
        """Choose among continuations (-log p, parent, id); `coverage` has the coverage penalties of the parents."""
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
        """True if no hypothesis is live, or no live hypothesis can be continued."""
        return not self.live or self.stuck or len(self.live[0][0]) >= self.limit

    @property
    def is_done(self) -> bool:
        """True if the search is at its end (`is_at_end`), or if the rule of `early_stopping` ends it."""
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

    Each row is divided into chunks. The n chunks with the largest maxima contain at least n tokens that are not below
    the smallest of these n maxima. So the tokens below this maximum can be dropped without sorting the row, and all
    ties are kept.
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
    reader: Steps, inputs: Sequence[Ids], prefixes: Sequence[Ids], n_forced: int, device: torch.device
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
