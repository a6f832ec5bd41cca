"""The check of many folders, each in a process of its own, with limits of time and memory."""

import contextlib
import multiprocessing
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from glassformer.apps.course.workshop.exercise import use_variant
from glassformer.apps.course.workshop.folder import check

ROOM = __name__.rpartition(".")[0]
METHOD = "forkserver" if sys.platform != "win32" else "spawn"
"""The start of processes: those of a fork server have all modules already."""


@dataclass(frozen=True)
class Limits:
    """Limits of the check of one folder."""

    seconds: float = 120.0
    megabytes: int = 2000
    """Memory besides that of Python and torch; it is not limited on Windows and macOS."""


@dataclass(frozen=True)
class Grade:
    """The states of all exercises of a folder, or why there are no states."""

    folder: str
    states: dict[str, str]
    problem: str = ""

    @property
    def n_right(self) -> int:
        return sum(state in ("right", "slow") for state in self.states.values())


def grades(folders: Sequence[Path], names: Sequence[str], seed: int, n_jobs: int, limits: Limits) -> Iterator[Grade]:
    """Check every folder, several at once, and yield the grades in the order of the folders.

    With a `seed` other than 0, each folder is tested with other numbers, which depend on the seed and on its name.
    """
    context: Any = multiprocessing.get_context(METHOD)
    if METHOD == "forkserver":
        everything_is_asked = not names and not seed  # then the results of all solutions are computed once
        context.set_forkserver_preload([f"{ROOM}.{'expected' if everything_is_asked else 'folder'}"])
    running: list[tuple[Path, Any, Connection]] = []
    waiting = list(folders)
    while waiting or running:
        while waiting and len(running) < n_jobs:
            folder = waiting.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(folder, tuple(names), _variant(seed, folder), limits, theirs))
            process.start()
            theirs.close()
            running.append((folder, process, ours))
        yield _ended(*running.pop(0), limits)


def _variant(seed: int, folder: Path) -> int:
    return 1 + zlib.crc32(f"{seed}/{folder.resolve().name}".encode()) % 1000 if seed else 0


def _ended(folder: Path, process: Any, answer: Connection, limits: Limits) -> Grade:
    """Wait for a process, and return what it answers."""
    try:
        if not answer.poll(limits.seconds):
            return Grade(str(folder), {}, f"it did not end within {limits.seconds:g} seconds")
        return answer.recv()
    except EOFError:
        return Grade(str(folder), {}, "its process ended early: the memory was not sufficient, or the files end Python")
    finally:
        process.kill()
        process.join()
        answer.close()


def _work(folder: Path, names: tuple[str, ...], variant: int, limits: Limits, answer: Connection) -> None:
    """Check a folder within the limits, and send its grade. What the reader's files print is dropped."""
    _limit_memory(limits.megabytes)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        try:
            states: dict[str, str] = {}
            for number in {0, variant}:  # other numbers can only lower a state: what is right must be right for both
                use_variant(number)
                for one in check(folder, names, is_kept=False).verdicts:
                    if states.get(one.name, "right") in ("right", "slow"):
                        states[one.name] = one.state
            grade = Grade(str(folder), states)
        except Exception as error:
            grade = Grade(str(folder), {}, str(error))
    answer.send(grade)


def _limit_memory(megabytes: int) -> None:
    if sys.platform == "linux":
        import resource

        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        most = pages * resource.getpagesize() + megabytes * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def table(found: Sequence[Grade], totals: dict[int, list[str]]) -> str:
    """Return the grades as a table; `totals` has the names of the exercises of each chapter."""
    heads = ["folder", "right", *(str(chapter) for chapter in totals)]
    rows = [heads]
    for grade in found:
        cells = [f"{grade.n_right}/{sum(map(len, totals.values()))}"]
        for names in totals.values():
            n = sum(grade.states.get(name) in ("right", "slow") for name in names)
            cells.append(f"{n}/{len(names)}")
        rows.append([grade.folder, *(cells if not grade.problem else [grade.problem])])
    whole = [row for row in rows if len(row) == len(heads)]
    widths = [max(len(row[0]) for row in rows), *(max(map(len, cells)) for cells in list(zip(*whole, strict=True))[1:])]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
