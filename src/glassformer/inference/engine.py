"""Continuous batching of requests with settings of their own: rows join and leave a running batch between steps.

Long prompts are read in parts between the steps of the other rows, so that no row waits long (chunked prefill; Agrawal
2023). What prompts have in common is read once (`prefixes.py`). A row has the ids that it has alone.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.inference.contexts import Ids, n_shared, read_more
from glassformer.inference.decodable import Decodable, joined
from glassformer.inference.prefixes import MIN_SHARED, PrefixCache
from glassformer.inference.rows import Row, Settings, rows_of
from glassformer.inference.sampling import Sampler, log_softmax
from glassformer.nn.kernels.packed import PackedWeights

PART = 256
"""Number of prompt tokens that are read at once; it limits the memory of their hidden states."""
PART_BETWEEN = 64
"""Number of prompt tokens that are read between two steps of other rows; it limits how long these wait."""

Finish = Literal["stop", "length"]
"""Why a row has ended: an end id, or the limit of its length."""


@dataclass(frozen=True)
class Penalties:
    """Numbers that are added to the logits of a request: constant ones, and penalties of its own new ids."""

    bias: Mapping[int, float] = field(default_factory=dict)
    presence: float = 0.0
    """Subtracted for each id that was generated before."""
    frequency: float = 0.0
    """Subtracted for each time that the id was generated before."""


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt, and how it is continued: one row per sample of its settings."""

    ids: Ids
    settings: Settings
    source: tuple[int, ...] = ()
    """Ids of the source, for a model that reads one."""
    penalties: Penalties = Penalties()
    n_new: int | None = None
    """Largest number of new ids, from 0; None = that of the settings."""
    n_top: int | None = None
    """Number of most probable ids that each new id is given with; None = no log probabilities."""
    scores_prompt: bool = False
    """True to compute the log probabilities of the prompt's ids, too."""


@dataclass(frozen=True)
class Likely:
    """An id and the most probable ids in its place, with log probabilities before temperature and all other rules."""

    token: int
    log_prob: float
    top: Sequence[tuple[int, float]] = ()


@dataclass(eq=False)
class Sample:
    """One row of a request."""

    request: Request
    row: Row
    bias: dict[int, float]
    """Numbers that are added to the logits, by id."""
    prompt: Sequence[Likely] = ()
    """The ids of the prompt from the second on, if the request asks for their scores."""
    n_shared: int = 0
    """Number of ids of the prompt that were not read again."""
    _new: set[int] = field(default_factory=set)
    """The new ids."""

    def __post_init__(self) -> None:
        if self.request.n_new is not None:
            self.row.longest = len(self.request.ids) + self.request.n_new
        # The last id is chosen after a full context, and not read
        self.row.longest = min(self.row.longest, self.request.settings.max_len + 1)

    def extend(self, token: int) -> None:
        """Add a new id."""
        penalties = self.request.penalties
        self.row.history.append(token)
        if penalties.presence or penalties.frequency:
            more = penalties.frequency + penalties.presence * (token not in self._new)
            self.bias[token] = self.bias.get(token, 0.0) - more
            self._new.add(token)


@dataclass(frozen=True)
class Step:
    """A new id of a row; its token is None if the request or its settings allow no new id."""

    sample: Sample
    token: int | None
    likely: Likely | None = None
    finish: Finish | None = None
    """Set if this is the last id."""


@dataclass(eq=False)
class _Unread:
    """A prompt whose context is not read to the end."""

    request: Request
    samples: list[Sample]
    state: Any = None
    n_read: int = 0
    likely: list[Likely] = field(default_factory=list)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self.request.ids)

    @property
    def n_left(self) -> int:
        return len(self.request.ids) - self.n_read


