"""A fixture that several tests share draws the same numbers in every order of the tests."""

import zlib

import pytest
import torch
from torch import Tensor


@pytest.fixture(scope="module")
def drawn() -> Tensor:
    return torch.rand(3)


def test_a_shared_fixture_is_seeded_by_its_name(drawn: Tensor) -> None:
    generator = torch.Generator().manual_seed(zlib.crc32(b"drawn"))
    assert torch.equal(drawn, torch.rand(3, generator=generator))
