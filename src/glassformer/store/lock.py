"""Lock of a run folder, for one trainer at a time; the operating system releases the lock when the process ends."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.common import files
from glassformer.common.errors import UserError

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK, OWNER = ".lock", ".owner.json"


@contextmanager
def locked(folder: Path, **facts: Any) -> Iterator[None]:
    """Lock a run folder inside the block; raise `UserError` with the owner if another process has locked it.

    The owner file also contains `facts`. The owner file of a killed process is overwritten.
    """
    lock = _acquired(folder)
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        files.write_json(folder / OWNER, {"pid": os.getpid(), "host": socket.gethostname(), "since": since} | facts)
        yield
    finally:
        with suppress(OSError):  # a full or missing disk is reported by another error
            (folder / OWNER).unlink(missing_ok=True)
        lock.release()


def require_free(folder: Path) -> None:
    """Raise `UserError` if another process has locked a folder, which need not exist."""
    if (folder / LOCK).exists():
        _acquired(folder).release()


def _acquired(folder: Path) -> "BaseFileLock":
    from filelock import FileLock, Timeout  # takes 0.1 s

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0)
        lock.acquire()
        return lock
    except Timeout as error:
        who = "another process"  # without an owner file: it has only just started, or is ending
        if facts := owner(folder):
            who = f"process {facts['pid']} on {facts['host']} since {facts['since']}"
        raise UserError(f"{folder} is being trained by {who}: wait for it, or stop it first") from error
    except OSError as error:
        raise UserError(f"cannot write {folder}: {files.reason(error)}; choose a writable place") from error


def owner(folder: Path) -> dict[str, Any]:
    """Return the contents of the owner file: pid, host, since and the facts of `locked`; empty without a trainer."""
    try:
        facts = json.loads((folder / OWNER).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(facts, dict) or type(facts.get("pid")) is not int or not {"host", "since"} <= facts.keys():
        return {}
    return facts


def is_locked(folder: Path) -> bool:
    """Return True if a trainer holds the lock of a run folder, by the owner file; the lock itself is not acquired."""
    facts = owner(folder)
    return bool(facts) and (facts["host"] != socket.gethostname() or files.is_alive(facts["pid"]) is not False)
