"""Reading of contexts into a model's state: long contexts in parts, and equal contexts once."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from glassformer.data.batching import padded
from glassformer.inference.decodable import Decodable, read_at

Ids = Sequence[int]
SourceBatch = tuple[Tensor, Tensor | None]
"""Source ids (B, S) and their mask (B, S), True = real; `None` instead of the mask if all are real."""
Item = TypeVar("Item", bound=Hashable)

PREFILL = 256
"""Number of context tokens that are read at once; it limits the memory of the hidden states."""


class Context(NamedTuple):
    """Ids that a model reads before it chooses the next one."""

    ids: tuple[int, ...]
    source: tuple[int, ...] = ()
    """Ids of the source. Equal contexts also have equal sources."""


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
    """Read more ids for each row of a state, in parts; return logits (B, V) at the end of each row and the new state.

    The logits of an empty row are undefined.
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


def n_shared(a: Ids, b: Ids) -> int:
    """Return the length of the common beginning of two sequences.

    >>> n_shared([1, 2, 3], [1, 2, 4, 5])
    2
    """
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
