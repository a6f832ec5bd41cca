"""What a finished run leaves."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glassformer.config.run import Run

if TYPE_CHECKING:
    from glassformer.evaluation.loss import LossReport


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
