"""Group relative policy optimization: sampled answers, their rewards, and a step that raises them."""

import json
import math
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configs import GPT
from glassformer import api
from glassformer.config.run import (
    ConversationConfig,
    ConversationData,
    GenerationConfig,
    GroupPolicyConfig,
    LoraConfig,
    PromptData,
    Run,
    TokenizerConfig,
)
from glassformer.config.train import AdamWConfig, ConstantSchedule, TrainConfig
from glassformer.errors import Interrupted, UserError
from glassformer.models.build import build_model
from glassformer.objectives.group_policy import GroupPolicyObjective, Rollout
from glassformer.training.checks import check_new_run
from runs import MODEL, remains, signal_at

TRAIN: dict[str, Any] = {"max_steps": 12, "eval_every": 6, "log_every": 4, "device": "cpu"}


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that answers with a digit, at random."""
    folder = tmp_path_factory.mktemp("start")
    rows = [{"prompt": f"{i % 10}?", "completion": f"{i * 7 % 10}"} for i in range(100)]
    run = Run(
        name="start",
        model=replace(MODEL, max_len=32),
        tokenizer=TokenizerConfig(vocab_size=0, scheme="char"),
        data=ConversationData(path=written(folder / "conversations.jsonl", rows), batch_tokens=512),
        objective=ConversationConfig(),
        train=TrainConfig(**TRAIN | {"max_steps": 60, "eval_every": 60, "optimizer": AdamWConfig(learning_rate=0.01)}),
    )
    return api.train(run, folder / "run").folder


def policy_run(folder: Path, start: Path, **changes: Any) -> Run:
    """Return a run of 8 steps, in which the best answer is 7."""
    rows = [{"prompt": f"{i}?", "answer": "7"} for i in range(10)]
    run = Run(
        name="policy",
        data=PromptData(path=written(folder / "prompts.jsonl", rows), valid_fraction=0.3),
        objective=GroupPolicyConfig(n_prompts=4, group=8, beta=0.01),
        train=TrainConfig(**TRAIN, select="last", schedule=ConstantSchedule(warmup_steps=0), optimizer=AdamWConfig(learning_rate=0.02)),
        generation=GenerationConfig(max_new_tokens=4),
    )
    return replace(run, init=replace(run.init, path=str(start)), **changes)


# The objective


@pytest.mark.parametrize("length", [None, 10], ids=["grpo", "dr_grpo"])
def test_the_loss_and_its_gradient_are_the_formula(length: int | None) -> None:
    """In fp64, one token at a time: Shao 2024, equations 3 and 4, and the reported loss β KL - reward."""
    torch.manual_seed(0)
    policy, reference = (build_model(GPT).double().eval() for _ in range(2))
    rollouts, beta = [], 0.3
    for n, reward, advantage in ((3, 1.0, 0.7), (5, 0.0, -0.7)):
        ids = np.arange(1, 5 + n)
        labels = np.where(np.arange(len(ids)) < 4, -100, ids)
        rollouts.append(Rollout(ids, labels=labels, reward=reward, advantage=advantage))
    objective = GroupPolicyObjective(reference, beta, length)
    sums = objective.loss(policy, objective.collate(rollouts, np.random.default_rng(0)))
    [found] = torch.autograd.grad(sums.total, [policy.decoder.embeddings.tokens.weight])
    loss, reported = torch.zeros((), dtype=torch.float64), 0.0
    for rollout in rollouts:
        row = torch.from_numpy(rollout.token_ids)[None]
        log_p, log_ref = (
            model(row)[0, :-1].log_softmax(-1)[torch.arange(row.shape[1] - 1), row[0, 1:]][3:]
            for model in (policy, reference)
        )
        kl = (log_ref.detach() - log_p).exp() - (log_ref.detach() - log_p) - 1
        of_tokens = (log_p - log_p.detach()).exp() * rollout.advantage - beta * kl
        loss = loss - of_tokens.sum() / (length or len(of_tokens))
        reported += beta * kl.mean().item() - rollout.reward
    [expected] = torch.autograd.grad(loss, [policy.decoder.embeddings.tokens.weight])
    assert sums.total.item() == pytest.approx(loss.item(), abs=1e-6)
    assert sums.nats.item() == pytest.approx(reported, abs=1e-6) and sums.n_targets == 2
    assert torch.allclose(found, expected, atol=1e-7), "advantages are stored in fp32"


# Runs


@pytest.mark.parametrize("changes", [{}, {"lora": LoraConfig(rank=4, targets=("decoder.blocks.*",))}], ids=["all weights", "lora"])
def test_a_run_raises_the_reward_and_resumes_to_the_bit(
    changes: dict[str, Any], start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = policy_run(tmp_path, start, **changes)
    run = replace(run, train=replace(run.train, grad_accumulation=2))
    outcome = api.train(run, tmp_path / "whole")
    model, valid = outcome.model, outcome.reports["valid"]
    found = model.evaluate()
    assert found == valid, "the trainer's loss, computed again"
    first, last = (line for line in outcome.history if "eval/valid_reward" in line)
    print(first, last, sep="\n")
    assert last["eval/valid_reward"] == found.scores["reward"] > 0.3
    assert found.scores["kl"] > 0 and 1 <= found.scores["answer_tokens"] <= 4
    assert valid.loss == pytest.approx(0.01 * found.scores["kl"] - found.scores["reward"], abs=1e-5)
    with monkeypatch.context() as patch:
        signal_at(patch, 3, signal.SIGTERM)
        with pytest.raises(Interrupted):
            api.train(run, tmp_path / "stopped")
    api.resume(tmp_path / "stopped")
    assert remains(tmp_path / "stopped") == remains(tmp_path / "whole")