class Engine:
    """A model, the rows that it continues, and the prompts that wait.

    Not for several threads: one thread calls all methods.
    """

    def __init__(
        self, model: Decodable, *, max_len: int, device: torch.device | str, max_rows: int = 32, max_bytes: int = 0
    ) -> None:
        """Keep at most `max_rows` rows at a time, and states after prefixes in `max_bytes`."""
        self.model, self.max_len, self.device, self.max_rows = model, max_len, device, max_rows
        self.prefixes = PrefixCache(max_bytes)
        self.n_read = 0
        """Number of prompt tokens that were read since the start."""
        self._packed = PackedWeights()
        self._samplers: dict[Request, Sampler] = {}
        self.reset()

    def reset(self) -> None:
        """Drop all rows and prompts, and the state of the model: after an error of the model."""
        self._waiting: deque[_Unread] = deque()
        self._reading: list[_Unread] = []
        self._live: list[Sample] = []
        self._state: Any = None
        """The state after all ids of the live rows but the last, in their order."""
        self._ended: set[Sample] = set()
        self._samplers.clear()

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to do."""
        return not (self._waiting or self._reading or self._live)

    @property
    def n_live(self) -> int:
        """Number of rows that are continued or read."""
        return len(self._live) + sum(len(one.samples) for one in self._reading)

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait for a free row."""
        return len(self._waiting)

    def add(self, request: Request) -> list[Sample]:
        """Add a request; return its rows, whose ids the next steps give."""
        rows = rows_of([request.ids], request.settings, [request.source])
        samples = [Sample(request, row, dict(request.penalties.bias)) for row in rows]
        self._waiting.append(_Unread(request, samples))
        return samples

    def end(self, sample: Sample) -> None:
        """End a row before its next id."""
        self._ended.add(sample)

    @torch.inference_mode()
    def step(self) -> list[Step]:
        """Read a part of the prompts that wait, and choose the next id of each row."""
        with self._packed:
            self._drop_ended()
            steps = self._advance()
            steps += self._read()
        for step in steps:
            if step.finish is not None:
                self._ended.add(step.sample)
        return steps

    # Rows that are continued

    def _advance(self) -> list[Step]:
        if not self._live:
            return []
        last = torch.tensor([[sample.row.history[-1]] for sample in self._live], device=self.device)
        logits, self._state = self.model.step(last, self._state)
        return self._choose(self._live, logits[:, -1])

    def _choose(self, samples: Sequence[Sample], logits: Tensor) -> list[Step]:
        """Return the next id of each row, after logits (N, V)."""
        numbers: dict[Request, list[int]] = {}
        for number, sample in enumerate(samples):
            numbers.setdefault(sample.request, []).append(number)
        steps: dict[int, Step] = {}
        for request, of_request in numbers.items():
            mine = [samples[number] for number in of_request]
            own = logits[of_request].float()
            if request not in self._samplers:
                self._samplers[request] = request.settings.sampler
            sampler = self._samplers[request]
            shaped = sampler.shape(_biased(own, mine), [sample.row.past for sample in mine])
            tokens = sampler.choose(shaped, [sample.row.generator for sample in mine])
            scored: list[Likely | None] = [None] * len(mine)
            if request.n_top is not None:
                scored = [*likely(own, [token or 0 for token in tokens], request.n_top)]
            for number, sample, token, score in zip(of_request, mine, tokens, scored, strict=True):
                if token is None:
                    steps[number] = Step(sample, None, finish="length")
                    continue
                sample.extend(token)
                finish: Finish | None = "length" if sample.row.n_left <= 0 else None
                if token in request.settings.ends:
                    finish = "stop"
                steps[number] = Step(sample, token, score, finish)
        return [steps[number] for number in range(len(samples))]

    def _drop_ended(self) -> None:
        """Drop the rows that have ended; keep the state after each, which the next turn of a conversation may need."""
        if not self._ended:
            return
        stay = [number for number, sample in enumerate(self._live) if sample not in self._ended]
        for number, sample in enumerate(self._live):
            if sample in self._ended and self._keeps(sample.request):
                self.prefixes.add(tuple(sample.row.history[:-1]), self._row(number))
        if len(stay) < len(self._live):
            self._state = self._state.select(torch.tensor(stay, device=self.device)) if stay else None
            self._live = [self._live[number] for number in stay]
        for unread in [*self._waiting, *self._reading]:
            unread.samples = [sample for sample in unread.samples if sample not in self._ended]
        self._waiting = deque(one for one in self._waiting if one.samples)
        self._reading = [one for one in self._reading if one.samples]
        self._ended.clear()
        live = {sample.request for sample in self._live}
        self._samplers = {request: sampler for request, sampler in self._samplers.items() if request in live}

    def _keeps(self, request: Request) -> bool:
        """Return True if states after the ids of a request are kept; a source has too many different ones."""
        return self.prefixes.max_bytes > 0 and not request.source

    def _row(self, number: int) -> Any:
        return self._state.select(torch.tensor([number], device=self.device))

    # Prompts

    def _read(self) -> list[Step]:
        """Read a part of the waiting prompts; return the first id of each row whose prompt is read."""
        self._begin_reading()
        part = self._part()
        if not part:
            return []
        logits = self._read_scored(part[0]) if part[0].request.scores_prompt else self._read_together(part)
        done = [number for number, one in enumerate(part) if not one.n_left]
        self._reading = [one for one in self._reading if one.n_left]
        for one in (part[number] for number in done):
            if self._keeps(one.request):
                self.prefixes.add(one.ids, one.state)
        return self._join([part[number] for number in done], logits[done])

    def _begin_reading(self) -> None:
        """Let waiting prompts be read, as far as rows are free for them."""
        while self._waiting and (self.n_live == 0 or self.n_live + len(self._waiting[0].samples) <= self.max_rows):
            self._reading.append(self._waiting.popleft())

    def _part(self) -> list[_Unread]:
        """Return the prompts whose next ids are read now, the oldest first."""
        part: list[_Unread] = []
        for number, one in enumerate(self._reading):
            if one.state is None and self._waits(one, self._reading[:number]):
                continue
            self._start(one)
            if part and (one.request.scores_prompt or part[0].request.scores_prompt):
                break
            longest = max(min(each.n_left, self._room) for each in [*part, one])
            if part and longest * (len(part) + 1) > self._room:
                break
            part.append(one)
        return part

    @property
    def _room(self) -> int:
        """Number of prompt tokens that are read in this step."""
        return PART_BETWEEN if self._live else PART

    def _waits(self, one: _Unread, earlier: Sequence[_Unread]) -> bool:
        """Return True if an earlier prompt is read now whose beginning a prompt shares: it is read once."""
        if not earlier or not self._keeps(one.request) or one.request.scores_prompt:
            return False
        n_known = self.prefixes.n_known(one.ids)
        return any(n_shared(one.ids, other.ids) - n_known >= MIN_SHARED for other in earlier)

    def _start(self, one: _Unread) -> None:
        """Give a prompt the state after its longest known beginning, unless it has begun."""
        if one.state is not None:
            return
        if self._keeps(one.request) and not one.request.scores_prompt:
            one.n_read, one.state = self.prefixes.find(one.ids)
            for sample in one.samples:
                sample.n_shared = one.n_read
        if one.state is None:
            sources = [torch.tensor([ids], device=self.device) for ids in [one.request.source] if ids]
            one.state = self.model.start(1, self.max_len, *sources)

    def _read_together(self, part: Sequence[_Unread]) -> Tensor:
        """Read the next ids of several prompts; return the logits (N, V) after each."""
        rows = [one.request.ids[one.n_read : one.n_read + self._room] for one in part]
        logits, state = read_more(self.model, rows, _joined([one.state for one in part]), self.device)
        for number, (one, ids) in enumerate(zip(part, rows, strict=True)):
            one.n_read += len(ids)
            one.state = state if len(part) == 1 else state.select(torch.tensor([number], device=self.device))
            self.n_read += len(ids)
        return logits

    def _read_scored(self, one: _Unread) -> Tensor:
        """Read the next ids of a prompt with the log probabilities of the ids after them; return the last logits."""
        ids = one.request.ids
        begin, end = one.n_read, min(one.n_read + self._room, len(ids))
        logits, one.state = self.model.step(torch.tensor([ids[begin:end]], device=self.device), one.state)
        after = list(ids[begin + 1 : end + 1])
        one.likely += likely(logits[0, : len(after)], after, one.request.n_top or 0)
        one.n_read, self.n_read = end, self.n_read + end - begin
        for sample in one.samples:
            sample.prompt = one.likely
        return logits[:, -1]

    def _join(self, done: Sequence[_Unread], logits: Tensor) -> list[Step]:
        """Let rows whose prompts are read join the others; return their first ids."""
        steps, states, samples, numbers = list[Step](), list[Any](), list[Sample](), list[int]()
        for number, one in enumerate(done):
            if all(sample.row.n_left <= 0 for sample in one.samples):
                steps += [Step(sample, None, finish="length") for sample in one.samples]
                continue
            samples += one.samples
            numbers += [number] * len(one.samples)
            states.append(one.state.select(torch.zeros(len(one.samples), dtype=torch.long, device=self.device)))
        if not samples:
            return steps
        if self._live:
            states.insert(0, self._state)
        self._state = _joined(states)
        self._live += samples
        return steps + self._choose(samples, logits[numbers])


