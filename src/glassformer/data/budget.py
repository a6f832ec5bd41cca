"""Batches by a budget of tokens, alike in length, in an order that is a function of (seed, epoch)."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glassformer.data.batching import Example
from glassformer.data.pair_tokens import PairFile
from glassformer.errors import UserError
from glassformer.seeds import Stream, rng

WIDTH_OF_A_BUCKET = 1.1
"""Keys of a bucket differ by at most this factor."""


class TokenBudget:
    """Every row once an epoch, in batches of at most `batch_tokens` = rows × the longest side, padding included.

    Rows are put into buckets of about equal length, shuffled inside, cut into batches in the order of the buckets, and
    the batches are shuffled. The cut reckons with a bucket's longest key, so it falls on the same places in every
    epoch: all epochs have equally many batches, and the batch of a step is a function of (seed, step).
    """

    def __init__(self, rows: "Rows", batch_tokens: int, seed: int) -> None:
        if not len(rows.lengths):
            raise UserError(f"the {rows.name} hold none that the model can read: raise model.max_len, or give others")
        if (longest := int(rows.lengths.max())) > batch_tokens:
            raise UserError(
                f"the longest of the {rows.name} has {longest:,} tokens and data.batch_tokens is {batch_tokens:,}: "
                "raise it"
            )
        self.rows, self.seed = rows, seed
        self.buckets = _buckets(rows.lengths)
        longest_of = np.zeros(self.buckets.max() + 1, dtype=np.int64)
        np.maximum.at(longest_of, self.buckets, rows.lengths)
        self.cuts = _cuts(longest_of[np.sort(self.buckets)], batch_tokens)
        self.n_steps_per_epoch = len(self.cuts) - 1
        self._latest: tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    def batch(self, step: int) -> list[Example]:
        epoch, place = divmod(step, self.n_steps_per_epoch)
        order, batches = self._order(epoch)
        number = batches[place]
        return self.rows.take(order[self.cuts[number] : self.cuts[number + 1]])

    def _order(self, epoch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Places of the rows, bucket after bucket, and the order of the batches."""
        if self._latest is None or self._latest[0] != epoch:
            draw = rng(self.seed, Stream.BUDGET, epoch)
            order = np.lexsort((draw.random(len(self.buckets)), self.buckets))
            self._latest = epoch, order, draw.permutation(self.n_steps_per_epoch)
        return self._latest[1:]


def evaluation_batches(rows: "Rows", batch_tokens: int) -> Iterator[list[Example]]:
    """Every row once, the shortest first, in batches of at most `batch_tokens`; a longer one goes alone."""
    return (rows.take(np.array(places)) for places in evaluation_places(rows, batch_tokens))


def evaluation_places(rows: "Rows", batch_tokens: int) -> Iterator[list[int]]:
    """The places of the rows of `evaluation_batches`; no batch where there are no rows."""
    if not len(rows.lengths):
        return
    order = np.argsort(rows.lengths, kind="stable")
    cuts = _cuts(rows.lengths[order], max(batch_tokens, int(rows.lengths.max(initial=1))))
    for begin, end in itertools.pairwise(cuts):
        yield order[begin:end].tolist()


def batches_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices of rows, longest first, in batches of at most `max_tokens` positions; at least one row in each.

    >>> list(batches_by_length([2, 5, 3, 4], 10))
    [[1, 3], [2, 0]]
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > max_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


@dataclass(frozen=True, eq=False)
class Rows:
    """What batches are cut from."""

    name: str
    """What messages call it: `training pairs`."""
    lengths: npt.NDArray[np.int64]
    """(n,) tokens that each row takes of the budget."""
    take: Callable[[npt.NDArray[np.int64]], list[Example]]
    """The rows of some places."""


def pair_rows(pairs: PairFile) -> Rows:
    """Pairs by the tokens of their longer side, its end or start token included."""
    lengths = np.maximum(pairs.source_lengths, pairs.target_lengths) + 1
    return Rows(pairs.name, lengths, lambda places: take_pairs(pairs, places))


def take_pairs(pairs: PairFile, places: npt.NDArray[np.int64]) -> list[Example]:
    """Examples of some pairs, `places` among those of the file."""
    source, target = pairs.source, pairs.target
    rows = pairs.rows[places]
    sources = zip(source.document_starts[rows], source.document_lengths[rows], strict=True)
    targets = zip(target.document_starts[rows], target.document_lengths[rows], strict=True)
    return [
        Example(target.ids[t : t + m].astype(np.int64), source_ids=source.ids[s : s + n].astype(np.int64))
        for (s, n), (t, m) in zip(sources, targets, strict=True)
    ]


def example_rows(examples: Sequence[Example], name: str) -> Rows:
    """Examples that are held in memory, by the number of their tokens."""
    lengths = np.array([len(e.token_ids) for e in examples], dtype=np.int64)
    return Rows(name, lengths, lambda places: [examples[place] for place in places])


def _buckets(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bucket of each key: exact lengths while they are short, then ranges that grow with the length.

    >>> _buckets(np.array([3, 4, 4, 30, 31, 40])).tolist()
    [0, 1, 1, 2, 2, 3]
    """
    distinct = np.unique(keys)
    bounds, first = [], int(distinct[0])
    for key in distinct.tolist():
        if key > first * WIDTH_OF_A_BUCKET:
            first = key
        bounds.append(first)
    _, numbers = np.unique(bounds, return_inverse=True)
    return numbers[np.searchsorted(distinct, keys)]


def _cuts(longest: npt.NDArray[np.int64], batch_tokens: int) -> npt.NDArray[np.int64]:
    """Where batches begin along rows of growing length, so that rows × the last one's length is within the budget.

    >>> _cuts(np.array([2, 2, 2, 4, 4]), 6).tolist()
    [0, 3, 4, 5]
    """
    cuts = [0]
    for place, length in enumerate(longest.tolist()):
        if (place - cuts[-1] + 1) * length > batch_tokens:
            cuts.append(place)
    return np.array([*cuts, len(longest)])
