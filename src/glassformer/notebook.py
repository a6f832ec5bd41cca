"""HTML of results in notebooks: tables of named values, and matrices of weights."""

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


def matrix(weights: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str], title: str = "") -> str:
    """Return a table of weights from 0 to 1: a darker cell is a larger weight, and its tooltip is the value."""
    head = "".join(f'<th style="writing-mode: vertical-rl">{escape(name)}</th>' for name in columns)
    lines = [f"<caption>{escape(title)}</caption><tr><th></th>{head}</tr>"]
    for name, line in zip(rows, weights, strict=True):
        cells = "".join(
            f'<td title="{weight:.3f}" style="min-width: 1.4em; background: rgba(0, 90, 160, {weight:.3f})"></td>'
            for weight in line
        )
        lines.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
    return f'<table style="{PLAIN}">{"".join(lines)}</table>'


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
