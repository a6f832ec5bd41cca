"""The pages of docs/how-to: their Python runs, in order and in one process, and prints what the page shows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parent.parent / "docs" / "how-to").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAX_LINES = 60
"""Of a page, its Python included."""


def blocks(page: Path, language: str) -> str:
    return "".join(text for found, text in BLOCK.findall(page.read_text("utf-8")) if found == language)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    program = blocks(page, "python")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == blocks(page, "text")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_short(page: Path) -> None:
    assert len(page.read_text("utf-8").splitlines()) <= MAX_LINES
