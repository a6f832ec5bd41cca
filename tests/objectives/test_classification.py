"""Multi-label classification: the loss by hand, and a run from lists of labels to predictions."""

from pathlib import Path

import numpy as np
import pytest
import torch

from glassformer import api
from glassformer.common.errors import UserError
from glassformer.data.batching import Example
from glassformer.objectives.classification import MultiLabelObjective
from runs import label_set_run
from tolerances import assert_close


def test_the_loss_is_the_binary_cross_entropy_of_all_labels() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]])
    sets = [np.array([1, 0, 1], dtype=np.float32), np.array([0, 0, 0], dtype=np.float32)]
    objective = MultiLabelObjective()
    batch = objective.collate([Example(np.array([5, 6]), label_set=x) for x in sets], np.random.default_rng(0))
    sums = objective.loss(lambda **inputs: logits, batch)
    p = logits.sigmoid()
    expected = -(p[0, 0] * (1 - p[0, 1]) * p[0, 2] * (1 - p[1]).prod()).log()
    assert_close(sums.total, expected)
    assert sums.n_targets == 2 and batch.rows(range(1)).n_targets == 1


def test_a_run_learns_sets_of_labels(tmp_path: Path) -> None:
    folder = api.train(label_set_run(tmp_path), tmp_path / "run").folder
    model = api.load(folder, device="cpu")
    assert model.is_multi_label and model.classes == ("animal", "colour", "weather")
    found = model.classify(["the dog so red", "a the on"])
    assert [{name for name, p in one.items() if p > 0.5} for one in found] == [{"animal", "colour"}, set()]
    scores = model.scores()
    assert scores["accuracy"] > 90 and scores["macro_f1"] > 90


def test_labels_must_be_lists(tmp_path: Path) -> None:
    run = label_set_run(tmp_path)
    (tmp_path / "several.jsonl").write_text('{"text": "a dog", "label": "animal"}\n')
    with pytest.raises(UserError, match=r"several.jsonl:1: .*needs a list of labels .* got 'animal'"):
        api.train(run, tmp_path / "run")
