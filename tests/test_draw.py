"""The draw of the short run: equal code draws equal tests, every group keeps some, and each test is drawn some time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import draw

NAMES = [f"tests/a.py::test_{name}[{case}]" for name in ("one", "two", "three") for case in range(10)]


WHOLE_RUN_ONLY = {"tests/test_site.py", "tests/cli/test_lineages.py"}
"""The build of the site, whose sources `test_pages_of_docs.py` reads, and recipes trained to their results."""


def test_the_table_names_what_exists() -> None:
    parts = [part for group in draw.groups() for part in group]
    assert not list(draw.unknown(parts)) and len(parts) == len(set(parts))
    assert {group[0] for group, n in draw.groups().items() if n == 0} == WHOLE_RUN_ONLY
    folders = {path.name for path in (draw.ROOT / "tests").iterdir() if path.is_dir() and list(path.rglob("test_*.py"))}
    assert folders | {"tests", "src"} == draw.table()["budget"].keys()


@pytest.mark.parametrize("group", ["tests/nowhere.py", "tests/test_draw.py::test_nothing"])
def test_an_unknown_group_is_found(group: str) -> None:
    assert list(draw.unknown([group])) == [group]


def test_a_draw_depends_on_the_seed_alone() -> None:
    assert draw.drawn(NAMES, 6, seed=1) == draw.drawn(NAMES[::-1], 6, seed=1) != draw.drawn(NAMES, 6, seed=2)


@pytest.mark.parametrize("n", [1, 3, 7, 40])
def test_functions_take_turns(n: int) -> None:
    found = draw.drawn(NAMES, n, seed=3)
    counts = [sum(draw.function_of(name).endswith(f"_{part}") for name in found) for part in ("one", "two", "three")]
    assert len(found) == min(n, len(NAMES)) and max(counts) - min(counts) <= 1


def test_every_test_is_drawn_at_some_time() -> None:
    assert set().union(*(draw.drawn(NAMES, 5, seed) for seed in range(60))) == set(NAMES)


def test_a_group_of_cases_is_apart_from_its_file() -> None:
    groups = {("tests/a.py::test_one",): 2, ("tests/a.py",): 1}
    out = draw.left_out([*NAMES, "tests/b.py::test_other"], groups, seed=0)
    kept = [name for name in NAMES if name not in out]
    assert sum("test_one" in name for name in kept) == 2 and len(kept) == 3
    assert "tests/b.py::test_other" not in out


def test_some_tests_of_several_files_are_drawn_together() -> None:
    groups = {("tests/a.py::test_one", "tests/b.py", "tests/c.py::test_x"): 2}
    names = [*NAMES, "tests/b.py::test_y", "tests/c.py::test_x", "tests/c.py::test_z"]
    out = draw.left_out(names, groups, seed=0)
    assert len(out) == 10 + 2 - 2 and "tests/c.py::test_z" not in out and not [x for x in out if "test_two" in x]


def test_a_run_prints_its_seed_its_costs_and_how_to_repeat_a_failure(tmp_path: Path) -> None:
    bad = tmp_path / "test_bad.py"
    bad.write_text("def test_one():\n    assert 1 == 2\n")
    options = ["-q", "-p", "conftest", "-p", "no:cacheprovider", "--draw", "--seed", "5", "--progress"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(bad)],
        cwd=draw.ROOT,
        env=os.environ | {"PYTHONPATH": str(draw.ROOT / "tests")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "SEED=5 draws the same again" in done.stdout and "CPU-s" in done.stdout
    [line] = [line for line in done.stdout.splitlines() if "repeat it: .venv/bin/python -m pytest" in line]
    assert line.endswith("::test_one'")


def test_a_test_after_the_last_minute_is_skipped() -> None:
    draw.Deadline(time.time() + 60).pytest_runtest_setup()
    with pytest.raises(pytest.skip.Exception):
        draw.Deadline(time.time() - 1).pytest_runtest_setup()
