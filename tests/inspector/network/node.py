"""Running a module of the tests in node, which runs the same JavaScript as a browser."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def cases_of(request: pytest.FixtureRequest) -> list[str]:
    """Return the values of `name` of the tests in the file of a fixture that run; the short run draws some."""
    tests = [item for item in request.session.items if item.path == request.path]
    return [str(test.callspec.params["name"]) for test in tests if isinstance(test, pytest.Function)]


def run_node(module: str, *arguments: str | Path) -> None:
    """Run a module of this folder; skip the test without node, and fail if the module fails."""
    node = shutil.which("node")
    if node is None:
        missing = "no node on this machine: the network in JavaScript cannot run"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    found = subprocess.run([node, FOLDER / module, *arguments], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-4000:]
