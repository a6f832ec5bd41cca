"""Reports of a run: the protocol that receives its progress, its outcome, and notes as warnings."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, runtime_checkable

from glassformer import notebook
from glassformer.config.run import Run

if TYPE_CHECKING:
    from glassformer.evaluation.loss import LossReport


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run."""

    step: int
    reports: "Mapping[str, LossReport]"
    """The losses of the splits `train` and `valid`."""
    scores: Mapping[str, float]
    sample: str | None
    """A text that the model wrote; None if the task writes none."""
    watched: str
    """The metric that decides which step is the best."""
    is_best: bool
    """True if no earlier evaluation was better by this metric."""


class LaunchReporter(Protocol):
    """Receives the progress of a run: messages, facts, steps and evaluations, and the phases of its preparation."""

    def log(self, text: str) -> None: ...

    def facts(self, rows: Mapping[str, str]) -> None: ...

    def step(self, step: int, max_steps: int, values: dict[str, float]) -> None: ...

    def evaluation(self, evaluation: Evaluation) -> None: ...

    def phase(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]: ...


@runtime_checkable
class OwnsProcess(Protocol):
    """A reporter of the command line, which may end the process at any time."""

    def end(self, sentence: str, code: int) -> NoReturn: ...


class Silent:
    """A reporter that shows nothing."""

    def log(self, text: str) -> None: ...

    def facts(self, rows: Mapping[str, str]) -> None: ...

    def step(self, step: int, max_steps: int, values: dict[str, float]) -> None: ...

    def evaluation(self, evaluation: Evaluation) -> None: ...

    def phase(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]:
        return nullcontext(lambda done, total: None)


@dataclass(frozen=True)
class Outcome:
    """A finished run: its folder, its configuration, and the reports of its last evaluation."""

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

    def _repr_html_(self) -> str:
        rows = [{"split": split} | report.to_dict() for split, report in self.reports.items()]
        return notebook.frame(rows, f"{self.run.name}: {self.folder}")
