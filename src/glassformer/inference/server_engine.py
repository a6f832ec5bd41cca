"""The engine of a server: it reads prompts in parts, and reads the common beginning of several prompts once.

Requests have their own settings, penalties and scores.

A long prompt is read between the steps of the other rows, so that no row waits long (chunked prefill; Agrawal 2023).
The state after a prompt, and after a row that has ended, is kept for prompts that begin with the same ids. So the next
turn of a conversation reads only new ids.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from glassformer.common.errors import UserError
from glassformer.inference.contexts import PREFILL, n_shared, read_more
from glassformer.inference.decodable import Decodable, cropped, joined
from glassformer.inference.engine import Engine, Step, Unread
from glassformer.inference.rows import Likely, Request, Row
from glassformer.inference.sampling import Sampler, log_softmax

PART_BETWEEN = 64
"""Number of prompt tokens that are read between two steps of other rows; it limits how long these rows wait."""
MIN_SHARED = 16
"""Smallest number of shared ids for which a state is copied. To read fewer ids takes about as long as the copy."""

Prefix = tuple[int, ...]
Group = tuple[Sampler, int | None]
"""The sampler and the `n_top` of some requests. The ids of rows with the same group are chosen together."""


class ServerEngine(Engine):
    """An engine that reads prompts in parts between the steps of other rows, and keeps states after prefixes."""

    refill = 0
    """A prompt joins as soon as a row is free."""

    def __init__(
        self, model: Decodable, *, max_len: int, device: torch.device | str, max_rows: int = 32, max_bytes: int = 0
    ) -> None:
        """Continue at most `max_rows` rows at a time, and keep states after prefixes in at most `max_bytes`."""
        super().__init__(model, max_len=max_len, device=device, max_rows=max_rows)
        self.prefixes = PrefixCache(max_bytes)
        self.n_read = 0
        """Number of prompt tokens that were read since the start."""

    def reset(self) -> None:
        super().reset()
        self._grouped: Sequence[Row] = ()
        self._groups: dict[Group, list[int]] = {}
        """The numbers of the rows in `_grouped`, by group."""

    def _choose(self, rows: Sequence[Row], logits: Tensor) -> list[Step]:
        """Return the next id of each row, from logits (N, V), with log probabilities if the request asks for them."""
        if rows is not self._grouped:
            self._grouped, self._groups = rows, _groups(rows)
        steps: list[Any] = [None] * len(rows)
        for (_, n_top), numbers in self._groups.items():
            mine, own = rows, logits.float()
            if len(self._groups) > 1:
                mine, own = [rows[number] for number in numbers], own[numbers]
            tokens = self._tokens(mine, _biased(own, mine))
            scored: Sequence[Likely | None] = [None] * len(mine)
            if n_top is not None:
                scored = [*likely(own, [token or 0 for token in tokens], n_top)]
            for number, row, token, score in zip(numbers, mine, tokens, scored, strict=True):
                steps[number] = self._extended(row, token, score)
        return steps

    def _drop(self) -> None:
        """Drop rows, but keep the states of rows that have ended: the next turn of a conversation may need them."""
        for number, row in enumerate(self._live):
            if row in self._ended and self._keeps(row.request):
                self.prefixes.add(tuple(row.context[:-1]), self._state.select(self._places([number])))
        super()._drop()

    def _keeps(self, request: Request) -> bool:
        """Return True if the states of a request are kept. With a source they are not: most sources occur once."""
        return self.prefixes.max_bytes > 0 and not request.source

    def _read(self) -> list[Step]:
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

    def _part(self) -> list[Unread]:
        """Return the prompts whose next ids are read now, the oldest first."""
        part: list[Unread] = []
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
        """Largest number of prompt tokens that this step reads."""
        return PART_BETWEEN if self._live else PREFILL

    def _waits(self, one: Unread, earlier: Sequence[Unread]) -> bool:
        """Return True if a prompt must wait for one of the `earlier` prompts, because both begin with the same ids.

        The earlier prompt is read first. Then its state is kept, and the waiting prompt does not read these ids again.
        """
        if not earlier or not self._keeps(one.request) or one.request.scores_prompt:
            return False
        ids = one.context.ids
        n_known = self.prefixes.n_known(ids)
        return any(n_shared(ids, other.context.ids) - n_known >= MIN_SHARED for other in earlier)

    def _start(self, one: Unread) -> None:
        """Give a prompt its first state: a copy of a kept state after its first ids, or a new state.

        Do nothing if the prompt has a state already.
        """
        if one.state is not None:
            return
        if self._keeps(one.request) and not one.request.scores_prompt:
            one.n_read, one.state = self.prefixes.find(one.context.ids)
            for row in one.rows:
                row.n_shared = one.n_read
        if one.state is None:
            sources = [torch.tensor([ids], device=self.device) for ids in [one.context.source] if ids]
            one.state = self.model.start(1, self.max_len, *sources)

    def _read_next(self, part: Sequence[Unread]) -> Tensor:
        """Read the next ids of several prompts; return the logits (N, V) at the end of each prompt's ids."""
        new = [one.context.ids[one.n_read : one.n_read + self._room] for one in part]
        state, first = reduce(joined, [one.state for one in part]), part[0]
        if first.request.scores_prompt:  # it is the only prompt of this part
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