def _joined(states: Sequence[Any]) -> Any:
    return reduce(joined, states[1:], states[0])


def _biased(logits: Tensor, samples: Sequence[Sample]) -> Tensor:
    """Return logits (N, V) with what is added for each row."""
    if not any(sample.bias for sample in samples):
        return logits
    logits = logits.clone()
    for row, sample in zip(logits, samples, strict=True):
        if sample.bias:
            ids = torch.tensor(list(sample.bias), device=row.device)
            row[ids] += torch.tensor(list(sample.bias.values()), device=row.device)
    return logits


def likely(logits: Tensor, tokens: Sequence[int], n_top: int) -> Iterator[Likely]:
    """Yield each token, and the `n_top` most probable ids in its place, with log probabilities by the logits (N, V).

    >>> one = next(likely(torch.tensor([[0.5, 0.25, 0.25]]).log(), [1], 1))
    >>> round(one.log_prob, 3), one.top[0][0]
    (-1.386, 0)
    """
    if not tokens:
        return
    log_probs = log_softmax(logits)
    own = log_probs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    values, ids = log_probs.topk(min(n_top, logits.shape[-1]), dim=-1)
    for token, log_prob, top_ids, top_values in zip(tokens, own, ids.tolist(), values.tolist(), strict=True):
        yield Likely(token, log_prob, tuple(zip(top_ids, top_values, strict=True)))
