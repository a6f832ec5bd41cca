"""The pages of docs/extend: their Python code runs in order in one process and prints the output that the page shows.

Links of all pages have a target; the commands of docs/how-to are run by `tests/cli/test_documented_commands.py`.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "extend").glob("*.md"))
GUIDES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
NAMED = re.compile(r"`((?:src|tests|docs)/[\w/.-]+)(?:::(\w+))?`")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAX_LINES = 60
"""Largest number of lines of a page with its Python code, without blank lines."""
DOCS = sorted(
    path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts and "generated" not in path.parts
)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def blocks(page: Path, language: str) -> str:
    return "".join(text for found, text in BLOCK.findall(page.read_text("utf-8")) if found == language)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_prints_the_output_that_it_shows(page: Path, tmp_path: Path) -> None:
    program = blocks(page, "python")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == blocks(page, "text")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_short(page: Path) -> None:
    lines = [line for line in page.read_text("utf-8").splitlines() if line.strip()]
    assert len(lines) <= MAX_LINES


def test_the_reading_guide_links_eight_files_per_path() -> None:
    ways = (ROOT / "docs" / "reading.md").read_text("utf-8").split("\n## ")[1:]
    firsts = [re.findall(r"^\d+\. `([\w/.]+)", way, re.MULTILINE) for way in ways]
    assert [len(set(files)) for files in firsts] == [8, 8]


@pytest.mark.parametrize("page", [*PAGES, *GUIDES, ROOT / "docs" / "reading.md"], ids=lambda page: page.stem)
def test_files_and_tests_that_a_page_names_exist(page: Path) -> None:
    for path, name in NAMED.findall(page.read_text("utf-8")):
        if "NAME" not in path:
            assert (ROOT / path).exists(), path
            text = (ROOT / path).read_text("utf-8") if name else ""
            assert not name or re.search(rf"^\s*(def|class) {name}\b|^{name}\b", text, re.MULTILINE), f"{path}::{name}"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.relative_to(ROOT / "docs").as_posix())
def test_links_of_a_page_have_a_target(page: Path) -> None:
    """Pages in reference/generated are written when the site is built."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = [link for link in LINK.findall(prose) if "generated/" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