def _groups(rows: Sequence[Row]) -> dict[Group, list[int]]:
    """Return the numbers of the rows whose ids are chosen together, because these rows have the same settings."""
    groups: dict[Group, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault((row.request.settings.sampler, row.request.n_top), []).append(number)
    return groups


def _biased(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Return logits (N, V) to which the `bias` of each row is added."""
    biased = logits
    for number, row in enumerate(rows):
        if row.bias:
            biased = logits.clone() if biased is logits else biased
            ids = torch.tensor(list(row.bias), device=logits.device)
            biased[number, ids] += torch.tensor(list(row.bias.values()), device=logits.device)
    return biased


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


class PrefixCache:
    """The model's states after the latest prefixes (the first ids of prompts), of one row each, in at most `max_bytes`.

    The states that were not used for the longest time are dropped first. After a state is added, a caller may add
    tokens to it, but not change its tokens. A state that cannot forget tokens is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.n_bytes = max_bytes, 0
        self.n_shared_ids = 0
        """Number of prompt ids since the start that the model did not read, because their state was kept here."""
        self._states: OrderedDict[Prefix, tuple[Any, int]] = OrderedDict()
        """State of each prefix, and its size in bytes. The state that was not used for the longest time comes first."""
        self._sorted: list[Prefix] = []
        """All prefixes, sorted: the prefix that shares most first ids with a prompt is next to the prompt's place."""

    def __len__(self) -> int:
        return len(self._states)

    def add(self, prefix: Prefix, state: Any) -> None:
        """Keep the state after a prefix, and drop the states after shorter prefixes with which it begins.

        Nothing is added if a state is here already after a longer prefix that begins with this one.
        """
        n_bytes = sum(x.untyped_storage().nbytes() for x in tensors_of(state))
        if n_bytes > self.max_bytes or not _can_forget(state, len(prefix)):
            return
        at = bisect_left(self._sorted, prefix)
        if at < len(self._sorted) and self._sorted[at][: len(prefix)] == prefix:
            self._states.move_to_end(self._sorted[at])
            return
        while at > 0 and prefix[: len(self._sorted[at - 1])] == self._sorted[at - 1]:
            at -= 1
            self._drop(self._sorted[at])
        insort(self._sorted, prefix)
        self._states[prefix] = state, n_bytes
        self.n_bytes += n_bytes
        while self.n_bytes > self.max_bytes:
            self._drop(next(iter(self._states)))

    def n_known(self, ids: Prefix) -> int:
        """Return the number of first ids that need not be read: 0 if they are fewer than `MIN_SHARED`.

        The last id must always be read.
        """
        return self._best(ids)[0]

    def find(self, ids: Prefix) -> tuple[int, Any]:
        """Return the number `n_known`, and a copy of the state after these first ids, or None if the number is 0."""
        n, best = self._best(ids)
        if not n:
            return 0, None
        self._states.move_to_end(best)
        self.n_shared_ids += n
        state = cropped(self._states[best][0], [n])
        return n, state.select(torch.tensor([0], device=state.lengths.device))

    def _best(self, ids: Prefix) -> tuple[int, Prefix]:
        at = bisect_left(self._sorted, ids)
        near = self._sorted[max(0, at - 1) : at + 1]
        n, best = max(((n_shared(prefix, ids), prefix) for prefix in near), default=(0, ()))
        n = min(n, len(ids) - 1)
        return (n, best) if n >= MIN_SHARED else (0, ())

    def _drop(self, prefix: Prefix) -> None:
        _, n_bytes = self._states.pop(prefix)
        self.n_bytes -= n_bytes
        del self._sorted[bisect_left(self._sorted, prefix)]


def _can_forget(state: Any, n_tokens: int) -> bool:
    try:
        cropped(state, [n_tokens])
    except (UserError, ValueError):  # ValueError: a cache without slots
        return False
    return True


def tensors_of(state: Any) -> Iterator[Tensor]:
    """Yield the tensors of a state: in dataclasses, sequences and mappings.

    >>> [len(x) for x in tensors_of({"a": (torch.zeros(2), [torch.zeros(3)]), "b": None})]
    [2, 3]
    """
    if isinstance(state, Tensor):
        yield state
    elif is_dataclass(state):
        for field in fields(state):
            yield from tensors_of(getattr(state, field.name))
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from tensors_of(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from tensors_of(value)
