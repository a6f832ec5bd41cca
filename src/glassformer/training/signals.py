"""Signal handling: Ctrl-C, SIGTERM or the time limit stop a run after its step; a second signal ends it at once."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

LATE = 1.25
"""Seconds after a signal until a run that has not stopped prints when it will."""

_HANDLED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))
"""SIGBREAK exists on Windows only, where one process can send no other signal to another."""


class StopRequest:
    """A request to stop, set by a signal or by the time limit, and read by the loop after each step."""

    def __init__(self, deadline: float = float("inf")) -> None:
        self.signal: signal.Signals | None = None
        self.deadline = deadline

    @property
    def code(self) -> int:
        """0 = continue, 1 = the time limit is reached, else 1 + the signal's number."""
        return int(time.monotonic() >= self.deadline) if self.signal is None else 1 + self.signal


@contextmanager
def stop_on_signals(
    deadline: float = float("inf"), tell_late: Callable[[signal.Signals], None] = lambda which: None
) -> Iterator[StopRequest]:
    """Handle SIGINT, SIGTERM and SIGBREAK inside the block; outside the main thread, change no signal handler.

    The request is also set when the clock (`time.monotonic`) reaches the deadline. `tell_late` is called in another
    thread if the block has not ended `LATE` seconds after a signal.
    """
    request = StopRequest(deadline)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: dict[signal.Signals, Any] = {}
    timers: list[threading.Timer] = []

    def ask(number: int, frame: FrameType | None) -> None:
        request.signal = signal.Signals(number)
        for which, handler in before.items():
            signal.signal(which, handler)
        timers.append(threading.Timer(LATE, tell_late, [request.signal]))
        timers[-1].daemon = True
        timers[-1].start()

    for which in _HANDLED:
        before[which] = signal.signal(which, ask)
    try:
        yield request
    finally:
        for timer in timers:
            timer.cancel()
        for which, handler in before.items():
            signal.signal(which, handler)
