"""HTML of results in notebooks: tables of named values, and matrices of coloured cells."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

PLAIN = "border-collapse: collapse; text-align: left"
BLUE, RED = "0, 90, 160", "180, 50, 30"


def table(values: Mapping[str, Any], title: str = "") -> str:
    """Return a table with one row per value; values of None are left out.

    >>> table({"loss": 2.5, "smoothed_loss": None})
    '<table style="border-collapse: collapse; text-align: left"><tr><th>loss</th><td>2.5</td></tr></table>'
    """
    return _table(
        title,
        *(f"<th>{escape(name)}</th><td>{_number(value)}</td>" for name, value in values.items() if value is not None),
    )


def frame(rows: Sequence[Mapping[str, Any]], title: str = "") -> str:
    """Return a table with one column per key and one row per mapping; columns without a value are left out."""
    names = [name for row in rows[:1] for name in row if any(row[name] is not None for row in rows)]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    return _table(title, head, *("".join(f"<td>{_number(row[name])}</td>" for name in names) for row in rows))


def _table(title: str, *rows: str) -> str:
    head = f"<caption>{escape(title)}</caption>" if title else ""
    return f'<table style="{PLAIN}">{head}{"".join(f"<tr>{row}</tr>" for row in rows)}</table>'


def matrix(
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    *,
    limit: float = 1.0,
    shown: Sequence[Sequence[tuple[str, str]]] | None = None,
) -> str:
    """Return a table of coloured cells: blue for positive and red for negative values, darkest from ±`limit` on.

    NaN is an empty cell. `shown` has the text and the tooltip of each cell; by default, only tooltips show the values.
    """
    head = "".join(f'<th style="writing-mode: vertical-rl; text-align: right">{escape(name)}</th>' for name in columns)
    caption = f'<caption style="text-align: left; white-space: nowrap">{escape(title)}</caption>'
    lines = [f"{caption}<tr><th></th>{head}</tr>"]
    shown = shown or [[("", f"{value:.3f}") for value in line] for line in values]
    for name, line, of_line in zip(rows, values, shown, strict=True):
        cells = (_cell(value, limit, *texts) for value, texts in zip(line, of_line, strict=True))
        lines.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>")
    return f'<table style="{PLAIN}">{"".join(lines)}</table>'


def numbers(values: Sequence[Sequence[float]]) -> list[list[tuple[str, str]]]:
    """Return the argument `shown` of `matrix` with which the cells show their values."""
    return [[(f"{x + 0.0:.2f}".replace("-0.00", "0.00"), f"{x:.3f}") for x in line] for line in values]


def _cell(value: float, limit: float, text: str, tip: str) -> str:
    """Return a cell of `matrix`; the text is white on a dark colour.

    >>> _cell(-0.25, 1.0, "<", "")
    '<td title="" style="min-width: 1.4em; background: rgba(180, 50, 30, 0.250); padding: 0.1em 0.4em; text-align:
    center">&lt;</td>'
    """
    if math.isnan(value):
        return "<td></td>"
    share = min(1.0, abs(value) / limit)
    style = f"min-width: 1.4em; background: rgba({BLUE if value >= 0 else RED}, {share:.3f})"
    if text:
        style += "; padding: 0.1em 0.4em; text-align: center"
        if share > 0.7:
            style += "; color: white"
    return f'<td title="{escape(tip)}" style="{style}">{escape(text)}</td>'


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if type(value) is int:
        return f"{value:,}"
    return escape(str(value))
