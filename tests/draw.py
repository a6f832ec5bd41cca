"""The short run of the tests, `pytest --draw`: it runs a drawn part of the groups in `tests/draw.toml`, and all others.

The seed is the tree of the commit: equal code draws equal tests, and over many commits every test is drawn. `--seed`
gives another seed. A test that is drawn is the same test in every run: `pytest NAME` repeats it.
"""

import hashlib
import subprocess
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("draw.toml")


def table() -> dict[str, Any]:
    """Return `draw.toml`: the budget of each folder, and how many tests of each group are drawn."""
    return tomllib.loads(TABLE.read_text("utf-8"))


def seed_of_the_tree() -> int:
    """Return a number made of the tree of the commit; files that are not committed do not change it. Without git: 0."""
    given = subprocess.run(["git", "rev-parse", "HEAD^{tree}"], cwd=ROOT, capture_output=True, text=True)
    return int(given.stdout[:8], 16) if given.returncode == 0 else 0


def function_of(name: str) -> str:
    """Return the name of a test without its case.

    >>> function_of("tests/nn/test_masks.py::test_a_window[3-True]")
    'tests/nn/test_masks.py::test_a_window'
    """
    return name.partition("[")[0]


def number_of(seed: int, name: str) -> int:
    """Return a pseudo-random number of 64 bits."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest())


def drawn(names: Iterable[str], n: int, seed: int) -> set[str]:
    """Return n of the names of tests. Their functions take turns, so a function gives its second case after all others.

    Whether a test is drawn depends on the seed and on the names only, not on their order.

    >>> sorted(drawn(["a.py::one[1]", "a.py::one[2]", "a.py::two"], 2, seed=0))
    ['a.py::one[1]', 'a.py::two']
    """
    rank = {name: number_of(seed, name) for name in names}
    cases = defaultdict(list)
    for name in sorted(rank, key=rank.__getitem__):
        cases[function_of(name)].append(name)
    turn = {name: i for found in cases.values() for i, name in enumerate(found)}
    return set(sorted(rank, key=lambda name: (turn[name], rank[name]))[:n])


def groups() -> dict[tuple[str, ...], int]:
    """Return the groups of `draw.toml`, and how many tests of each are drawn."""
    found = table()
    together = {tuple(group["tests"]): group["draw"] for group in found["together"].values()}
    return {(name,): n for name, n in found["draw"].items()} | together


def left_out(names: Sequence[str], groups: Mapping[tuple[str, ...], int], seed: int) -> set[str]:
    """Return the tests that the short run leaves out.

    Args:
        names: of all collected tests.
        groups: the number of tests that are drawn of those of a `FILE`, or of the cases of a `FILE::FUNCTION`, or of
            several of these together. A function that is in a group does not count among the tests of its file.
        seed: of the draw.
    """
    group_of = {part: group for group in groups for part in group}
    members: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name in names:
        function = function_of(name)
        group = group_of.get(function) or group_of.get(function.partition("::")[0])
        if group:
            members[group].append(name)
    return {name for group, own in members.items() for name in set(own) - drawn(own, groups[group], seed)}


def is_reordered(file: str, seed: int) -> bool:
    """Return whether the products of a test file add in another order, as on another processor: a quarter of all."""
    files = TABLE.with_name("processors.txt").read_text("utf-8").splitlines()
    return file in files and number_of(seed, file) % 4 == 0


def unknown(names: Iterable[str]) -> Iterator[str]:
    """Yield the files and functions that are not in the tests."""
    for name in names:
        file, _, function = name.partition("::")
        path = ROOT / file
        if not path.exists() or (function and f"def {function.rpartition('::')[2]}(" not in path.read_text("utf-8")):
            yield name


class Deadline:
    """Skip the tests that would begin after a time."""

    def __init__(self, until: float) -> None:
        """Take the time in seconds since 1970."""
        self.until = until

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if time.time() > self.until:
            pytest.skip("the minutes of this run are over")


class Draw:
    """Leave out what is not drawn."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        out = left_out([item.nodeid for item in items], groups(), self.seed)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
        items[:] = [item for item in items if item.nodeid not in out]
