"""What every test finds: the helpers `configs` and `parity.pairs` importable however pytest is called, and one seed."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from glassformer.reporting import Outcome

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)  # tiny tensors: more threads only wait for one another


@pytest.fixture(autouse=True)
def one_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> "Outcome":
    """A finished tiny run, for tests that only read it: its folder and the reports of its last evaluation."""
    from glassformer import api
    from runs import tiny_run, write_text

    folder = tmp_path_factory.mktemp("trained")
    return api.train(tiny_run(write_text(folder)), folder / "run")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """For a process of its own."""
    return os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
