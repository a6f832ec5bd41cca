"""Computation of a batch in a way that fits in memory: in parts, and with recomputed blocks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from glassformer.common.errors import is_out_of_memory, warn
from glassformer.models.devices import give_back_memory

R = TypeVar("R")
W = TypeVar("W")


@dataclass(frozen=True)
class Fit:
    """A way to compute the micro-batches of a run so that they fit in memory."""

    n_parts: int = 1
    """Parts of each micro-batch."""
    recomputes: bool = False
    """True if activation checkpointing was switched on because a single row did not fit."""

    def joined(self, other: "Fit") -> "Fit":
        """Return the way that takes at most the memory of both.

        >>> Fit(4, False).joined(Fit(2, True))
        Fit(n_parts=4, recomputes=True)
        """
        return Fit(max(self.n_parts, other.n_parts), self.recomputes or other.recomputes)

    def __str__(self) -> str:
        """Describe the computation for a message."""
        found = []
        if self.recomputes:
            found.append("activation checkpointing is on")
        if self.n_parts > 1:
            found.append(f"each micro-batch is computed in {self.n_parts:,} parts")
        return f"{' and '.join(found)}; the result is the same, up to rounding and the masks of dropout"


WHOLE = Fit()
"""Whole micro-batches, without activation checkpointing."""


def split(items: Sequence[Any], n: int) -> list[Any]:
    """Divide a sequence into `n` parts of nearly equal length, or into single items if it has fewer than `n`.

    >>> split(range(5), 2), split([7, 8], 4)
    ([range(0, 3), range(3, 5)], [[7], [8]])
    """
    n = max(1, min(n, len(items)))
    boundaries = [-(-len(items) * i // n) for i in range(n + 1)]
    return [items[begin:end] for begin, end in pairwise(boundaries)]


def doubled(n: int, most: int) -> Iterator[int]:
    """Yield numbers of parts: n, 2n, 4n, … below `most`, then `most`.

    >>> list(doubled(1, 6)), list(doubled(8, 6))
    ([1, 2, 4, 6], [6])
    """
    while n < most:
        yield n
        n *= 2
    yield most


def fitted(work: Callable[[W], R], ways: Iterable[W]) -> tuple[R, W]:
    """Return `work(way)` and the way, for the first way for which memory is sufficient.

    The memory of a failed attempt is freed before the next one, so `work` must keep no tensor outside of itself.
    """
    *others, last = ways
    for way in others:
        try:
            return work(way), way
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        # Here the error is gone, and with it the references of its traceback to tensors.
        give_back_memory()
    return work(last), last


class InParts:
    """Computation of the batches of one measurement: in parts from the first batch on that does not fit in memory.

    The result of an item must not depend on the other items of its part.
    """

    def __init__(self, *, may_split: bool = True) -> None:
        """Set `may_split` to False if all processes must run the same number of forwards."""
        self.n, self.may_split = 1, may_split

    def __call__(self, items: Sequence[Any], work: Callable[[Any], R]) -> list[R]:
        """Return the results of `work` for consecutive parts of `items`: one part if memory suffices.

        `work` may run again for the same items, so it must change nothing outside of itself.

        >>> InParts()(["a", "b"], "".join)
        ['ab']
        """
        most = len(items) if self.may_split else 1
        found, n = fitted(lambda n: [work(part) for part in split(items, n)], doubled(self.n, most))
        if n > self.n:
            warn(f"a batch did not fit in memory: batches are now computed in {n:,} parts, with the same results")
            self.n = n
        return found

    def each(self, batches: Iterable[Sequence[int]], work: Callable[[Any], Iterable[R]]) -> Iterator[tuple[int, R]]:
        """Yield the number and the result of each item of `batches`; `work` returns one result per item of a part."""
        for batch in batches:
            results = (result for part in self(batch, work) for result in part)
            yield from zip(batch, results, strict=True)
