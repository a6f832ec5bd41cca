"""Rules that change the scores of the next id, given the earlier ids, in sampling, greedy and beam search.

They apply in the order of transformers (`GenerationMixin._get_logits_processor`): the repetition penalty, repeated
n-grams, the minimum length. Temperature, top-k, top-p and min-p follow (`sampling`). As in transformers, the earlier
ids of a language model are the prompt and the new ids. Those of an encoder-decoder are the ids of the decoder.
"""

import itertools
import math
import struct
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassformer.common.errors import UserError
from glassformer.config.run import BeamConfig, GenerationConfig


class Past(NamedTuple):
    """The ids before the next one."""

    ids: Sequence[int]
    """All earlier ids: first the prompt of a language model or the start id of a decoder, then the new ids."""
    n_prompt: int
    """Number of ids at the beginning of `ids` that are not new."""


def require_end(config: GenerationConfig | BeamConfig) -> None:
    """Raise `UserError` for a minimum of new tokens above the maximum."""
    if config.min_new_tokens > config.max_new_tokens:
        raise UserError(
            f"min_new_tokens is {config.min_new_tokens} and max_new_tokens is {config.max_new_tokens}: lower the "
            "first, or raise the second"
        )


def penalise_repetition(scores: Tensor, penalty: float) -> Tensor:
    """Divide positive scores of earlier tokens by the penalty, and multiply negative ones (Keskar 2019, section 4.1).

    >>> penalise_repetition(torch.tensor([2.0, -2.0]), 2.0)
    tensor([ 1., -4.])
    """
    return torch.where(scores > 0, scores / penalty, scores * penalty)


def repeating_ids(ids: Sequence[int], size: int) -> list[int]:
    """Return each next id with which an n-gram of `size` ids in `ids` would occur again (Paulus 2018, section 2.5).

    `Sequence.index` finds the earlier occurrences of the last id, so the cost is O(len(ids)).

    >>> repeating_ids([1, 2, 3, 1, 2, 4, 1, 2], 3), repeating_ids([7, 8], 1)
    ([3, 4], [7, 8])
    """
    n_before, last = size - 1, len(ids) - 1
    if not n_before:
        return list(ids)
    found, before, at = list[int](), ids[-n_before:], n_before - 1
    with suppress(ValueError):  # no later occurrence
        while True:
            at = ids.index(ids[-1], at, last) + 1
            if ids[at - n_before : at] == before:
                found.append(ids[at])
    return found


class Constraints:
    """The rules of a generation or a search."""

    def __init__(
        self,
        config: GenerationConfig | BeamConfig,
        suppress_ids: Sequence[int],
        ends: Collection[int],
        device: torch.device | str,
    ) -> None:
        """Set the rules of `config`, the ids that are never chosen (`suppress_ids`), and the ids that end a row."""
        self.penalty, self.size = config.repetition_penalty, config.no_repeat_ngram_size
        self.min_new = config.min_new_tokens
        self.ends = tuple(ends)
        self._suppressed = None
        if len(suppress_ids):
            self._suppressed = torch.tensor(list(suppress_ids), dtype=torch.long, device=device)
        self.may_exclude_all = self.size > 0 or self.min_new > 0
        """True if the rules may exclude all ids after some earlier ids."""
        self.read_past = self.penalty != 1 or self.may_exclude_all
        """True if a rule depends on the earlier ids. If not, a caller may leave out the pasts."""

    def penalise_(self, scores: Tensor, pasts: Sequence[Past]) -> Tensor:
        """Apply the repetition penalty to contiguous `scores` (N, V) in place, row i after `pasts[i]`; return them."""
        if self.penalty != 1:
            seen, flat = _places([past.ids for past in pasts], scores), scores.view(-1)
            flat.scatter_(0, seen, penalise_repetition(flat.gather(0, seen), self.penalty))
        return scores

    def exclude_(self, scores: Tensor, pasts: Sequence[Past]) -> Tensor:
        """Set the scores of ids that may not follow `pasts[i]` to -inf in row i of contiguous `scores` (N, V)."""
        if self._suppressed is not None:
            scores.index_fill_(-1, self._suppressed, -math.inf)
        if self.may_exclude_all:
            scores.view(-1)[_places([self._excluded(past) for past in pasts], scores)] = -math.inf
        return scores

    def _excluded(self, past: Past) -> list[int]:
        excluded = repeating_ids(past.ids, self.size) if self.size else []
        if len(past.ids) - past.n_prompt < self.min_new:
            excluded += self.ends
        return excluded


def _places(ids: Sequence[Sequence[int]], scores: Tensor) -> Tensor:
    """Return the indices of the ids `ids[i]` of each row i in the flat scores (N · V).

    Repeated ids stay, and ids outside of the vocabulary are left out. `struct` converts lists of ids several times as
    fast as tensors do.
    """
    lengths, n_ids = np.array([len(of_row) for of_row in ids], np.int64), scores.shape[1]
    packed = struct.pack(f"{lengths.sum()}q", *itertools.chain.from_iterable(ids))
    columns = np.frombuffer(packed, np.int64)
    places = columns + np.repeat(np.arange(0, len(ids) * n_ids, n_ids), lengths)
    return torch.from_numpy(places[(columns >= 0) & (columns < n_ids)]).to(scores.device)
