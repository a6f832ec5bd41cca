"""The engine of generation: it continues the rows of many requests with one model, one step at a time.

`add` takes a request, `step` chooses the next id of each row, and `end` ends a row early. A step has two halves:

1. The model reads the last id of each live row (`_advance`), and the sampler chooses the next one (`_choose`).
2. Prompts that wait are read, and their rows join the others with their first ids (`_read`, `_join`). A row whose
   context has slid is read again in the same way.

Two options change the steps:

- `in_parts`, for a server: prompts are read in parts between the steps of the other rows, so that no row waits long
  (chunked prefill; Agrawal 2023), and what they have in common is read once (`prefixes.py`). Without it, all prompts
  that wait are read together to the end, as in `Generation`.
- `drafted`: the model verifies several ids of each row in one step, in place of both halves. All requests then have the
  same settings, and neither penalties nor scores.

A row has the ids that it has alone, whichever rows join and leave. `Row.extend` is the rule that ends it.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.inference.contexts import Context, n_shared, read_contexts, read_more
from glassformer.inference.decodable import Decodable, joined
from glassformer.inference.drafted import Drafted
from glassformer.inference.prefixes import MIN_SHARED, PrefixCache
from glassformer.inference.rows import Finish, Request, Row, rows_of
from glassformer.inference.sampling import Likely, Sampler, likely
from glassformer.nn.kernels.packed import PackedWeights

PART = 256
"""Number of prompt tokens that are read at once; it limits the memory of their hidden states."""
PART_BETWEEN = 64
"""Number of prompt tokens that are read between two steps of other rows; it limits how long these wait."""

Group = tuple[Sampler, int | None]
"""The rules by which the ids of some rows are chosen together, and the `n_top` of their requests."""


class Step(NamedTuple):
    """A new id of a row; its token is None if the request or its settings allow no new id."""

    row: Row
    token: int | None
    likely: Likely | None = None
    finish: Finish | None = None
    """Set if this is the last id."""


@dataclass(eq=False)
class _Unread:
    """Rows with one context, which is not read to the end."""

    rows: list[Row]
    context: Context
    state: Any = None
    n_read: int = 0
    likely: list[Likely] = field(default_factory=list)

    @property
    def request(self) -> Request:
        return self.rows[0].request

    @property
    def n_left(self) -> int:
        return len(self.context.ids) - self.n_read


class Engine:
    """A model, the rows that it continues, and the prompts that wait.

    Not for several threads: one thread calls all methods.
    """

    def __init__(
        self,
        model: Decodable,
        *,
        max_len: int,
        device: torch.device | str,
        max_rows: int = 32,
        max_bytes: int = 0,
        in_parts: bool = True,
        drafted: Drafted | None = None,
    ) -> None:
        """Keep at most `max_rows` rows at a time, and states after prefixes in `max_bytes`."""
        self.model, self.max_len, self.device, self.max_rows = model, max_len, device, max_rows
        self.in_parts, self.drafted = in_parts, drafted
        self.prefixes = PrefixCache(max_bytes)
        self.n_read = 0
        """Number of prompt tokens that were read in parts since the start."""
        self._packed, self._inference = PackedWeights(), torch.inference_mode()
        self.reset()

    def reset(self) -> None:
        """Drop all rows and prompts, and the state of the model: after an error of the model."""
        self._waiting: deque[_Unread] = deque()
        self._reading: list[_Unread] = []
        self._live: list[Row] = []
        self._groups: dict[Group, list[int]] = {}
        """The numbers of the live rows by their settings; empty if they must be computed again."""
        self._state: Any = None
        """The state after all ids of the live rows but the last, in their order."""
        self._ended: set[Row] = set()
        self._slid: list[Row] = []

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to do."""
        return not (self._live or self._waiting or self._reading)

    @property
    def n_live(self) -> int:
        """Number of rows that are continued or read, and have not ended."""
        rows = [*self._live, *(row for one in self._reading for row in one.rows)]
        return sum(row not in self._ended for row in rows)

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait for a free row."""
        return len(self._waiting)

    def add(self, request: Request) -> list[Row]:
        """Add a request; return its rows, whose ids the next steps give."""
        rows = [*rows_of(request)]
        self.add_rows(rows)
        return rows

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Add some rows of one request, which begin together."""
        self._waiting.append(_unread(rows))

    def end(self, row: Row) -> None:
        """End a row before its next id."""
        self._ended.add(row)

    def step(self) -> list[Step]:
        """Choose the next id of each row, and read all prompts that wait or a part of them."""
        with self._packed, self._inference:
            if self._ended or self._slid:
                self._drop()
            if self.drafted is not None:
                return self._verify(self.drafted)
            steps = self._advance() if self._live else []
            if self._waiting or self._reading:
                steps += self._read()
            return steps

    # Rows that are continued

    def _advance(self) -> list[Step]:
        last = []
        for row in self._live:
            last.append(row.history[-1:])
        logits, self._state = self.model.step(torch.tensor(last, device=self.device), self._state)
        self._groups = self._groups or _groups(self._live)
        return self._choose(self._live, self._groups, logits[:, -1])

    def _choose(self, rows: Sequence[Row], groups: Mapping[Group, Sequence[int]], logits: Tensor) -> list[Step]:
        """Return the next id of each row, after logits (N, V)."""
        steps: list[Any] = [None] * len(rows)
        for (sampler, n_top), numbers in groups.items():
            mine, own = rows, logits.float()
            if len(groups) > 1:
                mine, own = [rows[number] for number in numbers], own[numbers]
            pasts = [row.past for row in mine] if sampler.reads_past else []
            generators = [] if sampler.is_greedy else [row.generator for row in mine]
            tokens = sampler.choose(sampler.shape(_biased(own, mine), pasts), generators)
            scored: Sequence[Likely | None] = [None] * len(mine)
            if n_top is not None:
                scored = [*likely(own, [token or 0 for token in tokens], n_top)]
            for number, row, token, score in zip(numbers, mine, tokens, scored, strict=True):
                steps[number] = self._extended(row, token, score)
        return steps

    def _extended(self, row: Row, token: int | None, score: Likely | None = None) -> Step:
        """Add the next id to a row; note if it has ended, or if its context has slid."""
        begin = row.begin
        row.extend(token)
        if row.finish is not None:
            self._ended.add(row)
        elif row.begin != begin:
            self._slid.append(row)
        return Step(row, token, None if token is None else score, row.finish)

    def _verify(self, drafted: Drafted) -> list[Step]:
        """Return the next ids of each row, by one step that verifies drafts of several ids."""
        self._begin_reading()
        for one in self._reading:
            self._live += one.rows
        self._reading, steps = [], list[Step]()
        new = drafted.next_ids(self._live) if self._live else []
        for row, tokens in zip(self._live, new, strict=True):
            for token in tokens or (None,):
                steps.append(self._extended(row, token))
                if row.finish is not None:
                    break  # what was drafted after the end is not generated
        return steps

    def _drop(self) -> None:
        """Drop the rows that have ended, and let those be read again whose context has slid.

        The state after a row that has ended is kept: the next turn of a conversation may need it.
        """
        if self.drafted is not None:
            self._slid = []  # the reader reads new contexts
        gone, stay = self._ended.union(self._slid), []
        for number, row in enumerate(self._live):
            if row not in gone:
                stay.append(number)
            elif row in self._ended and self._keeps(row.request):
                self.prefixes.add(tuple(row.context[:-1]), self._state.select(self._places([number])))
        if len(stay) < len(self._live):
            if self._state is not None:
                self._state = self._state.select(self._places(stay)) if stay else None
            self._live, self._groups = [self._live[number] for number in stay], {}
        self._reading = [*(_unread([row]) for row in self._slid), *self._reading]
        for unread in [*self._waiting, *self._reading]:
            unread.rows = [row for row in unread.rows if row not in self._ended]
        self._waiting = deque(one for one in self._waiting if one.rows)
        self._reading = [one for one in self._reading if one.rows]
        self._ended.clear()
        self._slid = []

    def _keeps(self, request: Request) -> bool:
        """Return True if states after the ids of a request are kept; a source has too many different ones."""
        return self.prefixes.max_bytes > 0 and not request.source

    def _places(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, device=self.device)

    # Prompts

    def _read(self) -> list[Step]:
        """Read the prompts that wait, or a part; return the first id of each row whose prompt is read."""
        self._begin_reading()
        if self.in_parts:
            return self._read_part()
        rows, contexts = list[Row](), list[Context]()
        for one in self._reading:
            rows += one.rows
            contexts += [one.context] * len(one.rows)
        self._reading = []
        if not rows:
            return []
        longest = max(row.longest - row.begin for row in rows)
        return self._join(rows, *read_contexts(self.model, contexts, min(self.max_len, longest), self.device))

    def _join(self, rows: Sequence[Row], logits: Tensor, state: Any) -> list[Step]:
        """Let rows whose contexts are read join the others; return their next ids."""
        self._state = joined(self._state, state) if self._live else state
        self._live += rows
        self._groups = {}
        return self._choose(rows, _groups(rows), logits)

    def _begin_reading(self) -> None:
        """Let waiting prompts be read, as far as rows are free for them."""
        n_rows = len(self._live) + sum(len(one.rows) for one in self._reading)
        while self._waiting and (n_rows == 0 or n_rows + len(self._waiting[0].rows) <= self.max_rows):
            self._reading.append(self._waiting.popleft())
            n_rows += len(self._reading[-1].rows)

    # Prompts in parts

    def _read_part(self) -> list[Step]:
        """Read a part of the prompts; return the first id of each row whose prompt is read."""
        part = self._part()
        if not part:
            return []
        logits = self._read_next(part)
        self._reading = [one for one in self._reading if one.n_left]
        steps, rows, states, numbers = list[Step](), list[Row](), list[Any](), list[int]()
        for number, one in enumerate(part):
            if one.n_left:
                continue
            if self._keeps(one.request):
                self.prefixes.add(one.context.ids, one.state)
            if all(row.n_left <= 0 for row in one.rows):
                steps += [Step(row, None, finish="length") for row in one.rows]
                continue
            rows += one.rows
            numbers += [number] * len(one.rows)
            states.append(one.state.select(self._places([0] * len(one.rows))))
        return steps + self._join(rows, logits[numbers], reduce(joined, states)) if rows else steps

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
        ids = one.context.ids
        n_known = self.prefixes.n_known(ids)
        return any(n_shared(ids, other.context.ids) - n_known >= MIN_SHARED for other in earlier)

    def _start(self, one: _Unread) -> None:
        """Give a prompt the state after its longest known beginning, unless it has begun."""
        if one.state is not None:
            return
        if self._keeps(one.request) and not one.request.scores_prompt:
            one.n_read, one.state = self.prefixes.find(one.context.ids)
            for row in one.rows:
                row.n_shared = one.n_read
        if one.state is None:
            sources = [torch.tensor([ids], device=self.device) for ids in [one.context.source] if ids]
            one.state = self.model.start(1, self.max_len, *sources)

    def _read_next(self, part: Sequence[_Unread]) -> Tensor:
        """Read the next ids of several prompts; return the logits (N, V) after each."""
        new = [one.context.ids[one.n_read : one.n_read + self._room] for one in part]
        state, first = reduce(joined, [one.state for one in part]), part[0]
        if first.request.scores_prompt:  # it is the only one
            every, state = self.model.step(torch.tensor(new, device=self.device), state)
            after = first.context.ids[first.n_read + 1 :][: len(new[0])]
            first.likely += likely(every[0, : len(after)], after, first.request.n_top or 0)
            for row in first.rows:
                row.prompt = first.likely
            logits = every[:, -1]
        else:
            logits, state = read_more(self.model, new, state, self.device)
        for number, (one, ids) in enumerate(zip(part, new, strict=True)):
            one.n_read += len(ids)
            one.state = state if len(part) == 1 else state.select(self._places([number]))
            self.n_read += len(ids)
        return logits


def _unread(rows: Sequence[Row]) -> _Unread:
    return _Unread([*rows], Context(tuple(rows[0].context), rows[0].request.source))


def _groups(rows: Sequence[Row]) -> dict[Group, list[int]]:
    """Return the numbers of the rows for which ids are chosen together, because they have the same settings."""
    groups: dict[Group, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault((row.request.settings.sampler, row.request.n_top), []).append(number)
    return groups


def _biased(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Return logits (N, V) with what is added for each row."""
    biased = logits
    for number, row in enumerate(rows):
        if row.bias:
            biased = logits.clone() if biased is logits else biased
            ids = torch.tensor(list(row.bias), device=logits.device)
            biased[number, ids] += torch.tensor(list(row.bias.values()), device=logits.device)
    return biased
