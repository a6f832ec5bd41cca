"""The engine of generation: it continues the rows of many requests with one model, one step at a time.

`add` takes a request, `step` chooses the next id of each row, and `end` ends a row early. A step has two halves:

1. The model reads the last id of each live row (`_advance`), and the sampler chooses the next one (`_choose`).
2. Prompts that wait are read together, and their rows join the others with their first ids (`_read`, `_join`). A row
   whose context has slid is read again in the same way.

A row gets the same ids as alone, whichever other rows join and leave. `Row.extend` is the rule that ends a row.

All requests have the same settings. Two subclasses have other steps. A `ServerEngine` continues requests with different
settings, and reads prompts in parts between the steps of other rows. A `DraftEngine` verifies several ids of a row in
one step.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.inference.contexts import Context, read_contexts
from glassformer.inference.decodable import Decodable, joined
from glassformer.inference.rows import Finish, Likely, Request, Row, rows_of
from glassformer.nn.kernels.linear import PackedWeights


class Step(NamedTuple):
    """The result of a step for one row: the new id, `token`, or None if the request or its settings allow no id."""

    row: Row
    token: int | None
    likely: Likely | None = None
    finish: Finish | None = None
    """Why the row has ended, if this is its last step."""


@dataclass(eq=False)
class Unread:
    """Rows with a common context that is not yet read to its end."""

    rows: list[Row]
    context: Context
    state: Any = None
    """The state after the first `n_read` ids, in a `ServerEngine`."""
    n_read: int = 0
    likely: list[Likely] = field(default_factory=list)
    """The ids that were read, with log probabilities, if the request asks for them (`scores_prompt`)."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Unread":
        return cls([*rows], Context(tuple(rows[0].context), rows[0].request.source))

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

    refill = 1 / 4
    """Fraction of `max_rows` that must be free before new rows join. To read prompts takes as long as a step or longer,
    because it also multiplies by all weights once. A smaller fraction means that prompts are read more often; a larger
    fraction means that more of the batch stays free."""

    def __init__(self, model: Decodable, *, max_len: int, device: torch.device | str, max_rows: int = 32) -> None:
        self.model, self.max_len, self.device, self.max_rows = model, max_len, device, max_rows
        self._packed, self._inference = PackedWeights(), torch.inference_mode()
        self.reset()

    def reset(self) -> None:
        """Drop all rows and prompts, and the state of the model, for example after an error of the model."""
        self._waiting: deque[Unread] = deque()
        self._reading: list[Unread] = []
        self._live: list[Row] = []
        self._state: Any = None
        """The state of the live rows, in the order of `_live`, after all ids of each row but the last."""
        self._ended: set[Row] = set()
        self._slid: list[Row] = []

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to do."""
        return not (self._live or self._waiting or self._reading)

    def add(self, request: Request) -> list[Row]:
        """Add a request; return its rows. The next steps choose their ids."""
        rows = [*rows_of(request)]
        self.add_rows(rows)
        return rows

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Add some rows of one request, which begin together."""
        self._waiting.append(Unread.of(rows))

    def end(self, row: Row) -> None:
        """End a row before its next id."""
        self._ended.add(row)

    def step(self) -> list[Step]:
        """Choose the next id of each row, and read prompts that wait."""
        with self._packed, self._inference:
            if self._ended or self._slid:
                self._drop()
            steps = self._advance() if self._live else []
            if self._waiting or self._reading:
                self._begin_reading()
                steps += self._read()
            return steps

    def _drop(self) -> None:
        """Drop the rows that have ended, and queue the rows whose context has slid, to read them again."""
        gone, n_before = self._ended.union(self._slid), len(self._live)
        stay = [number for number, row in enumerate(self._live) if row not in gone]
        if len(stay) < n_before:
            if self._state is not None:
                self._state = self._state.select(self._places(stay)) if stay else None
            self._live = [self._live[number] for number in stay]
        self._reading = [*(Unread.of([row]) for row in self._slid), *self._reading]
        for unread in [*self._waiting, *self._reading]:
            unread.rows = [row for row in unread.rows if row not in self._ended]
        self._waiting = deque(one for one in self._waiting if one.rows)
        self._reading = [one for one in self._reading if one.rows]
        self._ended.clear()
        self._slid = []

    def _places(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, device=self.device)

    # Rows that are continued

    def _advance(self) -> list[Step]:
        """Read the last id of each live row, and choose the next one."""
        last = []
        for row in self._live:
            last.append(row.history[-1:])
        logits, self._state = self.model.step(torch.tensor(last, device=self.device), self._state)  # (N, 1, V)
        return self._choose(self._live, logits[:, -1])

    def _choose(self, rows: Sequence[Row], logits: Tensor) -> list[Step]:
        """Return the next id of each row, chosen from logits (N, V)."""
        steps = []
        for row, token in zip(rows, self._tokens(rows, logits.float()), strict=True):
            steps.append(self._extended(row, token))
        return steps

    def _tokens(self, rows: Sequence[Row], logits: Tensor) -> list[int | None]:
        """Return the next id of each row, or None if no id is allowed; all rows have the same settings."""
        sampler = rows[0].request.settings.sampler
        pasts = [row.past for row in rows] if sampler.reads_past else []
        generators = [] if sampler.is_greedy else [row.generator for row in rows]
        return sampler.choose(sampler.shape(logits, pasts), generators)

    def _extended(self, row: Row, token: int | None, score: Likely | None = None) -> Step:
        """Add the next id to a row; note if the row has ended, or if its context has slid."""
        begin = row.begin
        row.extend(token)
        if row.finish is not None:
            self._ended.add(row)
        elif row.begin != begin:
            self._slid.append(row)
        return Step(row, token, None if token is None else score, row.finish)

    # Prompts

    def _begin_reading(self) -> None:
        """Move waiting prompts to the prompts that are read, as long as rows are free for them."""
        n_rows = len(self._live) + sum(len(one.rows) for one in self._reading)
        if self.max_rows - n_rows < self.refill * self.max_rows:
            return
        while self._waiting and (n_rows == 0 or n_rows + len(self._waiting[0].rows) <= self.max_rows):
            self._reading.append(self._waiting.popleft())
            n_rows += len(self._reading[-1].rows)

    def _read(self) -> list[Step]:
        """Read prompts to the end, equal ones once; return the first id of each row."""
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
        """Let rows whose contexts are read join the others; return the next ids of these rows, from logits (N, V)."""
        self._state = joined(self._state, state) if self._live else state
        self._live = [*self._live, *rows]
        return self._choose(rows, logits)
