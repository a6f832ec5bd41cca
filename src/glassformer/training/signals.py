"""Signal handling: Ctrl-C, SIGTERM or the time limit stop a run after a save; a second signal ends it at once."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequest:
    """A request to stop, set by a signal or by the time limit and read by the loop."""

    def __init__(self, deadline: float = float("inf")) -> None:
        self.signal: signal.Signals | None = None
        self.deadline = deadline

    @property
    def code(self) -> int:
        """0 = continue, 1 = the time limit is reached, else 1 + the signal's number."""
        return 1 + self.signal if self.signal is not None else int(time.monotonic() >= self.deadline)


@contextmanager
def stop_on_signals(deadline: float = float("inf")) -> Iterator[StopRequest]:
    """Handle SIGINT and SIGTERM inside the block; outside the main thread, change no signal handler.

    The request is also set when the clock (`time.monotonic`) reaches the deadline.
    """
    request = StopRequest(deadline)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: dict[signal.Signals, Any] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        request.signal = signal.Signals(number)
        for which, handler in before.items():
            signal.signal(which, handler)

    for which in (signal.SIGINT, signal.SIGTERM):
        before[which] = signal.signal(which, ask)
    try:
        yield request
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
