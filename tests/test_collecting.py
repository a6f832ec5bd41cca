"""A file that imports a large library at its top is refused; one that names it with `late` is not."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import late
from collecting import Collecting


@pytest.mark.parametrize("imported", ["sklearn", "json"])
def test_a_large_library_is_refused(imported: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    collector: Any = SimpleNamespace(nodeid="tests/a.py")
    report: Any = SimpleNamespace(outcome="passed", result=[1], longrepr=None)
    steps = Collecting().pytest_make_collect_report(collector)
    next(steps)
    monkeypatch.setitem(sys.modules, imported, ModuleType(imported) if imported == "sklearn" else sys.modules["json"])
    with pytest.raises(StopIteration):
        steps.send(report)
    refused = "tests/a.py imports sklearn: import it in a test, or with `late`"
    expected = ("failed", [], refused) if imported == "sklearn" else ("passed", [1], None)
    assert (report.outcome, report.result, report.longrepr) == expected


def test_a_late_module_is_imported_at_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    module = late.module("colorsys")
    assert not hasattr(module, "__test__") and "colorsys" not in sys.modules
    assert module.rgb_to_hsv(0, 0, 0) == (0, 0, 0) and "colorsys" in sys.modules
