"""The table of a sweep: a row per variant, with its mean over the seeds, the difference to the baseline, a verdict."""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glassformer.common import notebook
from glassformer.common.formatting import table
from glassformer.evaluation import metrics
from glassformer.evaluation.verdict import Verdict, decimals, mean_and_deviation

COLUMNS = ("variant", "seeds", "mean", "error", "difference", "error_of_difference", "p", "verdict")
"""Columns of the CSV file and keys of the JSON: the errors are standard errors."""
FILE = "table.json"
"""The file of the table, without the curves, in the folder of a sweep. It is written after every run."""


@dataclass
class SweepTable:
    """The values of all runs by variant and seed, and the verdicts. `print` shows it as a text."""

    metric: str
    baseline: str
    values: dict[str, dict[int, float]]
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    """The sentence of a failed run, by variant."""
    curves: dict[str, dict[int, list[tuple[int, float]]]] = field(default_factory=dict)
    """Steps and values of the evaluations of each run, by variant and seed."""
    note: str = ""
    """A sentence below the table."""
    folders: dict[str, str] = field(default_factory=dict)
    """The folder of the runs of a variant, in that of the sweep; seed 0 is in its folder `seed-0`."""

    @property
    def higher_is_better(self) -> bool:
        return metrics.METRICS[self.metric].higher_is_better

    def add(self, label: str, seed: int, result: Mapping[str, Any]) -> str:
        """Put the result of a run into the table, and return it as a text."""
        if result["value"] is None:
            return self.fail(label, seed, f"{self.metric} is undefined")
        self.values[label][seed] = result["value"]
        self.curves.setdefault(label, {})[seed] = [(step, value) for step, value in result["curve"]]
        return f": {metrics.METRICS[self.metric].label} {result['value']:.{metrics.MAX_DECIMALS}f}"

    def fail(self, label: str, seed: int, sentence: str) -> str:
        """Keep why a run failed, and return it as a text."""
        self.errors[label] = f"seed {seed}: {sentence}"
        return f" failed: {sentence}"

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary with `COLUMNS` for each variant, the baseline first; unknown values are None.

        A variant without a verdict yet has its difference so far, but no p: p is of the planned looks only.
        """
        found, known = [], self.values[self.baseline]
        for label, of_seeds in self.values.items():
            values, verdict = list(of_seeds.values()), self.verdicts.get(label)
            row = dict.fromkeys(COLUMNS) | {"variant": label, "seeds": len(values)}
            if values:
                row["mean"], deviation = mean_and_deviation(values)
                row["error"] = deviation / math.sqrt(len(values)) if len(values) > 1 else None
            if label == self.baseline:
                row["verdict"] = "baseline"
            elif verdict is not None and verdict.n:
                row |= {"difference": verdict.difference, "error_of_difference": verdict.error}
                row |= {"p": verdict.p, "verdict": str(verdict)}
            elif self.baseline in self.errors:
                row["verdict"] = "not known: the baseline failed"
            elif pairs := [value - known[seed] for seed, value in of_seeds.items() if seed in known]:
                row["difference"], deviation = mean_and_deviation(pairs)
                row["error_of_difference"] = deviation / math.sqrt(len(pairs)) if len(pairs) > 1 else None
                row["verdict"] = "so far"
            if label in self.errors:
                row["verdict"] = f"failed: {self.errors[label]}"
            found.append(row)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the table for JSON, with the values of all seeds."""
        values = {label: {str(seed): value for seed, value in of.items()} for label, of in self.values.items()}
        return {
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "baseline": self.baseline,
            "rows": [row | {"values": values[row["variant"]]} for row in self.rows()],
        }

    def csv(self) -> str:
        """Return the rows as CSV."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows())
        return text.getvalue()

    def cells(self) -> list[list[str]]:
        """Return header and rows as texts; the last digit shown is the second digit of the smallest standard error."""
        rows = self.rows()
        errors = [row[name] for row in rows for name in ("error", "error_of_difference") if row[name]]
        digits = decimals(min(errors, default=0.001))
        cells = [["variant", "verdict", metrics.METRICS[self.metric].label, "±", "difference", "±", "p", "seeds"]]
        for row in rows:
            numbers = [_shown(row[name], f".{digits}f") for name in ("mean", "error")]
            numbers += [_shown(row["difference"], f"+.{digits}f"), _shown(row["error_of_difference"], f".{digits}f")]
            p = "<0.0001" if row["p"] is not None and row["p"] < 0.0001 else _shown(row["p"], ".2g")
            cells.append([row["variant"], row["verdict"] or "–", *numbers, p, str(row["seeds"])])
        return cells

    @property
    def legend(self) -> str:
        """The sentences below the table."""
        better = "higher" if self.higher_is_better else "lower"
        return f"± is the standard error; {better} is better" + f"\n{self.note}" * bool(self.note)

    def text(self, width: int | None = None) -> str:
        """Return the table as aligned text."""
        return f"{table(self.cells(), width, n_words=2)}\n{self.legend}"

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return notebook.frame(self.rows(), "sweep")


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
