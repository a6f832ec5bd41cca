"""Preferences: DPO and IPO tune a model that answers, compared with its initial weights."""

import math
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configs import GPT
from glassformer import api, plot
from glassformer.common.errors import Interrupted, UserError
from glassformer.config.run import (
    ConversationConfig,
    ConversationData,
    LoraConfig,
    Run,
)
from glassformer.config.train import ParallelConfig
from glassformer.data.batching import Example
from glassformer.models.build import build_model
from glassformer.objectives.causal import answer_rows
from glassformer.objectives.preference import PreferenceObjective
from glassformer.tasks.preference import margins, with_reference
from glassformer.training.checks import check_new_run
from preference_runs import preference_run, trained_start
from runs import remains, signal_at
from tolerances import near


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that has learned to answer."""
    return trained_start(tmp_path_factory.mktemp("start"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep values of references in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# The objective


@pytest.mark.parametrize("kind", ["dpo", "ipo"])
def test_the_loss_is_the_formula_of_the_papers(kind: Any) -> None:
    """In fp64, from log probabilities of one sequence at a time: Rafailov 2023, equation 7; Azar 2023, equation 17."""
    torch.manual_seed(0)
    policy, reference = (build_model(GPT).double().eval() for _ in range(2))
    ids = [np.arange(1, 1 + n) for n in (7, 9, 5, 6)]
    labels = [np.where(np.arange(len(x)) < 3, -100, x) for x in ids]
    rows = [
        Example(
            np.concatenate((ids[i], ids[i + 1])),
            np.repeat([0, 1], (len(ids[i]), len(ids[i + 1]))),
            labels=np.concatenate((labels[i], labels[i + 1])),
        )
        for i in (0, 2)
    ]
    n_scored = [len(x) - 3 for x in ids]

    def log_p(model: torch.nn.Module, x: np.ndarray) -> float:
        row = torch.from_numpy(x)[None]
        of_all = model(row)[0, :-1].log_softmax(-1)[torch.arange(len(x) - 1), row[0, 1:]]
        return of_all[2:].sum().item()

    objective, beta = PreferenceObjective(kind, 0.3), 0.3
    of_reference = objective.log_ratios(reference, answer_rows(rows)).tolist()
    batch = objective.collate(
        [replace(r, label=x) for r, x in zip(rows, of_reference, strict=True)], np.random.default_rng(0)
    )
    expected = 0.0
    for i in (0, 2):
        ratios = [log_p(policy, ids[j]) - log_p(reference, ids[j]) for j in (i, i + 1)]
        if kind == "dpo":
            expected -= math.log(1 / (1 + math.exp(-beta * (ratios[0] - ratios[1]))))
        else:
            expected += (ratios[0] / n_scored[i] - ratios[1] / n_scored[i + 1] - 1 / (2 * beta)) ** 2
    sums = objective.loss(policy, batch)
    assert sums.total.item() == near(expected) and sums.n_targets == 2


# Runs


@pytest.mark.parametrize("changes", [{}, {"lora": LoraConfig(rank=2, dropout=0.1)}], ids=["all weights", "lora"])
def test_a_run_prefers_the_chosen_answers_and_resumes_to_the_bit(
    changes: dict[str, Any], start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = preference_run(tmp_path, start, **changes)
    run = replace(run, train=replace(run.train, grad_accumulation=2))
    outcome = api.train(run, tmp_path / "whole")
    model, valid = outcome.model, outcome.reports["valid"]
    assert valid.loss < math.log(2) and valid.perplexity is None
    found = model.evaluate()
    assert found == valid, "the trainer's loss, computed again"
    assert found.scores["reward_accuracy"] > 50 and found.scores["reward_margin"] > 0
    logged = [line for line in outcome.history if "eval/valid_loss" in line][-1]
    assert {f"eval/valid_{name}": value for name, value in found.scores.items()}.items() <= logged.items()
    plot.curves(outcome.folder)
    assert isinstance(model.chat("1 + 1", max_new_tokens=3), str)
    with monkeypatch.context() as patch:
        signal_at(patch, 7, signal.SIGTERM)
        with pytest.raises(Interrupted):
            api.train(run, tmp_path / "stopped")
    api.resume(tmp_path / "stopped")
    assert remains(tmp_path / "stopped") == remains(tmp_path / "whole")


def test_a_model_is_its_own_reference_at_the_start(start: Path, tmp_path: Path) -> None:
    """Every margin is exactly 0, and so the loss is ln 2."""
    run, model = preference_run(tmp_path, start), api.load(start)
    examples = [Example(np.arange(9), np.repeat([0, 1], [5, 4]), labels=np.arange(9)) for _ in range(3)]
    compared = with_reference(run, model.network, examples, model.device)
    assert margins(run, model.network, compared, model.device).tolist() == [0.0] * 3


def test_a_reference_with_other_weights_is_refused(start: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(start, tmp_path / "start")
    outcome = api.train(preference_run(tmp_path, copy), tmp_path / "run")
    model = outcome.model
    assert model.evaluate() == outcome.reports["valid"]
    in_memory = model.evaluate([{"prompt": "1 + 1", "chosen": "= 2", "rejected": "= 3"}])
    assert in_memory.n_tokens == 1 and in_memory.scores["reward_accuracy"] in (0, 100)
    shutil.rmtree(copy)
    shutil.copytree(outcome.folder, copy)
    for use in (model.evaluate, lambda: api.resume(tmp_path / "run", max_steps=13)):
        with pytest.raises(UserError, match="are not those with which the run began"):
            use()


def test_a_model_that_has_not_learned_to_answer_is_refused(trained: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no chat template, so it has not learned conversations"):
        api.train(preference_run(tmp_path, trained.folder), tmp_path / "run")


# Settings and data that are refused before torch is needed

REFUSED: dict[str, tuple[Callable[[Run], Run], str]] = {
    "no start": (lambda run: replace(run, init=replace(run.init, path=None)), "set init.path to its directory"),
    "other model": (lambda run: replace(run, init=replace(run.init, model="recipe")), "leave out init.model"),
    "other data": (
        lambda run: replace(run, data=ConversationData(path="x")),
        "expected preferences for objective.kind",
    ),
    "other objective": (
        lambda run: replace(run, objective=ConversationConfig()),
        "expected conversations for objective",
    ),
    "sharded": (lambda run: replace(run, parallel=ParallelConfig(strategy="fsdp")), "parallel.strategy: expected ddp"),
    "rows": (
        lambda run: replace(run, train=replace(run.train, batch_size=7)),
        "batch_size does not apply to preferences",
    ),
    "metric": (
        lambda run: replace(run, train=replace(run.train, early_stopping={"metric": "perplexity"})),
        "'perplexity' is not available for preference; choose one of loss, reward_accuracy, reward_margin",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_do_not_suit_are_refused(case: str, start: Path, tmp_path: Path) -> None:
    change, message = REFUSED[case]
    with pytest.raises(UserError, match=message):
        check_new_run(change(preference_run(tmp_path, start)), tmp_path / "run")
