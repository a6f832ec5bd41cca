"""One trainer for one run folder: a lock of the operating system, which goes with the process that holds it."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from glassformer import files
from glassformer.errors import UserError

LOCK, OWNER = ".lock", ".owner.json"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a run folder inside the block; `UserError` naming the owner when another process has it.

    The operating system lets go of the lock when its owner ends, however it ends, so a lock is never stale; the
    owner's name that a killed process leaves is written over.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0)
        lock.acquire()
    except Timeout as error:
        raise UserError(f"{folder} is being trained by {_owner(folder)}: wait for it, or stop it first") from error
    except OSError as error:
        raise UserError(f"cannot write {folder}: {files.reason(error)}; choose a place that can be written") from error
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        files.write_json(folder / OWNER, {"pid": os.getpid(), "host": socket.gethostname(), "since": since})
        yield
    finally:
        with suppress(OSError):  # of a disk that is full or gone: something else tells of it
            (folder / OWNER).unlink(missing_ok=True)
        lock.release()


def _owner(folder: Path) -> str:
    try:
        owner = json.loads((folder / OWNER).read_text("utf-8"))
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # it has only just come, or is going
        return "another process"
