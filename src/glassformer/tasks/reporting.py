"""Reports of a run: the protocol of a reporter, which receives the progress, and the outcome of the run."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from glassformer.common import notebook
from glassformer.common.errors import notes_to, once, warn
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
    """True if no earlier evaluation was better by the watched metric."""


class LaunchReporter(Protocol):
    """Receives the progress of a run: messages, facts, steps and evaluations, and the phases of its preparation."""

    def log(self, text: str) -> None: ...

    def facts(self, rows: Mapping[str, str]) -> None: ...

    def step(self, step: int, max_steps: int, values: dict[str, float]) -> None: ...

    def evaluation(self, evaluation: Evaluation) -> None: ...

    def phase(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]: ...


class Silent:
    """A reporter that shows nothing; notes become warnings (`noted`)."""

    def log(self, *_: object) -> None: ...

    facts = step = log

    def evaluation(self, evaluation: Evaluation) -> None: ...

    def phase(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]:
        return nullcontext(lambda done, total: None)


@contextmanager
def noted(reporter: LaunchReporter, *, is_first: bool = True) -> Iterator[list[str]]:
    """Yield a list that collects the notes (`errors.warn`) of the `with` block, each note once.

    The reporter shows the notes. The reporter `Silent` passes them to the code outside of the block, as warnings. Of
    several processes, only the first shows notes.
    """
    notes: list[str] = []
    outside = copy_context()

    def hear(text: str) -> None:
        notes.append(text)
        if is_first and type(reporter) is Silent:
            outside.run(warn, text)
        elif is_first:
            reporter.log(text)

    with notes_to(once(hear)):
        yield notes


@dataclass(frozen=True)
class Outcome:
    """A finished run: its folder, its configuration, the reports of its last evaluation, and notes."""

    folder: Path
    reports: "dict[str, LossReport]"
    run: Run
    notes: tuple[str, ...] = ()
    """One sentence for each kind of data that was skipped, cut or left out, and for facts that the scores hide."""

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
