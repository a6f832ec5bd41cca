"""The files of `benchmarks/`, imported by name, and a result as they write it."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"


def load(name: str) -> ModuleType:
    module = importlib.import_module(name)
    assert Path(str(module.__file__)).parent == BENCHMARKS
    return module


def result(**changes: Any) -> Any:
    results = load("results")

    def row(name: str, setting: str, seconds: list[float]) -> Any:
        return results.Row(name, setting, setting, seconds, {"amount": 10.0, "flops": 1e9}, 5_000_000)

    rows = [
        row("glassformer", "fp32", [2.0, 1.0, 4.0]),
        row("peer", "fp32", [3.0, 2.0, 4.0]),
        row("glassformer", "bf16", [1.0, 1.0, 1.0]),
        results.Row("peer", "bf16", "bf16", error="no bf16"),
    ]
    values = {
        "title": "A title",
        "work": "tokens",
        "share": "matrix products",
        "reference": "glassformer",
        "picks_best": True,
        "made": {"date": "2026-01-01", "processor": "2 cores"},
        "rates": {"fp32": 1e9, "bf16": 2e9, "copy": 1e9},
        "rows": rows,
    }
    return results.Result(**values | changes)
