"""Human-readable durations, counts and sizes; results on a terminal."""

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours.

    >>> duration(8.41), duration(75), duration(5400)
    ('8.4 s', '1 min 15 s', '1 h 30 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if seconds < 3599.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest:02} min"


def plural(n: int, noun: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "file"), plural(1200, "file")
    ('1 file', '1,200 files')
    """
    return f"{n:,} {noun}{'s' * (n != 1)}"


def count(n: int) -> str:
    """Format a count with one decimal and the suffix k, M or G.

    >>> count(950), count(63_082_496), count(1_234)
    ('950', '63.1 M', '1.2 k')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= 0.99995 * size:
            return f"{n / size:.1f} {unit}"
    return str(n)


def size(n_bytes: float) -> str:
    """Format a number of bytes with one decimal and a binary unit.

    >>> size(512), size(5 * 2**20)
    ('512 bytes', '5.0 MiB')
    """
    for unit, n in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n_bytes >= n:
            return f"{n_bytes / n:,.1f} {unit}"
    return f"{n_bytes:,.0f} bytes"


def table(rows: Sequence[Sequence[str]], width: int | None = None, n_words: int = 1) -> str:
    """Align the columns of a table: words on the left in the first `n_words` columns, numbers on the right.

    The first row has the names of the columns. If the lines are longer than `width`, rows and columns are exchanged; if
    these lines are too long as well, each row is a paragraph with the names of its values.

    >>> rows = [["", "bytes", "tokens"], ["training", "1,980", "450"]]
    >>> print(table(rows))
              bytes  tokens
    training  1,980     450
    >>> print(table(rows, 20))
            training
    bytes      1,980
    tokens       450
    >>> print(table(rows, 15))
    training  bytes
      1,980, tokens
      450
    """
    for cells, n_left in ((rows, n_words), (list(zip(*rows, strict=True)), 1)):
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if place < n_left else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]
        if width is None or max(map(len, lines)) <= width:
            return "\n".join(lines)
    names, *records = rows
    paragraphs = []
    for name, *values in records:
        shown = ", ".join(f"{of} {value}" for of, value in zip(names[1:], values, strict=True))
        paragraphs.append(wrapped(f"{name}  {shown}", width or 0, 2))
    return "\n".join(paragraphs)


def output_width() -> int | None:
    """Return the width of the terminal that shows standard output; None if it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def show(text: str, indent: int | None = None) -> None:
    """Print a result on standard output; on a terminal, wrap its long lines at words (`wrapped`)."""
    if (width := output_width()) is not None:
        text = wrapped(text, width, indent)
    print(text)


def wrapped(text: str, width: int, indent: int | None = None) -> str:
    """Wrap long lines at words; continued lines start at `indent`, by default at the last column in the left 60 %.

    >>> print(wrapped("ok  cache  one long detail", 20))
    ok  cache  one long
               detail
    """
    lines = []
    for line in text.split("\n"):
        columns = [gap.end() for gap in re.finditer(r"^ *|\S {2,}", line) if gap.end() <= 0.6 * width]
        after = " " * (columns[-1] if indent is None else indent)
        parts = textwrap.wrap(line, width, subsequent_indent=after, break_on_hyphens=False, break_long_words=False)
        lines += parts or [""]
    return "\n".join(lines)
