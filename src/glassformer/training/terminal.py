"""Show the progress of a run: a live bar on a terminal and in a notebook, plain lines in a log file."""

import html
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from glassformer.common.formatting import wrapped
from glassformer.tasks.reporting import Evaluation, LaunchReporter, Silent
from glassformer.training.distributed import is_first

SECONDS_BETWEEN_LINES = 10.0
"""Seconds between two lines of progress, where there is no terminal."""
STEP = 7
"""The width of the column of steps."""


class TerminalReporter:
    """Shows a run on standard error: header, progress, one row per evaluation, summary."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        """Show only messages (`log`) if `is_quiet`. Of several processes, only the first shows anything."""
        self.console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=not is_first())
        self.is_quiet = is_quiet
        self.live = self.console.is_terminal and not is_quiet
        self.cell = None
        if self.console.is_jupyter and not is_quiet:
            self.console = self.cell = Cell()
        self.bar: Progress | None = None
        self.last_line = 0.0
        self.first: tuple[int, float] | None = None
        self.columns: list[str] = []
        self.best: str = ""

    def log(self, text: str) -> None:
        self.console.print(escape(text), soft_wrap=not self.console.is_terminal)

    def facts(self, rows: Mapping[str, str]) -> None:
        """Print names and values in two columns; an empty value is left out."""
        if self.is_quiet:
            return
        rows = {name: value for name, value in rows.items() if value}
        indent = max(map(len, rows), default=0) + 2
        width = self.console.width if self.console.is_terminal else 10_000
        for name, value in rows.items():
            text = wrapped(f"{name:<{indent}}{value}", width, indent)
            self.console.print(f"[bold]{escape(text[:indent])}[/bold]{escape(text[indent:])}")

    def step(self, step: int, max_steps: int, values: dict[str, float]) -> None:
        now = time.perf_counter()
        self.first = self.first or (step, now)
        done = step - self.first[0]
        left = f"{clock((now - self.first[1]) / done * (max_steps - step))} left" if done else ""
        best = self.best if self.live or self.cell else ""
        speed = f"{values['tokens_per_s']:,.0f} tok/s"
        if "mfu" in values:
            speed += f", {100 * values['mfu']:.0f} % MFU"
        parts = (f"batch loss {values['train/loss']:.4f}", speed, best, left)
        text = "  ".join(part for part in parts if part)
        if self.live:
            self._bar(max_steps).update(self._task, completed=step, detail=text)
            if step == max_steps:
                self.close()
        elif self.cell:
            self.cell.progress(f"step {step}/{max_steps}  {text}", step / max_steps)
        elif not self.is_quiet and (now - self.last_line >= SECONDS_BETWEEN_LINES or step == max_steps):
            self.last_line = now
            self.console.print(f"step {step}/{max_steps}  {text}")

    def evaluation(self, evaluation: Evaluation) -> None:
        """Print a row of losses and scores; their names are printed once, and a star marks the best row so far."""
        if self.is_quiet:
            return
        values = cells(evaluation)
        names, rest = fitting(list(values), self.console.width)
        if names != self.columns:
            self.columns = names
            self.console.print(f"[bold]{aligned('step', names, names)}[/bold]")
        if evaluation.is_best:
            best = {"loss": values["eval loss"]} | {name: f"{name} {value}" for name, value in values.items()}
            self.best = f"best {best[evaluation.watched]}" if evaluation.watched in best else ""
        row = aligned(str(evaluation.step), names, [values[name] for name in names])
        self.console.print(row + " *" * evaluation.is_best)
        if rest:
            self.console.print("  " + "  ".join(f"{name} {values[name]}" for name in rest))
        if evaluation.sample is not None:
            text = "".join(c if c.isprintable() else " " for c in evaluation.sample)
            self.console.print(f"  [dim]{escape(text)}[/dim]", soft_wrap=False, no_wrap=True, overflow="ellipsis")

    @contextmanager
    def phase(self, title: str) -> Iterator[Callable[[int, int], None]]:
        """Show a preparation or a decoding with its counts, rate and remaining time, and its total time at the end.

        A terminal shows a bar that disappears; a log file gets a line every `SECONDS_BETWEEN_LINES`. The total time is
        printed if it is more than a second.
        """
        began = shown = time.perf_counter()

        def text(done: int, total: int) -> str:
            seconds = time.perf_counter() - began
            left = f"  {done / seconds:,.1f}/s  {clock(seconds / done * (total - done))} left" if done else ""
            return f"{title} {done:,}/{total:,}{left}"

        def line(done: int, total: int) -> None:
            nonlocal shown
            if not self.is_quiet and time.perf_counter() - shown >= SECONDS_BETWEEN_LINES:
                shown = time.perf_counter()
                self.console.print(text(done, total))

        if self.cell:
            cell = self.cell
            yield lambda done, total: cell.progress(text(done, total), done / max(1, total))
            cell.progress("", 1)
        elif not self.live:
            yield line
        else:
            with self._progress("{task.description}", TimeElapsedColumn()) as bar:
                task = bar.add_task(title, total=None)
                yield lambda done, total: bar.update(task, completed=done, total=total, description=text(done, total))
        seconds = time.perf_counter() - began
        if seconds > 1 and not self.is_quiet:
            self.console.print(f"{title}: {seconds:.1f} s")

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
        if self.cell:
            self.cell.progress("", 1)

    def __enter__(self) -> "TerminalReporter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _bar(self, max_steps: int) -> Progress:
        if self.bar is None:
            self.bar = self._progress("{task.completed}/{task.total}  {task.fields[detail]}")
            self._task = self.bar.add_task("training", total=max_steps, detail="")
            self.bar.start()
        return self.bar

    def _progress(self, text: str, *columns: ProgressColumn) -> Progress:
        """Return a bar as wide as the terminal, then the text; it disappears at its end."""
        bar = BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4))
        words = TextColumn(text, markup=False, table_column=Column(no_wrap=True))
        return Progress(bar, words, *columns, console=self.console, transient=True, expand=True)


class Cell(Console):
    """The output of a notebook cell: printed lines, and below them one bar with a text, which is replaced."""

    bar = ""
    drawn = 0.0
    output: Any = None

    def __init__(self) -> None:
        kind: dict[str, Any] = {"force_terminal": True, "force_jupyter": False, "record": True}
        super().__init__(file=io.StringIO(), width=100, highlight=False, soft_wrap=True, **kind)

    def print(self, *objects: Any, **style: Any) -> None:
        super().print(*objects, **style)
        self._draw()

    def progress(self, text: str, share: float) -> None:
        """Replace the bar, at most five times per second; remove it when the share is 1."""
        self.bar = f'<progress value="{share:.3f}"></progress>  {html.escape(text)}' if share < 1 else ""
        if share == 1 or time.perf_counter() - self.drawn > 0.2:
            self._draw()

    def _draw(self) -> None:
        from IPython.display import display

        self.drawn = time.perf_counter()
        lines = self.export_html(clear=False, inline_styles=True, code_format="{code}")
        page = f'<pre style="font-family: monospace; line-height: 1.25">{lines}{self.bar}</pre>'
        data = {"text/html": page, "text/plain": self.export_text(clear=False)}
        if self.output is None:
            self.output = display(data, raw=True, display_id=True)
        else:
            self.output.update(data, raw=True)


@contextmanager
def reporter_or_default(reporter: LaunchReporter | None) -> Iterator[LaunchReporter]:
    """Yield the reporter; without one, a `TerminalReporter` on a terminal or in a notebook, else a silent one."""
    if reporter is not None:
        yield reporter
        return
    with TerminalReporter() as terminal:
        yield terminal if terminal.console.is_terminal else Silent()


def cells(evaluation: Evaluation) -> dict[str, str]:
    """Return the names and values of a row: the losses of both splits, other units of the validation loss, scores."""
    reports, scores = evaluation.reports, evaluation.scores
    valid = reports["valid"]
    row = {"train loss": f"{reports['train'].loss:.4f}"} if "train" in reports else {}
    row["eval loss"] = f"{valid.loss:.4f}"
    if valid.perplexity is not None and not scores:
        row["perplexity"] = f"{valid.perplexity:,.2f}" if valid.perplexity < 1e5 else f"{valid.perplexity:.2e}"
    if valid.bits_per_byte is not None:
        row["bits/byte"] = f"{valid.bits_per_byte:.3f}"
    return row | {name: f"{value:.2f}" for name, value in scores.items()}


def fitting(names: Sequence[str], width: int) -> tuple[list[str], list[str]]:
    """Split the names: first the names whose columns fit into a width, then the rest.

    >>> fitting(["train loss", "eval loss", "accuracy"], 35)
    (['train loss', 'eval loss'], ['accuracy'])
    """
    n, used = 0, STEP + len(" *")
    while n < len(names) and used + column(names[n]) <= width:
        used += column(names[n])
        n += 1
    return list(names[:n]), list(names[n:])


def aligned(step: str, names: Sequence[str], values: Sequence[str]) -> str:
    """Format a row of values, right-aligned in their columns.

    >>> aligned("100", ["eval loss"], ["2.5000"])
    '    100     2.5000'
    """
    return f"{step:>{STEP}}" + "".join(f"{value:>{column(name)}}" for name, value in zip(names, values, strict=True))


def column(name: str) -> int:
    """Return the width of the column with this name."""
    return max(len(name), 7) + 2


def clock(seconds: float) -> str:
    """Return minutes and seconds, as `4:05`, or hours too, as `1:04:05`.

    >>> clock(65), clock(3725)
    ('1:05', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
