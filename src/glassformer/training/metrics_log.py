"""`metrics.jsonl`: one JSON object per line, each with its `step`; optionally TensorBoard too."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, TextIO

from glassformer.common import files
from glassformer.common.errors import UserError, needs
from glassformer.store.lock import is_locked

NAME = "metrics.jsonl"


class NoLog:
    """A log that keeps nothing: for ranks other than 0, and for replays."""

    def write(self, step: int, **values: Any) -> None: ...

    def back_to(self, step: int) -> None: ...


class MetricsLog(NoLog):
    """A log that appends lines; when opened, it drops the lines after `step`, which a resumed run writes again.

    A new run opens the log with step -1. This drops all lines of an earlier run that ended before its first checkpoint.
    """

    def __init__(self, folder: Path, step: int, tensorboard: bool = False) -> None:
        self._path = folder / NAME
        self._board: Any = None
        if tensorboard:
            with needs("train.tensorboard", "log"):
                from torch.utils.tensorboard import SummaryWriter
            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
        self._file = self._opened(step)

    def write(self, step: int, **values: Any) -> None:
        """Write one line; numbers and texts also go to TensorBoard under their names, such as `eval/valid_loss`."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(name, value, step)
                elif isinstance(value, str):
                    self._board.add_text(name, value, step)

    def back_to(self, step: int) -> None:
        """Drop the lines of later steps, because the run will take these steps again."""
        self._file.close()
        self._file = self._opened(step)

    def _opened(self, step: int) -> TextIO:
        """Drop the lines of later steps, and open the file to append more."""
        lines = [line for line in read_lines(self._path) if line["step"] <= step]
        files.write_text(self._path, "".join(json.dumps(line) + "\n" for line in lines))
        return open(self._path, "a", encoding="utf-8", newline="\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics file up to the first invalid one (the last line after a crash)."""
    if not path.exists():
        return []
    lines = []
    for text in files.read_text(path, max_bytes=1 << 30).splitlines():
        try:
            line = files.parse_json(text)
        except ValueError:
            break
        if not isinstance(line, dict) or type(line.get("step")) is not int:
            break
        lines.append(line)
    return lines


def follow(folder: str | Path, seconds: float = 1.0) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run's `metrics.jsonl` as they are written, until the run ends; check every `seconds`.

    The lines of a run that has ended come at once. After a rollback the lines of the repeated steps come again. Raises
    `UserError` if nothing was written in the folder and no process trains in it.
    """
    folder = files.as_path(folder, "folder")
    seen: list[dict[str, Any]] = []
    while True:
        goes_on = is_locked(folder)  # before the lines are read, so that the last ones are not missed
        lines = read_lines(folder / NAME)
        if not goes_on and not (folder / NAME).exists():
            raise UserError(f"{folder} has no {NAME}: give the folder of a run that trains or has trained")
        pairs = zip(seen, lines, strict=False)
        n_equal = next((i for i, (old, new) in enumerate(pairs) if old != new), min(len(seen), len(lines)))
        yield from lines[n_equal:]
        seen = lines
        if not goes_on:
            return
        time.sleep(seconds)
