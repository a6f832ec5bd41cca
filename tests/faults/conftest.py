"""Fixtures: a run folder that the tests of hostile files may change."""

import shutil
from pathlib import Path

import pytest
import torch

from configs import random_model
from faults.hostile import TOKENIZER
from glassformer.config.run import Run
from glassformer.store import checkpoint
from glassformer.store.checkpoint import TrainingState
from glassformer.store.model_directory import publish, weights_of, write_model_files
from glassformer.tokenization.tokenizer import Tokenizers


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a model and one checkpoint."""
    folder = tmp_path_factory.mktemp("hostile") / "run"
    network = random_model("gpt", dtype=torch.float32)
    run, weights = Run(model=network.config), weights_of(network)
    state = TrainingState({"step": 5}, {"a/exp_avg": torch.zeros(2)}, average={"n_updates": torch.tensor(1)})
    checkpoint.save(folder, 5, lambda to: write_model_files(to, weights, Tokenizers(TOKENIZER), run, ["a", "b"]), state)
    publish(checkpoint.path_of(folder, 5), folder, 5)
    return folder


@pytest.fixture
def directory(published: Path, tmp_path: Path) -> Path:
    """A copy of the folder that a test may change."""
    return Path(shutil.copytree(published, tmp_path / "run"))
