"""Tables of results: aligned text for a terminal, and Markdown for the documentation."""

from collections.abc import Sequence

from results import Result, Row

Table = list[list[str]]
"""Rows of cells; the first row is the header."""


def facts(result: Result) -> str:
    """Return one line with the date, the machine, its rates, and the number of rounds."""
    made = ", ".join(result.made.values())
    rounds = max((len(row.seconds) for row in result.rows), default=0)
    parts = [made, f"{rounds} round{'s' * (rounds != 1)}"]
    if result.share == "matrix products":
        rates = ", ".join(
            f"{name} {result.rates[name] / 1e9:,.0f} GFLOP/s" for name in ("fp32", "bf16") if name in result.rates
        )
        parts.append(f"matrix products: {rates}")
    if result.share == "memory bandwidth":
        parts.append(f"copy: {result.rates['copy'] / 1e9:,.1f} GB/s")
    return "; ".join(parts)


def tables(result: Result) -> list[Table]:
    """Return the table of all rows, and that of the fastest setting of each candidate."""
    whole = [_header(result), *(_cells(result, row, result.ratio_of(row)) for row in result.ordered)]
    if not result.picks_best:
        return [whole]
    best = [_header(result), *(_cells(result, row, ratio) for row, ratio in result.best())]
    best[0][0] = "fastest setting of each"
    return [whole, best]


def failures(result: Result) -> list[str]:
    """Return one sentence per candidate that failed."""
    failed = [row for row in result.rows if not row.seconds]
    return [f"{row.name}{', ' * bool(row.setting)}{row.setting} failed: {row.error}" for row in failed]


def _header(result: Result) -> list[str]:
    has_settings = any(row.setting for row in result.rows)
    columns = ["", "setting"] if has_settings else [""]
    columns += ["time", *([f"{result.work}/s"] if result.work else [])]
    return [*columns, *([f"of {result.share}"] if result.share else []), "time ratio", "peak memory"]


def _cells(result: Result, row: Row, ratio: float | None) -> list[str]:
    cells = [row.name, row.setting] if any(one.setting for one in result.rows) else [row.name]
    if not row.seconds:
        return [*cells, "failed", *[""] * (len(_header(result)) - len(cells) - 1)]
    share = result.share_of(row)
    cells.append(_time(row.median))
    if result.work:
        cells.append(_digits(row.facts["amount"] / row.median))
    if result.share:
        cells.append("" if share is None else f"{share:.0%}")
    return [*cells, "" if ratio is None else f"{ratio:.2f}", f"{row.peak_bytes / 1e6:,.0f} MB"]


def _time(seconds: float) -> str:
    """Format seconds with three digits.

    >>> _time(0.0412), _time(1.584), _time(276.2)
    ('41.2 ms', '1.58 s', '276 s')
    """
    return f"{_digits(seconds)} s" if seconds >= 1 else f"{_digits(1000 * seconds)} ms"


def _digits(number: float) -> str:
    """Format a number with at least three digits.

    >>> _digits(18369.2), _digits(41.81), _digits(0.0123)
    ('18,369', '41.8', '0.0123')
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:#.3g}"


def as_text(table: Table) -> str:
    """Align the columns: names at the left, numbers at the right."""
    n_names = _n_names(table)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = (
            cell.ljust(width) if place < n_names else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_markdown(table: Table) -> str:
    """Return a table of Markdown."""
    n_names = _n_names(table)
    rule = ["---" if place < n_names else "---:" for place in range(len(table[0]))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [table[0], rule, *table[1:]])


def _n_names(table: Sequence[Sequence[str]]) -> int:
    return 2 if "setting" in table[0] else 1
