"""Messages and progress on standard error, results on standard output, and the end of a training command."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from glassformer.common.errors import say_unknown
from glassformer.common.files import as_path
from glassformer.common.formatting import duration, show
from glassformer.config.run import Run
from glassformer.config.schema import setting

if TYPE_CHECKING:
    from glassformer.tasks.reporting import LaunchReporter, Outcome
    from glassformer.training.terminal import TerminalReporter


def err(text: str) -> None:
    """Print a message on standard error."""
    print(text, file=sys.stderr)


def reporting(*, is_quiet: bool = False) -> "TerminalReporter":
    """Return a reporter for a block; its libraries are imported here, after the arguments were checked."""
    from glassformer.training.terminal import TerminalReporter

    return TerminalReporter(is_quiet=is_quiet)


@contextmanager
def bar(title: str) -> Iterator[None]:
    """Show a progress bar on a terminal during the block, and then remove its line."""
    with reporting() as reporter:
        reporter.is_quiet = True
        with reporter.phase(title):
            yield


def print_json(value: Any) -> None:
    """Print a value as JSON in one line (`json_of`)."""
    print(json_of(value))


def json_of(value: Any) -> str:
    """Return a value as JSON in one line; an object also gets the notes that were given since the last object."""
    from glassformer.apps.cli.main import notes

    say_unknown()
    if isinstance(value, dict) and notes:
        value = value | {"notes": [*value.get("notes", ()), *notes]}
        notes.clear()
    return json.dumps(value, ensure_ascii=False)


def print_report(report: Any, *, as_json: bool) -> None:
    """Print a report as one JSON object, its `to_dict`, or as a text for the width of the terminal."""
    if as_json:
        print_json(report.to_dict())
    else:
        show(str(report))


@dataclass(frozen=True)
class Shown:
    """Progress and output."""

    is_usual: ClassVar[bool] = True
    quiet: bool = setting(False, "Show no progress, only messages.")
    json_: bool = setting(False, "Print the result as JSON.")

    def reporter(self) -> "AbstractContextManager[TerminalReporter]":
        """Return the reporter of the verb."""
        return reporting(is_quiet=self.quiet)

    def trained(self, train: "Callable[[LaunchReporter], Outcome]") -> "Outcome":
        """Run a training command with progress on standard error, then print its summary: in rows, or as JSON."""
        began = time.perf_counter()
        with self.reporter() as reporter:
            outcome = train(reporter)
            reporter.close()
            seconds = time.perf_counter() - began
            if self.json_:
                reports = {split: report.to_dict() for split, report in outcome.reports.items()}
                result = {"folder": str(outcome.folder), "name": outcome.run.name, "seconds": round(seconds, 3)}
                print_json(result | {"reports": reports, "notes": list(outcome.notes)})
            else:
                reporter.facts(summary(outcome, seconds, reporter.best))
        return outcome


@dataclass(frozen=True)
class RunOutput(Shown):
    """Run folder, progress and output."""

    out: str | None = setting(None, "The run folder (default runs/NAME).")

    def folder(self, run: Run) -> Path:
        """Return the folder of the run."""
        return Path("runs") / run.name if self.out is None else as_path(self.out, "--out")


def summary(outcome: "Outcome", seconds: float, best: str) -> dict[str, str]:
    """Describe a finished run: its result, its time, its files and the next command."""
    from glassformer.store.manifest import Manifest  # torch is loaded by now; --help needs none
    from glassformer.tasks.task import task_of

    task, folder = task_of(outcome.run), outcome.folder
    valid = outcome.reports.get("valid")
    units = []
    if valid is not None:
        units.append(f"eval loss {valid.loss:.4f} nats")
        if best:
            units[0] += f" ({best})"
        if valid.bits_per_byte is not None:
            units.append(f"{valid.bits_per_byte:.3f} bits per byte")
    example = ' "… [MASK] …"' * (task.verb == "fill")
    return {
        "done": ", ".join([*units, f"after {duration(seconds)}"]),
        "model": f"{folder} (weights of step {Manifest.read(folder).step})",
        "curves": str(folder / "metrics.jsonl"),
        "plot": f"glassformer plot curves {folder}",
        "next": f"glassformer {task.verb} {folder}{example}",
    }
