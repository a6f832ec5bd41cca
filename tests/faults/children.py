"""Child processes that die between any two accesses to the disk, as in a crash of the machine.

A child has the modules that were imported before it was forked. What every training imports late is imported before
the first child, once for all children of a test process: `torch._dynamo` alone takes 1 s, in the first step of every
optimizer.
"""

import builtins
import contextlib
import functools
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from glassformer.store import checkpoint, tensors
from glassformer.tasks.task import kinds, task_of_kind
from ports import bound

IMPORTED = (
    "filelock",
    "numpy.ma",
    "sacrebleu",
    "torch._dynamo",
    "torch.distributed.checkpoint.hf_storage",
    "glassformer.training.terminal",
    "glassformer.training.optimizers.build",
    "glassformer.training.optimizers.muon",
    "glassformer.training.run",
)
CALLS = ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir")
"""Functions of `os` that change the disk; opening and writing files are counted too."""
DIED, DIED_DELETING = 77, 78
SECONDS = 300.0
_where = threading.local()


@dataclass
class Touches:
    """Accesses to the disk by all threads: their number, and those that deleted old checkpoints."""

    n: int = 0
    deleting: list[int] = field(default_factory=list)


@contextlib.contextmanager
def at_touch(k: int, act: Callable[[], None], *, once: bool = False) -> Iterator[Touches]:
    """Call `act` at the k-th touch of the disk inside the block, and at all later ones unless `once`.

    A touch is the moment before one of the `CALLS`, before a file is opened to be written, and before, in the middle
    of, and after each write to it; of a file of tensors, before, in the middle of, and after it is written.
    """
    touches, one_at_a_time = Touches(), threading.Lock()

    def touch() -> None:
        with one_at_a_time:
            touches.n += 1
            n = touches.n
            if is_deleting():
                touches.deleting.append(n)
        if n == k or (n > k and not once):
            act()

    def before(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            touch()
            return real(*args, **options)

        return call

    real_open, real_os_open, save_file, prune = open, os.open, tensors.save_file, checkpoint.prune

    def opened(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if not set(mode) & set("wax+"):
            return real_open(path, mode, *args, **options)
        touch()
        file = real_open(path, mode, *args, **options)
        write = file.write

        def in_halves(data: Any) -> int:
            for half in (data[: len(data) // 2], data[len(data) // 2 :]):
                touch()
                write(half)
                file.flush()
            touch()
            return len(data)

        file.write = in_halves
        return file

    def os_opened(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            touch()
        return real_os_open(path, flags, *args, **options)

    def saved(values: Any, path: Path, **options: Any) -> None:
        try:
            touch()
            save_file(values, path, **options)
            whole = path.read_bytes()
            os.truncate(path, len(whole) // 2)
            touch()
            path.write_bytes(whole)
            touch()
        except OSError as error:  # like the error of safetensors
            raise SafetensorError(f"I/O error: {error.strerror} (os error {error.errno})") from error

    def pruned(*args: Any) -> None:
        _where.deleting = True
        try:
            prune(*args)
        finally:
            _where.deleting = False

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, before(getattr(os, name)))
        patch.setattr(os, "open", os_opened)
        patch.setattr(builtins, "open", opened)
        patch.setattr(tensors, "save_file", saved)
        patch.setattr(checkpoint, "prune", pruned)
        # rmtree compares functions by identity to see what the system can do, and copies are to be written as files.
        patch.setattr(shutil, "_use_fd_functions", False)
        patch.setattr(shutil, "_USE_CP_SENDFILE", False)
        yield touches


def is_deleting() -> bool:
    """Return whether this thread is deleting old checkpoints."""
    return getattr(_where, "deleting", False)


def die() -> None:
    os._exit(DIED_DELETING if is_deleting() else DIED)


@functools.cache
def import_for_all() -> None:
    for name in IMPORTED:
        import_module(name)
    for kind in kinds():
        task_of_kind(kind)  # a task's module is imported when it is first used


def fork(work: Callable[[], object]) -> int:
    """Start a child that does the work and exits with 0, or with 1 and a traceback; return its process id."""
    import_for_all()
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
    """Return the exit code of a child, or the negative number of its signal; a child that hangs is killed."""
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
    """Do the work in a child and return its exit code."""
    return wait(fork(work))


def forget(*packages: str) -> None:
    """Import the modules of packages again when they are used next. Only for a child, whose process ends after it."""
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


def wait_until(happened: Callable[[], bool], *children: int) -> None:
    """Wait for an event; fail if one of the children ends before it, or if it takes too long."""
    deadline = time.monotonic() + SECONDS
    while not happened():
        for child in children:
            ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            assert ended is None, f"the process has ended before the event, with {ended.si_status}"
        assert time.monotonic() < deadline, f"the event did not happen within {SECONDS:g} s"
        time.sleep(0.001)


def killed(
    work: Callable[[], object],
    when: Callable[[], bool],
    rng: random.Random,
    within: float,
    which: signal.Signals = signal.SIGKILL,
) -> int:
    """Return the exit code of a child that gets a signal up to `within` seconds after an event.

    The work must not end by itself after the event: how long a process waits for a processor has no bound.
    """
    child = fork(work)
    wait_until(when, child)
    time.sleep(rng.random() * within)
    os.kill(child, which)
    return wait(child)


def start_ranks(n: int, work: Callable[[], object], **environment: str) -> list[int]:
    """Start n children as the processes of one run, like `torchrun` on one machine; return their process ids."""
    with bound() as free:
        port = free.getsockname()[1]
        shared = {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n)}
        shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

        def as_rank(rank: int) -> None:
            os.environ.update(shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | environment)
            work()

        # Each child has a copy of the socket, which keeps the port until all have ended
        return [fork(lambda rank=rank: as_rank(rank)) for rank in range(n)]  # type: ignore[misc]


def ranks_done(n: int, work: Callable[[], object], **environment: str) -> list[int]:
    """Run n children as the processes of one run and return their exit codes; their output goes to standard error."""
    return [wait(child) for child in start_ranks(n, work, **environment)]
