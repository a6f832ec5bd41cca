"""The documents and the lists of tests name tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from glassformer.apps.doctor import CHECKS

TESTS = Path(__file__).parent
PITFALLS = (TESTS.parent / "docs" / "pitfalls.md").read_text("utf-8")
SECTIONS = {
    int(number): text for number, text in re.findall(r"^(\d+)\. (.*(?:\n    - .*)*)", PITFALLS, re.MULTILINE)
}  # a numbered pitfall and the tests listed below it


def functions(path: Path) -> list[str]:
    """Return the names of the test functions of a file."""
    body = ast.parse(path.read_text("utf-8")).body
    return [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


@cache
def existing() -> set[str]:
    return {f"{path.relative_to(TESTS)}::{name}" for path in TESTS.rglob("test_*.py") for name in functions(path)}


def listed(number: int) -> list[str]:
    return re.findall(r"^    - `(.+)`$", SECTIONS[number], re.MULTILINE)


def test_pitfalls_are_numbered_in_order() -> None:
    assert list(SECTIONS) == list(range(1, len(SECTIONS) + 1))
    assert len(re.findall(r"^ *(?:\d+\.|-) ", PITFALLS, re.MULTILINE)) == len(SECTIONS) + sum(
        len(listed(number)) for number in SECTIONS
    )


def test_every_pitfall_lists_tests_that_exist() -> None:
    for number in SECTIONS:
        assert listed(number), f"pitfall {number} has no test"
        assert set(listed(number)) <= existing(), f"pitfall {number} lists tests that do not exist"


def test_every_test_of_a_pitfall_is_listed_under_its_number() -> None:
    for test in existing():
        if match := re.search(r"::test_pitfall_(\d+)_", test):
            assert test in listed(int(match[1])), f"{test} is missing under {int(match[1])} in docs/pitfalls.md"


def test_every_cited_pitfall_number_exists() -> None:
    cited = [
        (path, int(number))
        for path in TESTS.rglob("*.py")
        for numbers in re.findall(r"\b[Pp]itfalls? (\d+(?:(?:, | and )\d+)*)", path.read_text("utf-8"))
        for number in re.findall(r"\d+", numbers)
    ]
    assert cited
    for path, number in cited:
        assert number in SECTIONS, f"{path} cites pitfall {number}, which docs/pitfalls.md does not have"


def test_every_doctor_check_named_by_a_pitfall_exists() -> None:
    named = {
        name
        for text in SECTIONS.values()
        for names in re.findall(r"\((`[\w-]+`(?:, `[\w-]+`)*)\)$", text, re.MULTILINE)
        for name in re.findall(r"[\w-]+", names)
    }
    assert named and named <= {check.name for check in CHECKS}


@pytest.mark.parametrize("name", ["quick.txt", "processors.txt"])
def test_every_entry_of_a_list_of_tests_exists(name: str) -> None:
    for line in (TESTS / name).read_text("utf-8").splitlines():
        entry, _, parameter = line.removeprefix("--deselect=").removeprefix("tests/").partition("[")
        assert entry in existing() or (TESTS / entry).exists(), line
        if parameter:
            text = (TESTS / entry.split("::")[0]).read_text("utf-8")
            assert f'"{parameter.removesuffix("]")}"' in text, f"{line}: no such parameter"


def test_workflows_name_each_action_by_the_hash_of_a_release() -> None:
    workflows = sorted((TESTS.parent / ".github" / "workflows").glob("*.yml"))
    used = [line for path in workflows for line in path.read_text("utf-8").splitlines() if "uses:" in line]
    assert len(workflows) == 2 and used
    for line in used:
        assert re.search(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", line), line
