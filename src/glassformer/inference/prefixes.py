"""States after prefixes: what several prompts, or the turns of a conversation, have in common is read once."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from glassformer.inference.contexts import Context, n_shared
from glassformer.inference.decodable import Croppable, cropped

MIN_SHARED = 16
"""Fewest shared ids for which a state is copied; fewer are read again in about the same time."""


class PrefixCache:
    """The states after the latest contexts, of one row each, in at most `max_bytes`; the oldest ones are dropped.

    A state must not change after it is added, except beyond its tokens.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.n_bytes = max_bytes, 0
        self.n_shared_ids = 0
        """Number of ids that were found here, and not read, since the start."""
        self._states: OrderedDict[Context, tuple[Any, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def add(self, context: Context, state: Any) -> None:
        """Keep the state after a context; drop states after the beginnings of it, which it replaces."""
        n_bytes = sum(x.untyped_storage().nbytes() for x in tensors_of(state))
        for other in [other for other in self._states if other == context or self._replaces(context, state, other)]:
            self._drop(other)
        if n_bytes > self.max_bytes:
            return
        self._states[context] = state, n_bytes
        self.n_bytes += n_bytes
        while self.n_bytes > self.max_bytes:
            self._drop(next(iter(self._states)))

    def find(self, context: Context) -> tuple[int, Any]:
        """Return the length of the longest known beginning of a context, and a copy of the state after it.

        At least the last id of the context is left to read. The length is 0, and the state None, for fewer than
        `MIN_SHARED` ids.
        """
        best, longest = None, MIN_SHARED - 1
        for other, (state, _) in self._states.items():
            if other.source != context.source:
                continue
            n = min(n_shared(other.ids, context.ids), len(context.ids) - 1)
            if n > longest and (n == len(other.ids) or isinstance(state, Croppable)):
                best, longest = other, n
        if best is None:
            return 0, None
        self._states.move_to_end(best)
        self.n_shared_ids += longest
        state, _ = self._states[best]
        if longest < len(best.ids):
            state = cropped(state, [longest])
        return longest, state.select(torch.tensor([0], device=state.lengths.device))

    def _replaces(self, context: Context, state: Any, other: Context) -> bool:
        is_beginning = other.source == context.source and context.ids[: len(other.ids)] == other.ids
        return is_beginning and isinstance(state, Croppable)

    def _drop(self, context: Context) -> None:
        _, n_bytes = self._states.pop(context)
        self.n_bytes -= n_bytes


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
