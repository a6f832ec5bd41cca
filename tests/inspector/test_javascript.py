"""The unit tests of the pages in JavaScript pass; `make page` also checks its types."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def test_the_modules_of_the_pages_pass_their_tests() -> None:
    node = shutil.which("node")
    if node is None:
        missing = "no node on this machine: the tests of the page in JavaScript cannot run"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    files = sorted(str(path) for path in TESTS.glob("*/page/*.test.mjs"))
    found = subprocess.run([node, "--test", *files], capture_output=True, text=True, timeout=300)
    assert files and found.returncode == 0, found.stdout[-4000:] + found.stderr[-1000:]
