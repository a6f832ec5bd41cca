"""Ctrl-C, SIGTERM and the end of its time ask a run to stop; it finishes its step and saves. A second signal leaves
at once."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequest:
    """Set by a signal or by the time, read by the loop."""

    def __init__(self, max_time: float = 0.0) -> None:
        self.signal: signal.Signals | None = None
        self.deadline = time.monotonic() + max_time if max_time else float("inf")

    def __bool__(self) -> bool:
        return self.signal is not None or time.monotonic() >= self.deadline

    @property
    def reason(self) -> str:
        return "train.max_time" if self.signal is None else self.signal.name


@contextmanager
def stop_on_signals(max_time: float = 0.0) -> Iterator[StopRequest]:
    """Handles SIGINT and SIGTERM inside the block; outside of the main thread, signals are left alone.

    The request is also made `max_time` seconds from now, unless that is 0.
    """
    request = StopRequest(max_time)
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
