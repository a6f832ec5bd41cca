"""HTML of results in notebooks: tables of named values, and matrices of coloured cells."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

PLAIN = "border-collapse: collapse; text-align: left"


def table(values: Mapping[str, Any], title: str = "") -> str:
    """Return a table with one row per value; values of None are left out.

    >>> table({"loss": 2.5, "smoothed_loss": None})
    '<table style="border-collapse: collapse; text-align: left"><tr><th>loss</th><td>2.5</td></tr></table>'
    """
    head = f"<caption>{escape(title)}</caption>" if title else ""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(_number(value))}</td></tr>"
        for name, value in values.items()
        if value is not None
    )
    return f'<table style="{PLAIN}">{head}{rows}</table>'


def frame(rows: Sequence[Mapping[str, Any]], title: str = "") -> str:
    """Return a table with one column per key and one row per mapping; columns without a value are left out."""
    names = [name for name in (rows[0] if rows else ()) if any(row[name] is not None for row in rows)]
    head = f"<caption>{escape(title)}</caption>" if title else ""
    head += f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in names)}</tr>"
    body = "".join("<tr>" + "".join(f"<td>{escape(_number(row[n]))}</td>" for n in names) + "</tr>" for row in rows)
    return f'<table style="{PLAIN}">{head}{body}</table>'


def matrix(
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    *,
    limit: float = 1.0,
    texts: Sequence[Sequence[str]] | None = None,
    tips: Sequence[Sequence[str]] | None = None,
    has_texts: bool = False,
) -> str:
    """Return a table of coloured cells: blue for positive and red for negative values, darkest from ±`limit` on.

    NaN is an empty cell. The tooltip of a cell is its value, or `tips`. `texts` are written in the cells; with
    `has_texts`, the values are.
    """
    head = "".join(f'<th style="writing-mode: vertical-rl; text-align: right">{escape(name)}</th>' for name in columns)
    caption = f'<caption style="text-align: left; white-space: nowrap">{escape(title)}</caption>'
    lines = [f"{caption}<tr><th></th>{head}</tr>"]
    for i, (name, line) in enumerate(zip(rows, values, strict=True)):
        cells = ""
        for j, value in enumerate(line):
            text = f"{value + 0.0:.2f}".replace("-0.00", "0.00") if has_texts else ""
            text = text if texts is None else texts[i][j]
            cells += _cell(value, limit, text, f"{value:.3f}" if tips is None else tips[i][j])
        lines.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
    return f'<table style="{PLAIN}">{"".join(lines)}</table>'


def _cell(value: float, limit: float, text: str, tip: str) -> str:
    """Return a cell of `matrix`; the text is white on a dark colour.

    >>> _cell(-0.25, 1.0, "<", "")
    '<td title="" style="min-width: 1.4em; background: rgba(180, 50, 30, 0.250); padding: 0.1em 0.4em; text-align:
    center">&lt;</td>'
    """
    if math.isnan(value):
        return "<td></td>"
    share = min(1.0, abs(value) / limit)
    style = "; padding: 0.1em 0.4em; text-align: center" if text else ""
    style += "; color: white" if text and share > 0.7 else ""
    colour = f"rgba({'0, 90, 160' if value >= 0 else '180, 50, 30'}, {share:.3f})"
    return f'<td title="{escape(tip)}" style="min-width: 1.4em; background: {colour}{style}">{escape(text)}</td>'


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
