"""Results in notebooks: tables of named values, matrices of coloured cells, and maps of attention heads (SVG)."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from glassformer.common.figures import GREY, MASKED, SIGNS, WEIGHTS

PLAIN = "border-collapse: collapse; text-align: left"
BLUE, ORANGE = "25, 92, 185", "176, 84, 14"
CELL, LONGEST, LEAST = 11, 14, 0.02
"""Size of a cell in pixels, longest label in characters, smallest weight with a tooltip, of `head_maps`."""


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
    """Return a table of coloured cells: blue for positive and orange for negative values, darkest from ±`limit` on.

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


class Layer(NamedTuple):
    """The attention weights of the heads of a layer, with the tokens of rows and columns."""

    name: str
    heads: Sequence[Sequence[Sequence[float]]]
    rows: Sequence[str]
    columns: Sequence[str]


def head_maps(layers: Sequence[Layer]) -> str:
    """Return the maps of all heads as SVG: a row of maps per layer, with tokens, a scale, and weights as tooltips.

    A weight of exactly 0 is grey: a mask hides this key, or the softmax has rounded the weight to 0. Weights below
    `LEAST` have no tooltip.
    """
    y, width, parts = 34.0, 420.0, list[str]()
    for layer in layers:
        rows, columns = (list(map(visible, texts)) for texts in (layer.rows, layer.columns))
        left, top = (8 + 6.2 * max(map(len, texts), default=0) for texts in (rows, columns))
        wide, high = CELL * len(layer.columns), CELL * len(layer.rows)
        parts.append(_text(0, y, f"{layer.name}: rows are queries, columns are keys", fill=GREY))
        for i, name in enumerate(rows):
            parts.append(_text(left - 4, y + top + 26 + CELL * (i + 0.8), name, anchor="end"))
        for number, weights in enumerate(layer.heads):
            x = left + number * (wide + 14)
            parts.append(_text(x, y + 16, f"head {number}"))
            for j, name in enumerate(columns):
                parts.append(_text(x + CELL * (j + 0.8), y + top + 22, name, turn=True))
            parts.append(f'<g transform="translate({x:.0f} {y + top + 26:.0f})">{_map(weights, rows, columns)}</g>')
        y += top + high + 50
        width = max(width, left + len(layer.heads) * (wide + 14))
    scale = "".join(_box(60 + 22 * i, 4, 22, colour) for i, colour in enumerate(WEIGHTS)) + _box(220, 4, 14, MASKED)
    legend = _text(0, 13, "weight 0") + scale + _text(174, 13, "1") + _text(238, 13, "exactly 0, by the mask")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{y:.0f}" font-size="10" '
        'font-family="DejaVu Sans Mono, monospace"><rect width="100%" height="100%" fill="white"/>'
        f"{legend}{''.join(parts)}</svg>"
    )


def visible(token: str) -> str:
    """Return a token in printable form: signs for spaces and line ends, codes for control characters; cut to `LONGEST`.

    >>> visible(" the"), visible("a\\n"), visible("\\x00")
    ('␣the', 'a↵', '<U+0000>')
    """
    shown = "".join(SIGNS.get(c, c if c.isprintable() else f"<U+{ord(c):04X}>") for c in token)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def _map(weights: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str]) -> str:
    cells = [f'<rect width="{CELL * len(columns)}" height="{CELL * len(rows)}" fill="{MASKED}"/>']
    for i, line in enumerate(weights):
        for j, weight in enumerate(line):
            if weight > 0:
                tip = f"{rows[i]} ({i}) → {columns[j]} ({j}): {weight:.3f}" if weight >= LEAST else ""
                cells.append(_box(CELL * j, CELL * i, CELL, shade(weight), tip))
    return "".join(cells)


def shade(weight: float) -> str:
    """Return the colour of a weight from 0 to 1.

    >>> shade(0.0), shade(0.5), shade(0.625)
    ('#f8fafd', '#4795e7', '#3278d3')
    """
    place = min(1.0, max(0.0, weight)) * (len(WEIGHTS) - 1)
    first = min(len(WEIGHTS) - 2, int(place))
    low, high = (bytes.fromhex(colour[1:]) for colour in WEIGHTS[first : first + 2])
    return "#" + bytes(round(a + (b - a) * (place - first)) for a, b in zip(low, high, strict=True)).hex()


def _box(x: float, y: float, width: float, colour: str, tip: str = "") -> str:
    inside = f"><title>{escape(tip)}</title></rect>" if tip else "/>"
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{CELL}" fill="{colour}"{inside}'


def _text(x: float, y: float, text: str, *, anchor: str = "start", fill: str = "#222", turn: bool = False) -> str:
    turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"{turned}>{escape(text)}</text>'


def numbers(values: Sequence[Sequence[float]]) -> list[list[tuple[str, str]]]:
    """Return the argument `shown` of `matrix` with which the cells show their values."""
    return [[(f"{x + 0.0:.2f}".replace("-0.00", "0.00"), f"{x:.3f}") for x in line] for line in values]


def _cell(value: float, limit: float, text: str, tip: str) -> str:
    """Return a cell of `matrix`; the text is white on a dark colour.

    >>> _cell(-0.25, 1.0, "<", "")
    '<td title="" style="min-width: 1.4em; background: rgba(176, 84, 14, 0.250); padding: 0.1em 0.4em; text-align:
    center">&lt;</td>'
    """
    if math.isnan(value):
        return "<td></td>"
    share = min(1.0, abs(value) / limit)
    style = f"min-width: 1.4em; background: rgba({BLUE if value >= 0 else ORANGE}, {share:.3f})"
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
