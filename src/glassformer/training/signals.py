"""Signal handling: Ctrl-C, SIGTERM or the time limit stop a run after a save; a second signal ends it at once.

A run stops after its step. If the step or the evaluation takes longer than `GRACE`, it is abandoned: the weights have
not changed since the last update, so the run is saved in the state before, and resumes with equal bits.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

GRACE = 1.0
"""Seconds after a signal until the current step or evaluation is abandoned."""


class Abandoned(BaseException):
    """Raised in a block of `StopRequest.abandonable` when `GRACE` is over; no handler of `Exception` catches it."""


class StopRequest:
    """A request to stop, set by a signal or by the time limit and read by the loop.

    `abandons`: blocks of `abandonable` may be left; otherwise the loop reads the request after them.
    """

    def __init__(self, deadline: float = float("inf"), *, abandons: bool = False) -> None:
        self.signal: signal.Signals | None = None
        self.deadline, self.abandons = deadline, abandons
        self._is_late = self._is_inside = False

    @contextmanager
    def abandonable(self) -> Iterator[None]:
        """Raise `Abandoned` in the block `GRACE` seconds after a signal.

        An error in the block after a signal has the same effect: Ctrl-C in a terminal also ends processes that the
        block waits for, such as a compiler.
        """
        self._is_inside = self.abandons
        try:
            if self._is_late and self.abandons:
                raise Abandoned
            yield
        except Exception as error:
            if self.signal is None or not self.abandons:
                raise
            raise Abandoned from error
        finally:
            self._is_inside = False

    def grace_is_over(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGALRM."""
        self._is_late = True
        if self._is_inside:
            raise Abandoned

    @property
    def code(self) -> int:
        """0 = continue, 1 = the time limit is reached, else 1 + the signal's number."""
        return 1 + self.signal if self.signal is not None else int(time.monotonic() >= self.deadline)


@contextmanager
def stop_on_signals(deadline: float = float("inf"), *, abandons: bool = False) -> Iterator[StopRequest]:
    """Handle SIGINT and SIGTERM inside the block; outside the main thread, change no signal handler.

    The request is also set when the clock (`time.monotonic`) reaches the deadline. With `abandons`, SIGALRM is used
    after a signal, if the system has it.
    """
    request = StopRequest(deadline, abandons=abandons)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: dict[signal.Signals, Any] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        request.signal = signal.Signals(number)
        for which, handler in before.items():
            signal.signal(which, handler)
        if abandons and hasattr(signal, "SIGALRM"):
            before[signal.SIGALRM] = signal.signal(signal.SIGALRM, request.grace_is_over)
            signal.setitimer(signal.ITIMER_REAL, GRACE)

    for which in (signal.SIGINT, signal.SIGTERM):
        before[which] = signal.signal(which, ask)
    try:
        yield request
    finally:
        if len(before) == 3:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for which, handler in before.items():
            signal.signal(which, handler)
