"""Threads for the work of models: a queue with a limit, and a deadline for each job."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class Busy(Exception):
    """The queue is full, or the server is stopping."""


class Late(Busy, TimeoutError):
    """A job has missed its deadline."""


class Worker:
    """One or several threads that run jobs. With one thread, requests never compete for the processor.

    If a job is not finished `deadline` seconds after its request, the request raises `Late`. If the job has begun, the
    thread finishes it and drops the result; otherwise it never begins. A job stays in the queue until a thread takes
    it, even if its request has ended. If more than `limit` jobs wait or run, a further request raises `Busy` at once.
    """

    def __init__(self, limit: int = 16, deadline: float = 120.0, n_threads: int = 1, name: str = "model") -> None:
        self.limit, self.deadline = limit, deadline
        self._thread = ThreadPoolExecutor(n_threads, thread_name_prefix=name)
        self.n_jobs = 0
        self._lock = threading.Lock()

    async def run(self, job: Callable[..., Result], *args: Any, **named: Any) -> Result:
        """Run a job in the thread and return its result, or raise its exception."""
        with self._lock:
            if self.n_jobs > self.limit:
                raise Busy(f"{self.n_jobs} requests wait already: try again later")
            self.n_jobs += 1
        try:
            is_left = threading.Event()
            context = contextvars.copy_context()  # for example, that texts of clients give no notes
            future = self._thread.submit(context.run, _contained, is_left, job, *args, **named)
        except RuntimeError as error:  # the server is shutting down
            self._done()
            raise Busy("the server is stopping") from error
        future.add_done_callback(self._done)
        waiting = asyncio.wrap_future(future)
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # its request may have ended
        try:
            await asyncio.wait([waiting], timeout=self.deadline)
            if waiting.done():
                return waiting.result()
            raise Late(f"no result within {self.deadline:g} seconds: choose a shorter text, or fewer texts")
        finally:
            is_left.set()

    def post(self, job: Callable[..., object], *args: Any) -> None:
        """Let the thread run a job after the jobs that wait. The job handles its own errors.

        Nothing happens if the server is shutting down.
        """
        with contextlib.suppress(RuntimeError):
            self._thread.submit(contextvars.copy_context().run, job, *args)

    def _done(self, future: object = None) -> None:
        with self._lock:
            self.n_jobs -= 1

    def close(self, waits: bool = False) -> None:
        """Drop the waiting jobs. The running job ends in the background, or, if `waits`, before this call returns."""
        self._thread.shutdown(waits, cancel_futures=True)


def _contained(is_left: threading.Event, job: Callable[..., Result], *args: Any, **named: Any) -> Result:
    """Run a job unless its request has ended; convert its errors with `as_exception`."""
    if is_left.is_set():
        raise Busy("the request has ended")
    try:
        return job(*args, **named)
    except Exception:
        raise
    except BaseException as error:
        raise as_exception(error) from error


def as_exception(error: BaseException) -> Exception:
    """Return an error that ends only its request. A `SystemExit` in the event loop would end the server.

    >>> as_exception(SystemExit(1))
    RuntimeError('SystemExit: 1')
    """
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
