"""Trained models for the tests of this folder."""

import pytest

import glassformer
from glassformer.model import Model
from glassformer.tasks.reporting import Outcome
from runs import Tiny


@pytest.fixture(scope="module")
def model(trained: Outcome) -> Model:
    return glassformer.load(trained.folder, device="cpu")


@pytest.fixture(scope="module")
def pairs(tiny: Tiny) -> Model:
    return glassformer.load(tiny("pairs"))
