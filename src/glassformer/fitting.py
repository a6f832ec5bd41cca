"""Computation of a batch in parts that fit in memory, after an out-of-memory error."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from glassformer.devices import give_back_memory
from glassformer.errors import is_out_of_memory, warn

R = TypeVar("R")


def split(items: Sequence[Any], n: int) -> list[Any]:
    """Cut a sequence into `n` parts of nearly equal length, or into single items if it has fewer than `n`.

    >>> split(range(5), 2), split([7, 8], 4)
    ([range(0, 3), range(3, 5)], [[7], [8]])
    """
    n = max(1, min(n, len(items)))
    cuts = [-(-len(items) * i // n) for i in range(n + 1)]
    return [items[begin:end] for begin, end in pairwise(cuts)]


def fitted(work: Callable[[int], R], n: int, most: int) -> tuple[R, int]:
    """Return `work(n)` and n, the number of parts; n doubles, up to `most`, each time that memory is not sufficient.

    The memory of a failed attempt is freed before the next one, so `work` must keep no tensor outside of itself.
    """
    while True:
        try:
            return work(n), n
        except (MemoryError, RuntimeError) as error:
            if n >= most or not is_out_of_memory(error):
                raise
        # Here the error is gone, and with it the references of its traceback to tensors.
        give_back_memory()
        n = min(2 * n, most)


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
        found, n = fitted(lambda n: [work(part) for part in split(items, n)], self.n, most)
        if n > self.n:
            warn(f"a batch did not fit in memory: batches are now computed in {n:,} parts, with the same results")
            self.n = n
        return found
