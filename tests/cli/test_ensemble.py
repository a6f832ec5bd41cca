"""Ensembles of translators: the loss is that of the mean probability, and other models are refused."""

import json
from pathlib import Path

import pytest

from glassformer import api
from glassformer.common.errors import UserError
from runs import label_run, pair_run

from .conftest import Glassformer
from .test_bad_input import require_one_sentence


def test_evaluate_of_pairs_uses_all_members(glassformer: Glassformer, tmp_path: Path) -> None:
    """The loss is that of the mean probability: at most the mean of the members' losses, and equal to none of them."""
    folders = [
        api.train(pair_run(tmp_path, seed=seed, max_steps=4, eval_every=4), tmp_path / f"run{seed}").folder
        for seed in range(2)
    ]
    losses = [api.load(folder).evaluate().loss for folder in folders]
    found = json.loads(glassformer("evaluate", *folders, "--loss-only", "--json").out)
    assert found["loss"] < sum(losses) / 2 and found["loss"] not in losses


def test_models_that_form_no_ensemble_are_named(glassformer: Glassformer, tmp_path: Path) -> None:
    classes = api.train(label_run(tmp_path, max_steps=1, eval_every=1), tmp_path / "classes").folder
    pairs = api.train(pair_run(tmp_path, max_steps=1), tmp_path / "pairs").folder
    require_one_sentence(glassformer("evaluate", classes, classes), "an ensemble can only translate; ", "predict a lab")
    require_one_sentence(glassformer("translate", pairs, classes, stdin="a\n"), "use it with classify")
    for verb in ("translate", "evaluate"):
        require_one_sentence(glassformer(verb, stdin="a\n"), "give at least one model directory")
    with pytest.raises(UserError, match="an ensemble can only translate"):
        api.ensemble([classes, classes])
    with pytest.raises(UserError, match="the second to predict a label"):
        api.ensemble([pairs, classes])
    with pytest.raises(UserError, match="at least one model"):
        api.ensemble([])
