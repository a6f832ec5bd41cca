"""The files of `benchmarks/` can be imported."""

import sys
from collections.abc import Iterator

import pytest

from benchmark_files import BENCHMARKS

MODULES = {path.stem for path in BENCHMARKS.glob("*.py")}


@pytest.fixture(scope="module", autouse=True)
def path_of_benchmarks() -> Iterator[None]:
    """The files of the folder import each other by name."""
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))
    for name in MODULES & sys.modules.keys():
        del sys.modules[name]
