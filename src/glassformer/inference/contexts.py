"""Reading of contexts into a state: long ones in parts, equal ones once, known ones from their first new id."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from glassformer.data.batching import padded
from glassformer.inference.decodable import Decodable, cropped, joined, read_at
from glassformer.inference.rows import Row

Ids = Sequence[int]
SourceBatch = tuple[Tensor, Tensor | None]
"""Source ids (B, S) and their mask (B, S), True = real; `None` instead of the mask if all are real."""
Item = TypeVar("Item", bound=Hashable)

PREFILL = 256
"""Number of context tokens read at once, which limits the memory of their hidden states."""


class Context(NamedTuple):
    """Ids that a model reads before it chooses the next one."""

    ids: tuple[int, ...]
    source: tuple[int, ...] = ()
    """Ids of the source; contexts of other sources are not equal."""


def distinct(items: Iterable[Item]) -> tuple[list[Item], list[int]]:
    """Return the different items in order, and for each item its index among them.

    >>> distinct("abca")
    (['a', 'b', 'c'], [0, 1, 2, 0])
    """
    indices: dict[Item, int] = {}
    of_items = [indices.setdefault(item, len(indices)) for item in items]
    return list(indices), of_items


@torch.inference_mode()
def read_contexts(
    model: Decodable,
    contexts: Sequence[Context],
    max_len: int,
    device: torch.device | str,
) -> tuple[Tensor, Any]:
    """Read contexts with their sources, equal ones once; return the logits (B, V) at the end of each and a new state.

    The state has room for `max_len` tokens per row. Empty contexts have undefined logits.
    """
    different, of_contexts = distinct(contexts)
    if any(context.source for context in different):
        state = model.start(len(different), max_len, *padded([context.source for context in different], device))
    else:
        state = model.start(len(different), max_len)
    logits, state = read_more(model, [context.ids for context in different], state, device)
    if len(different) < len(contexts):
        rows = torch.tensor(of_contexts, device=device)
        logits, state = logits[rows], state.select(rows)
    return logits, state


@torch.inference_mode()
def read_more(model: Decodable, rows: Sequence[Ids], state: Any, device: torch.device | str) -> tuple[Tensor, Any]:
    """Read ids of every row of a state, in parts; return logits (B, V) at the end of each row and the state.

    Rows may be empty, and then have undefined logits.
    """
    last = torch.empty(len(rows), 0, device=device)
    if not any(rows):
        return last, state
    token_ids, mask = padded(rows, device)
    lengths, longest = torch.tensor([len(ids) for ids in rows], device=device), token_ids.shape[1]
    for begin in range(0, longest, PREFILL):
        end = min(begin + PREFILL, longest)
        at = (lengths - 1 - begin).clamp(0, end - begin - 1)
        part_mask = mask[:, begin:end] if mask is not None else None
        logits, state = read_at(model, token_ids[:, begin:end], state, part_mask, at)
        if begin > 0:
            ends_here = (lengths > begin) & (lengths <= end)
            logits = torch.where(ends_here[:, None], logits, last)
        last = logits
    return last, state


class Reader:
    """A model, and its state after the ids that it has read of each row.

    The state of a row depends only on its source and its ids. So `read` keeps the part of the state in which the old
    ids and the new ones agree, cuts the rest, and reads only the new ids after it.
    """

    def __init__(self, model: Decodable, max_len: int, device: torch.device | str) -> None:
        self.model, self.max_len, self.device = model, max_len, device
        self._state: Any = None
        self._ids: dict[Row, Ids] = {}
        """The ids of each row of the state, in its order."""

    @torch.inference_mode()
    def read(self, rows: Mapping[Row, Ids], n_last: Sequence[int]) -> Tensor:
        """Return the logits (Σ n, V) at the last n = `n_last[i]` ids of each row; those of the first row come first.

        Rows of the last call that are missing are dropped; new rows come after the others. Raises `UserError` if the
        state of the model cannot be cropped.
        """
        # The rows of the state become those of the call
        begins = [len(ids) - n for ids, n in zip(rows.values(), n_last, strict=True)]
        stay = [number for number, row in enumerate(self._ids) if row in rows]
        if 0 < len(stay) < len(self._ids):
            self._state = self._state.select(torch.tensor(stay, device=self.device))
        self._ids = {row: ids for row, ids in self._ids.items() if row in rows}
        contexts = [
            Context(tuple(ids[:begin]), row.request.source)
            for (row, ids), begin in zip(rows.items(), begins, strict=True)
        ]
        new = contexts[len(self._ids) :]
        if new:
            _, state = read_contexts(self.model, new, self.max_len, self.device)
            self._state = joined(self._state, state) if self._ids else state

        # Keep what both have read, and read what comes before the last ids
        read = [*self._ids.values(), *(context.ids for context in new)]
        shared = [min(n_shared(old, ids), begin) for old, ids, begin in zip(read, rows.values(), begins, strict=True)]
        self._state = cropped(self._state, shared)
        before = [ids[n:begin] for ids, n, begin in zip(rows.values(), shared, begins, strict=True)]
        _, self._state = read_more(self.model, before, self._state, self.device)

        # Read the last ids, with their logits
        last = [ids[begin:] for ids, begin in zip(rows.values(), begins, strict=True)]
        token_ids, mask = padded(last, self.device)
        logits, self._state = self.model.step(token_ids, self._state, mask)
        self._ids = dict(rows)
        return logits.flatten(0, 1) if mask is None else logits[mask]

    def continue_with(self, row: Row) -> None:
        """Let a new row continue from the state of the only row that was read: the next turn of a conversation."""
        self._ids = dict(zip([row], self._ids.values(), strict=False))


def n_shared(a: Ids, b: Ids) -> int:
    """Return the length of the common beginning of two sequences.

    >>> n_shared([1, 2, 3], [1, 2, 4, 5])
    2
    """
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
