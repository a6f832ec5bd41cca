"""What a run tells: its news, to a terminal, a test, nowhere; what it leaves in the end; and notes as warnings."""

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from glassformer.config.run import Run
from glassformer.errors import Note

if TYPE_CHECKING:
    from glassformer.evaluation.loss import LossReport


class LaunchReporter(Protocol):
    """What is told of a run: by the loop (`step`, `evaluation`), and by its preparations (`phase`)."""

    def log(self, text: str) -> None: ...

    def step(self, step: int, max_steps: int, values: dict[str, float]) -> None: ...

    def evaluation(self, step: int, reports: "dict[str, LossReport]", sample: str | None) -> None: ...

    def phase(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]: ...


class Silent:
    """A reporter that shows nothing."""

    def log(self, text: str) -> None: ...

    def step(self, step: int, max_steps: int, values: dict[str, float]) -> None: ...

    def evaluation(self, step: int, reports: "dict[str, LossReport]", sample: str | None) -> None: ...

    def phase(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]:
        return nullcontext(lambda done, total: None)


@dataclass(frozen=True)
class Outcome:
    """A finished run: its folder, the reports of its last evaluation, and what it was."""

    folder: Path
    reports: "dict[str, LossReport]"
    run: Run

    def __repr__(self) -> str:
        """Three lines: the run, the loss of its last evaluation, and where the model is."""
        losses = [f"{side} loss {report.loss:.4f} nats" for side, report in self.reports.items()]
        return (
            f"{type(self).__name__}: {self.run.name}, {self.run.train.max_steps:,} steps at most\n"
            f"  {', '.join(losses) or 'never evaluated'}\n"
            f"  model directory: {self.folder}"
        )


def warn(text: str) -> None:
    """Warn at the line that called into this package."""
    level, frame, inside = 1, sys._getframe(), str(Path(__file__).parent)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, Note, stacklevel=level)
