"""Results of a benchmark: the measured numbers, the values of its table, and their JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

FORMAT = 1
Share = Literal["", "matrix products", "memory bandwidth"]


@dataclass(frozen=True)
class Row:
    """The measurements of one candidate; every other value of the table follows from them."""

    name: str
    setting: str = ""
    precision: str = ""
    seconds: list[float] = field(default_factory=list)
    """Seconds per call, one number per round; empty if the candidate failed."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """`amount`, `flops` and `bytes_read` per call, `parameters`, `threads`."""
    peak_bytes: int = 0
    error: str = ""

    @property
    def median(self) -> float:
        """Median of the seconds per call."""
        return median(self.seconds)

    @property
    def per_unit(self) -> list[float]:
        """Seconds per unit of work, one number per round."""
        return [one / self.facts["amount"] for one in self.seconds]


@dataclass(frozen=True)
class Result:
    """A benchmark on one machine."""

    title: str
    work: str
    """Unit of the work, such as tokens; empty if only times are compared."""
    share: Share
    """Rate of the machine that the rows are compared with."""
    reference: str
    """Name of the row that ratios are relative to, in every setting."""
    picks_best: bool
    """True for a second table: the fastest setting of each candidate."""
    made: Mapping[str, str]
    """Date, machine and versions."""
    rates: Mapping[str, float]
    """FLOP/s of matrix products in fp32 and bf16, and bytes/s of a copy; empty without a share."""
    rows: Sequence[Row]

    @property
    def measured(self) -> list[Row]:
        return [row for row in self.rows if row.seconds]

    @property
    def ordered(self) -> list[Row]:
        """Rows of one setting after another: the reference, the others from the fastest on, and those that failed."""
        settings = list(dict.fromkeys(row.setting for row in self.rows))

        def place(row: Row) -> tuple[int, bool, bool, float]:
            is_other = row.name != self.reference
            return settings.index(row.setting), is_other, not row.seconds, median(row.per_unit or [0.0])

        return sorted(self.rows, key=place)

    def share_of(self, row: Row) -> float | None:
        """Return the fraction of the machine's rate that a row reaches."""
        if self.share == "matrix products" and row.facts["flops"]:
            return row.facts["flops"] / row.median / self.rates[row.precision]
        if self.share == "memory bandwidth" and row.facts["bytes_read"]:
            return row.facts["bytes_read"] / row.median / self.rates["copy"]
        return None

    def ratio_of(self, row: Row) -> float | None:
        """Return the time per unit relative to the reference of the same setting, the median over the rounds."""
        own = [one for one in self.measured if (one.name, one.setting) == (self.reference, row.setting)]
        return ratio(row, own[0]) if own and row.seconds else None

    def best(self) -> list[tuple[Row, float | None]]:
        """Return the fastest setting of each candidate, with its ratio to the fastest one of the reference.

        The reference is first; the other candidates follow from the fastest on.
        """
        fastest: dict[str, Row] = {}
        for row in self.measured:
            if row.name not in fastest or row.median < fastest[row.name].median:
                fastest[row.name] = row
        own = fastest.get(self.reference)
        rows = sorted(fastest.values(), key=lambda row: (row.name != self.reference, row.median))
        return [(row, None if own is None else ratio(row, own)) for row in rows]


def ratio(row: Row, reference: Row) -> float:
    """Return the median, over the rounds, of the ratio of the times per unit of work.

    >>> ratio(Row("a", seconds=[2.0, 6.0], facts={"amount": 2}), Row("b", seconds=[1.0, 1.0], facts={"amount": 1}))
    2.0
    """
    return median(a / b for a, b in zip(row.per_unit, reference.per_unit, strict=True))


def read(path: Path) -> dict[str, Result]:
    """Read results by the name of their benchmark; empty if there is no file."""
    if not path.exists():
        return {}
    stored = json.loads(path.read_text("utf-8"))
    if stored.get("format") != FORMAT:
        raise SystemExit(f"{path}: expected format {FORMAT}, got {stored.get('format')}; measure again into a new file")
    return {name: _result(values) for name, values in stored["benchmarks"].items()}


def write(path: Path, results: Mapping[str, Result]) -> None:
    """Write results, and keep those of other benchmarks in the file."""
    both = read(path) | dict(results)
    stored = {"format": FORMAT, "benchmarks": {name: asdict(both[name]) for name in sorted(both)}}
    path.write_text(json.dumps(_rounded(stored), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _result(values: dict[str, Any]) -> Result:
    return Result(**values | {"rows": [Row(**row) for row in values["rows"]]})


def _rounded(value: Any) -> Any:
    """Round floats to six significant digits, so that the file stays short."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
