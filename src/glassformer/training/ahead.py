"""Preparation of the next step's batches in a thread, while the device computes."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Maker of numbered items; after `take` has returned an item, a thread makes the next item.

    An item must depend only on its number. So items are the same as without the thread, in every order. An item that
    does not follow the last one, as after a rollback, is made in `take`. Two items are never made at the same time. An
    error of the thread is raised by the `take` of its item.

    >>> squares = Ahead(lambda number: number**2, end=9)
    >>> squares.take(3), squares.take(4), squares.take(2)
    (9, 16, 4)
    >>> squares.close()
    """

    def __init__(self, make: Callable[[int], T], end: int) -> None:
        """Set the function that makes an item, and the number from which there is no item."""
        self.make, self.end = make, end
        self._next: tuple[int, Future[T]] | None = None

    def take(self, number: int) -> T:
        """Return an item, and begin to make the next item."""
        if self._next is not None and self._next[0] == number:
            item = self._next[1].result()
        else:
            self.close()
            item = self.make(number)
        self._next = None
        if number + 1 < self.end:
            self._next = (number + 1, self._begin(number + 1))
        return item

    def close(self) -> None:
        """Wait for an item that the thread is making, because the thread reads and writes files of the run.

        This takes the time of one batch; with BPE-dropout, the first batch of an epoch encodes the text again. A second
        Ctrl-C ends the process at once, because Python does not wait for daemon threads.
        """
        if self._next is not None:
            wait([self._next[1]])
        self._next = None

    def _begin(self, number: int) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(self.make(number))
            except BaseException as error:
                future.set_exception(error)

        Thread(target=work, name="batches", daemon=True).start()
        return future
