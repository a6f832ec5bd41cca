"""States after prefixes: what several prompts, or the turns of a conversation, have in common is read once."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from glassformer.common.errors import UserError
from glassformer.inference.contexts import n_shared
from glassformer.inference.decodable import cropped

MIN_SHARED = 16
"""Fewest shared ids for which a state is copied; fewer are read again in about the same time."""

Prefix = tuple[int, ...]


class PrefixCache:
    """The states after the latest prefixes, of one row each, in at most `max_bytes`; the oldest ones are dropped.

    A state must not change after it is added, except beyond its tokens. A state that cannot forget tokens is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.n_bytes = max_bytes, 0
        self.n_shared_ids = 0
        """Number of ids that were found here, and not read, since the start."""
        self._states: OrderedDict[Prefix, tuple[Any, int]] = OrderedDict()
        """States with their sizes; the one that was not used for the longest time comes first."""
        self._sorted: list[Prefix] = []
        """All prefixes in their order as tuples: the one that has most in common with others is next to them."""

    def __len__(self) -> int:
        return len(self._states)

    def add(self, prefix: Prefix, state: Any) -> None:
        """Keep the state after a prefix, in place of the states after beginnings of it.

        Nothing is added if the state after a longer prefix is here.
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
        """Return the number of first ids that need not be read: 0 if there are fewer than `MIN_SHARED`.

        At least the last id is left to read.
        """
        return self._best(ids)[0]

    def find(self, ids: Prefix) -> tuple[int, Any]:
        """Return `n_known`, and a copy of the state after these ids, or None."""
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
