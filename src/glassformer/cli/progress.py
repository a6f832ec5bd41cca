"""Progress on standard error: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from glassformer.distributed.environment import is_first

if TYPE_CHECKING:
    from glassformer.evaluation.loss import LossReport

SECONDS_BETWEEN_LINES = 5.0


class TerminalReporter:
    """What a person sees of a run; of several processes the first one speaks."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=not is_first())
        self.live = self.console.is_terminal
        self.bar: Progress | None = None
        self.last_line = 0.0
        self.first: tuple[int, float] | None = None

    def log(self, text: str) -> None:
        self.console.print(escape(text))

    def step(self, step: int, max_steps: int, values: dict[str, float]) -> None:
        text = f"loss {values['train/loss']:.4f}  {values['tokens_per_s']:,.0f} tokens/s"
        now = time.perf_counter()
        self.first = self.first or (step, now)
        if self.live:
            self._bar(max_steps).update(self._task, completed=step, detail=text)
            if step == max_steps:
                self.close()
        elif now - self.last_line >= SECONDS_BETWEEN_LINES or step == max_steps:
            self.last_line = now
            done = step - self.first[0]
            left = (now - self.first[1]) / done * (max_steps - step) if done else None
            eta = "" if left is None else "  {}:{:02d} left".format(*divmod(round(left), 60))
            self.log(f"step {step}/{max_steps}  {text}{eta}")

    def evaluation(self, step: int, reports: "dict[str, LossReport]", sample: str | None) -> None:
        parts = [f"{split} loss {report.loss:.4f}" for split, report in reports.items()]
        valid = reports["valid"]
        parts += [] if valid.perplexity is None else [f"perplexity {valid.perplexity:.2f}"]
        parts += [] if valid.bits_per_byte is None else [f"{valid.bits_per_byte:.3f} bits per byte"]
        self.console.print(f"[bold]step {step}[/bold]  " + "  ".join(parts))
        if sample is not None:
            shown = " ".join(sample.split("\n"))
            self.console.print(f"  [dim]{escape(shown)}[/dim]")

    @contextmanager
    def phase(self, title: str) -> Iterator[Callable[[int, int], None]]:
        """A preparation: a bar that vanishes on a terminal; elsewhere a line when it took more than a moment."""
        began = time.perf_counter()
        if not self.live:
            yield lambda done, total: None
        else:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            with Progress(*columns, console=self.console, transient=True) as bar:
                task = bar.add_task(title, total=None)
                yield lambda done, total: bar.update(task, completed=done, total=total)
        seconds = time.perf_counter() - began
        if seconds > 1:
            self.log(f"{title}: {seconds:.1f} s")

    def close(self) -> None:
        """Takes the bar off the terminal."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def __enter__(self) -> "TerminalReporter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _bar(self, max_steps: int) -> Progress:
        if self.bar is None:
            columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[detail]}"))
            self.bar = Progress(*columns, TimeRemainingColumn(), console=self.console)
            self._task = self.bar.add_task("training", total=max_steps, detail="")
            self.bar.start()
        return self.bar


def err(text: str) -> None:
    """A note beside the output proper."""
    print(text, file=sys.stderr)
