"""Out of memory: steps and measurements in parts give the results of whole batches. The allocator's error is planted."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from configs import CONFIGS, random_model
from glassformer.config.run import BeamConfig
from glassformer.config.transformer import TransformerConfig, VectorHead
from glassformer.cost.room import Room
from glassformer.data.batching import NOT_SCORED, Batch, Example
from glassformer.errors import Note, UserError
from glassformer.evaluation.division import Division
from glassformer.evaluation.loss import evaluate_loss
from glassformer.evaluation.masked import masked_scores, pseudo_perplexity
from glassformer.fitting import InParts, fitted, split
from glassformer.inference.beam import decode_sorted
from glassformer.inference.classify import predict
from glassformer.inference.embed import embed
from glassformer.inference.score import continuation_scores, forced_scores
from glassformer.objectives.causal import CausalObjective
from glassformer.objectives.classification import RegressionObjective
from glassformer.objectives.loss import LossSums, TokenObjective
from glassformer.objectives.masked import MaskedObjective
from glassformer.store import checkpoint
from glassformer.tokenization.word_boundaries import WordBoundaries
from glassformer.training.run import replay_run, resume_run, train_run
from glassformer.training.trainer_state import read_progress
from runs import MODEL, Recording, tiny_run, write_text

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@contextmanager
def room_for(n_rows: int, monkeypatch: pytest.MonkeyPatch, since: int = 0) -> Iterator[list[int]]:
    """Fail in every forward of the causal loss with more than `n_rows` rows, from training forward `since` on."""
    sizes: list[int] = []
    loss = TokenObjective.loss

    def limited(self: TokenObjective, model: nn.Module, batch: Batch) -> LossSums:
        if torch.is_grad_enabled():
            sizes.append(batch.n_rows)
            if batch.n_rows > n_rows and len(sizes) > since:
                raise FULL
        return loss(self, model, batch)

    with monkeypatch.context() as patch:
        patch.setattr(TokenObjective, "loss", limited)
        yield sizes


def weights(folder: Path, step: int) -> dict[str, Tensor]:
    return load_file(checkpoint.weights_path(checkpoint.path_of(folder, step)))


def events(folder: Path) -> list[str]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return [line["event"] for line in lines if "event" in line]


# The parts


def test_parts_are_consecutive_and_nearly_equal() -> None:
    assert split(range(7), 3) == [range(3), range(3, 5), range(5, 7)]
    assert split("abc", 1) == ["abc"] and split([1, 2], 8) == [[1], [2]]


def test_the_number_of_parts_doubles_up_to_the_most() -> None:
    tried: list[int] = []

    def work(n: int) -> str:
        tried.append(n)
        if n < 5:
            raise MemoryError
        return "done"

    assert fitted(work, 1, 6) == ("done", 6) and tried == [1, 2, 4, 6]
    with pytest.raises(MemoryError):
        fitted(work, 1, 4)


def test_another_error_is_raised_at_once() -> None:
    def work(n: int) -> None:
        tried.append(n)
        raise RuntimeError("shapes differ")

    tried: list[int] = []
    with pytest.raises(RuntimeError, match="shapes differ"):
        fitted(work, 1, 8)
    assert tried == [1]


def test_a_failed_attempt_keeps_no_tensor() -> None:
    """The traceback of the first attempt would keep its tensors until the second one has ended."""
    alive: list[int] = []

    class Large:
        def __init__(self) -> None:
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    def work(n: int) -> int:
        before = len(alive)
        large = Large()
        if n == 1:
            raise FULL
        del large
        return before

    assert fitted(work, 1, 2) == (0, 2)


def test_later_batches_are_computed_in_as_many_parts_and_one_note_is_given() -> None:
    in_parts, sizes = InParts(), []

    def work(items: Any) -> int:
        sizes.append(len(items))
        if len(items) > 2:
            raise FULL
        return sum(items)

    with pytest.warns(Note, match="batches are now computed in 4 parts") as notes:
        assert in_parts(range(6), work) == [1, 2, 7, 5]
        assert in_parts(range(4), work) == [0, 1, 2, 3]
    assert len(notes) == 1 and sizes == [6, 3, 2, 1, 2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("n_parts", [1, 2, 3, 5])
def test_rows_of_a_batch_have_its_labels_targets_and_positions(n_parts: int) -> None:
    draw = np.random.default_rng(0)
    examples = [Example(draw.integers(5, 30, size=n)) for n in (4, 9, 2, 7, 7)]
    edges = WordBoundaries(np.zeros(31, bool), np.zeros(31, bool), np.zeros(31, bool))
    masked = MaskedObjective(mask_id=30, edges=edges).collate(examples, draw)
    parts = [masked.rows(rows) for rows in split(range(5), n_parts)]
    assert sum(part.n_targets for part in parts) == masked.n_targets
    for part in parts:
        assert part.loss_positions is not None
        assert torch.equal(part.loss_positions, (part.labels.flatten() != NOT_SCORED).nonzero().squeeze(1))
    for name, whole in masked.tensors().items():
        if name != "loss_positions":
            assert torch.equal(torch.cat([part.tensors()[name] for part in parts]), whole)


def test_a_number_is_a_target_whatever_its_value() -> None:
    batch = RegressionObjective().collate([Example(np.array([1]), label=x) for x in (-100.0, 2.0)], None)  # type: ignore[arg-type]
    assert batch.rows(range(1)).n_targets == 1
