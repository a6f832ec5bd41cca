"""Show the progress of the tests, and the processor time of each folder: `pytest --progress`, as in `make test`.

A line has the time, the number of finished tests and the time left. A terminal shows one line, which changes; a file
gets a line every half a minute. A failure shows at once, with the command that repeats it. At the end, a table has the
processor time of each folder, child processes included, beside the budget in `tests/draw.toml`.
"""

import resource
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping
from typing import Any

import pytest

from draw import table

EVERY_S = {True: 0.2, False: 30.0}
"""Seconds between two lines of progress, in a terminal and in a file."""
OTHERS = "start, collection"


def processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    of_children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + of_children.ru_utime + of_children.ru_stime


def folder_of(name: str) -> str:
    """Return the folder of a test inside `tests`; other tests are in "tests" and "src".

    >>> folder_of("tests/nn/test_masks.py::test_a_window"), folder_of("tests/test_api.py::test_train")
    ('nn', 'tests')
    """
    first, *inside = name.partition("::")[0].split("/")
    return inside[0] if first == "tests" and len(inside) > 1 else first


def clock(seconds: float) -> str:
    """Return minutes and seconds.

    >>> clock(75.2)
    '1:15'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def report(
    spent: Mapping[str, float], n_tests: Mapping[str, int], left_out: Mapping[str, int], budget: Mapping[str, int]
) -> Iterable[str]:
    """Yield the lines of the table, which marks a folder that needs more than its budget."""
    yield f"{'folder':<18} {'tests':>6} {'not drawn':>10} {'CPU-s':>7} {'budget':>7}"
    for name in sorted(spent, key=lambda name: -spent[name]):
        allowed = budget.get(name)
        counts = f"{name:<18} {n_tests.get(name) or '':>6} {left_out.get(name) or '':>10}"
        over = "  over budget" if allowed and spent[name] > allowed else ""
        yield f"{counts} {spent[name]:>7.1f} {allowed or '':>7}{over}"
    total = [sum(part.values()) for part in (n_tests, left_out, spent, budget)]
    yield f"{'all':<18} {total[0]:>6} {total[1] or '':>10} {total[2]:>7.1f} {total[3] or '':>7}"


class Costs:
    """Measure the processor time of each test, in the process that runs it."""

    def __init__(self) -> None:
        self.before = 0.0
        self.left_out = Counter[str]()

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.left_out.update(folder_of(item.nodeid) for item in items)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        self.before = processor_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        found = yield
        now = processor_seconds()
        found.cpu_s, self.before = now - self.before, now  # an attribute that travels to the first process
        return found

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = dict(self.left_out)


class Progress:
    """Show how far the tests are, and at the end what they cost."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.budget, self.began, self.shown = table()["budget"], time.monotonic(), 0.0
        self.spent: dict[str, float] = defaultdict(float)
        self.done, self.left_out, self.all = Counter[str](), Counter[str](), Counter[str]()
        self.n_failed = 0

    @property
    def terminal(self) -> Any:
        return self.config.pluginmanager.getplugin("terminalreporter")

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.left_out.update(folder_of(item.nodeid) for item in items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.started(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self.started(ids)

    def started(self, names: Iterable[str]) -> None:
        self.all = self.all or Counter(map(folder_of, names))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.left_out = Counter(getattr(node, "workeroutput", {}).get("left_out", {}))  # equal in all processes

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_report_teststatus(self) -> Generator[None, Any, Any]:
        category, *_ = yield
        return category, "", ""  # no letter for each test

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = folder_of(report.nodeid)
        self.spent[folder] += getattr(report, "cpu_s", 0.0)
        if report.failed:
            self.n_failed += 1
            self.terminal.ensure_newline()
            case = getattr(report, "context", None)  # of a table of cases in one test
            self.terminal.write_line(f"FAILED {report.nodeid}{f' [{case.msg}]' if case else ''}")
            self.terminal.write_line(f"  repeat it: .venv/bin/python -m pytest '{report.nodeid}'")
        if report.when == "teardown":
            self.done[folder] += 1
            self.show(folder)

    def show(self, folder: str) -> None:
        """Write the line of progress, if it is time."""
        now = time.monotonic()
        if now - self.shown < EVERY_S[self.terminal.isatty()]:
            return
        self.shown = now
        # A test weighs what its folder may take, over the number of the folder's tests.
        weight = {name: self.budget.get(name, 10) / n for name, n in self.all.items()}
        whole = sum(weight[name] * n for name, n in self.all.items())
        done = sum(weight[name] * n for name, n in self.done.items()) / whole
        left = (now - self.began) * (1 - done) / done
        line = f"{clock(now - self.began):>6}  {self.done.total():,} of {self.all.total():,} tests, "
        line += f"{folder} {self.done[folder]} of {self.all[folder]}, {self.n_failed} failed"
        line += f"; about {clock(left)} left" if done > 0.05 else ""
        if self.terminal.isatty():
            self.terminal.rewrite(line, erase=True)
        else:
            self.terminal.write_line(line)

    def pytest_terminal_summary(self) -> None:
        self.terminal.section("processor time")
        others = {OTHERS: max(0.0, processor_seconds() - sum(self.spent.values()))}
        budget = self.budget if self.config.getoption("draw") else {}  # it is that of the short run
        for line in report(self.spent | others, self.done, self.left_out, budget):
            self.terminal.write_line(line)
