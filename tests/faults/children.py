"""Work in a process of its own that dies as a machine would let it die: between two touches of the disk."""

import contextlib
import os
import random
import shutil
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

TOUCHES = ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir")
"""Calls of the operating system that change what will be found on the disk."""
DIED = 77
SECONDS = 120.0


@contextlib.contextmanager
def at_touch(k: int, act: Callable[[], None], names: tuple[str, ...] = TOUCHES) -> Iterator[Callable[[], int]]:
    """Inside the block, `act` is called in place of the k-th of the calls `names` of `os`, and before all later ones.

    Yields how many there have been.
    """
    n = 0
    real = {name: getattr(os, name) for name in names}

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal n
            n += 1
            if n >= k:
                act()
            return real[name](*args, **options)

        return call

    for name in names:
        setattr(os, name, counted(name))
    # rmtree compares functions by identity to see what the system can do.
    safe, shutil._use_fd_functions = shutil._use_fd_functions, False  # type: ignore[attr-defined]
    try:
        yield lambda: n
    finally:
        shutil._use_fd_functions = safe  # type: ignore[attr-defined]
        for name, function in real.items():
            setattr(os, name, function)


def die() -> None:
    os._exit(DIED)


def fork(work: Callable[[], object]) -> int:
    """The process id of a child that does the work and exits with 0, or with 1 and a traceback."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other threads: those of the test's process are idle
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setpgrp()
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def wait(child: int) -> int:
    """Its exit code, or the negative number of the signal that ended it; a child that hangs is ended."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"the process did not end within {SECONDS:g} s")


def done(work: Callable[[], object]) -> int:
    """The exit code of a child that does the work."""
    return wait(fork(work))


def killed(
    work: Callable[[], object],
    when: Callable[[], bool],
    rng: random.Random,
    within: float,
    which: signal.Signals = signal.SIGKILL,
) -> int:
    """The exit code of a child that gets a signal up to `within` seconds after something has happened."""
    child = fork(work)
    while not when():
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    time.sleep(rng.random() * within)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, which)
    return wait(child)


def start_ranks(n: int, work: Callable[[], object], **environment: str) -> list[int]:
    """Process ids of n children that are the processes of one run, as `torchrun` would start them on one machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def as_rank(rank: int) -> None:
        os.environ.update(shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | environment)
        work()

    return [fork(lambda rank=rank: as_rank(rank)) for rank in range(n)]  # type: ignore[misc]


def ranks_done(n: int, work: Callable[[], object], **environment: str) -> list[int]:
    """The exit codes of n children that are the processes of one run; what they say goes to standard error."""
    return [wait(child) for child in start_ranks(n, work, **environment)]
