"""The device of these tests.

`GPU_TESTS_ON=cpu pytest tests/gpu` runs their code without a GPU, where that is possible.
"""

import os

import pytest
import torch


@pytest.fixture
def device() -> torch.device:
    name = os.environ.get("GPU_TESTS_ON", "cuda")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return torch.device(name)


@pytest.fixture
def gpu(device: torch.device) -> torch.device:
    """The device, for tests that make sense on a GPU only."""
    if device.type != "cuda":
        pytest.skip("for a GPU only")
    return device
