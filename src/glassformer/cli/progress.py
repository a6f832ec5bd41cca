"""Messages on standard error, and the end of a training command."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from glassformer.formatting import duration

if TYPE_CHECKING:
    from glassformer.reporting import LaunchReporter, Outcome
    from glassformer.terminal import TerminalReporter


def err(text: str) -> None:
    """Print a message on standard error."""
    print(text, file=sys.stderr)


@contextmanager
def reporting(*, is_quiet: bool = False) -> "Iterator[TerminalReporter]":
    """Yield a reporter for the block; its libraries are imported here, after the arguments were checked."""
    from glassformer.terminal import CommandReporter

    with CommandReporter(is_quiet=is_quiet) as reporter:
        yield reporter


@contextmanager
def bar(title: str) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal, which leaves no line; yield the function that prints messages."""
    with reporting() as reporter:
        reporter.is_quiet = True
        with reporter.phase(title):
            yield reporter.log


def trained(train: "Callable[[LaunchReporter], Outcome]", *, quiet: bool = False, json_: bool = False) -> "Outcome":
    """Run a training command with progress on standard error, then print its summary: in rows, or as JSON."""
    began = time.perf_counter()
    with reporting(is_quiet=quiet) as reporter:
        outcome = train(reporter)
        reporter.close()
        seconds = time.perf_counter() - began
        if json_:
            reports = {split: report.to_dict() for split, report in outcome.reports.items()}
            result = {"folder": str(outcome.folder), "name": outcome.run.name, "seconds": round(seconds, 3)}
            print(json.dumps(result | {"reports": reports}))
        else:
            reporter.facts(summary(outcome, seconds, reporter.best))
    return outcome


def summary(outcome: "Outcome", seconds: float, best: str) -> dict[str, str]:
    """Describe a finished run: its result, its time, its files and the next command."""
    from glassformer.store.manifest import Manifest  # torch is loaded by now; --help needs none
    from glassformer.tasks.registry import task_of

    task, folder = task_of(outcome.run), outcome.folder
    valid = outcome.reports.get("valid")
    units = [] if valid is None else [f"eval loss {valid.loss:.4f} nats" + (f" ({best})" if best else "")]
    if valid is not None and valid.bits_per_byte is not None:
        units.append(f"{valid.bits_per_byte:.3f} bits per byte")
    example = ' "… [MASK] …"' if task.verb == "fill" else ""
    return {
        "done": ", ".join([*units, f"after {duration(seconds)}"]),
        "model": f"{folder} (weights of step {Manifest.read(folder).step})",
        "curves": str(folder / "metrics.jsonl"),
        "plot": f"glassformer plot curves {folder}",
        "next": f"glassformer {task.verb} {folder}{example}",
    }
