"""What every test finds: the helpers `configs` and `parity.pairs` importable however pytest is called, and one seed."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)  # tiny tensors: more threads only wait for one another


@pytest.fixture(autouse=True)
def one_seed() -> None:
    torch.manual_seed(0)
