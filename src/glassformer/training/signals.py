"""Signal handling: Ctrl-C, SIGTERM or the time limit stop a run after a save; a second signal ends it at once.

A run stops after its step. If the step or the evaluation takes longer than `GRACE`, it is abandoned: the weights have
not changed since the last update, so the run is saved in the state before, and resumes with equal bits.

Python handles a signal between two of its operations, and one operation of torch may take many seconds. So a thread
learns of the signal too. If the step or the evaluation was not left `LATE` seconds after it, that thread saves the same
state and ends the process, if the process belongs to the command line.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

GRACE = 1.0
"""Seconds after a signal until the current step or evaluation is abandoned."""
LATE = 1.25
"""Seconds after a signal until another thread acts for the main thread."""


_HANDLED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))
"""SIGBREAK exists on Windows only, where one process can send no other signal to another."""


class Abandoned(BaseException):
    """Raised in a block of `StopRequest.abandonable` when `GRACE` is over; no handler of `Exception` catches it."""


class StopRequest:
    """A request to stop, set by a signal or by the time limit and read by the loop.

    `abandons`: blocks of `abandonable` may be left; otherwise the loop reads the request after them.
    """

    def __init__(self, deadline: float = float("inf"), *, abandons: bool = False) -> None:
        self.signal: signal.Signals | None = None
        self.deadline, self.abandons = deadline, abandons
        self.end_beside: Callable[[signal.Signals], None] | None = None
        """Saves the state before the block of `abandonable` and ends the process; called in another thread."""
        self.log: Callable[[signal.Signals], None] | None = None
        """Prints that the run stops later; called in another thread."""
        self.is_ending = False
        """True while `end_beside` runs."""
        self._is_late = self._is_inside = False
        self._leaving = threading.Lock()
        """Locked while a thread leaves a block of `abandonable`, and while `end_beside` runs."""

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
            with self._leaving:
                self._is_inside = False

    def grace_is_over(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGALRM."""
        self._is_late = True
        if self._is_inside and self._leaving.acquire(blocking=False):
            self._is_inside = False
            self._leaving.release()
            raise Abandoned

    def late(self, which: signal.Signals) -> None:
        """Act for the main thread, `LATE` seconds after a signal."""
        with self._leaving:
            if self._is_inside and self.end_beside is not None:
                self.is_ending = True
                self.end_beside(which)
                self.is_ending = False
        if self.log is not None:
            self.log(which)

    @property
    def code(self) -> int:
        """0 = continue, 1 = the time limit is reached, else 1 + the signal's number."""
        return int(time.monotonic() >= self.deadline) if self.signal is None else 1 + self.signal


@contextmanager
def stop_on_signals(deadline: float = float("inf"), *, abandons: bool = False) -> Iterator[StopRequest]:
    """Handle SIGINT, SIGTERM and SIGBREAK inside the block; outside the main thread, change no signal handler.

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

    for which in _HANDLED:
        before[which] = signal.signal(which, ask)
    try:
        with _watched(request):
            yield request
    finally:
        if len(before) > len(_HANDLED):  # SIGALRM
            signal.setitimer(signal.ITIMER_REAL, 0)
        for which, handler in before.items():
            signal.signal(which, handler)


@contextmanager
def _watched(request: StopRequest) -> Iterator[None]:
    """Let a thread read the numbers of signals inside the block; Python writes them when they arrive."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    _own_sockets.add(writing.fileno())
    watch = threading.Thread(target=_watch, args=(reading, request), daemon=True, name="signals")
    watch.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        _own_sockets.remove(writing.fileno())
        writing.close()
        watch.join()


def _watch(reading: socket.socket, request: StopRequest) -> None:
    """Call `request.late` some time after the first signal; end the process after the second, if the first does so."""
    timer: threading.Timer | None = None
    with reading:
        while received := reading.recv(1):
            number = received[0]
            if number not in _HANDLED:
                continue
            if timer is None:
                timer = threading.Timer(LATE, request.late, [signal.Signals(number)])
                timer.daemon = True
                timer.start()
            elif request.is_ending:
                os._exit(128 + number)
    if timer is not None:
        timer.cancel()


_own_sockets: set[int] = set()
"""File descriptors of `_watched`."""


def _leave_socket_of_parent() -> None:
    """Write no signals of a forked process, such as a worker, into the socket of its parent."""
    inherited = signal.set_wakeup_fd(-1)
    if inherited not in _own_sockets:
        signal.set_wakeup_fd(inherited)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_socket_of_parent)
