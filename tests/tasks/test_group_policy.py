"""Group relative policy optimization: sampled answers, their rewards, and a step that raises them."""

import math
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from configs import GPT
from glassformer import api
from glassformer.common.errors import Interrupted, UserError
from glassformer.config.run import (
    GenerationConfig,
    GroupPolicyConfig,
    LoraConfig,
    PromptData,
    Run,
)
from glassformer.config.train import EarlyStopping
from glassformer.data.conversations import Prompt
from glassformer.models.build import build_model
from glassformer.objectives.preference import GroupPolicyObjective, Rollout
from glassformer.tasks.preference import Policy
from glassformer.training.checks import check_new_run
from preference_runs import policy_run, trained_start, written
from runs import remains, signal_at
from tolerances import is_close, near


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that has learned to answer."""
    return trained_start(tmp_path_factory.mktemp("start"))


# The objective


@pytest.mark.parametrize("is_old", [False, True], ids=["one update", "several updates"])
@pytest.mark.parametrize("length", [None, 10], ids=["grpo", "dr_grpo"])
def test_the_loss_and_its_gradient_are_the_formula(length: int | None, is_old: bool) -> None:
    """In fp64, one token at a time: Shao 2024, equations 3 and 4, and the reported loss β KL - reward."""
    torch.manual_seed(0)
    policy, reference, older = (build_model(GPT).double().eval() for _ in range(3))
    rollouts, beta, clip = [], 0.3, 0.1

    def log_p_of(model: nn.Module, rollout: Rollout) -> Tensor:
        """Return the log probability of each token of the answer."""
        row = torch.from_numpy(rollout.token_ids)[None]
        return model(row)[0, :-1].log_softmax(-1)[torch.arange(row.shape[1] - 1), row[0, 1:]][3:]

    for n, reward, advantage in ((3, 1.0, 0.7), (5, 0.0, -0.7)):
        ids = np.arange(1, 5 + n)
        labels = np.where(np.arange(len(ids)) < 4, -100, ids)
        rollout = Rollout(ids, labels=labels, reward=reward, advantage=advantage)
        if is_old:
            of_answer = log_p_of(older, rollout).detach().numpy()
            rollout = replace(rollout, old_log_p=np.concatenate([np.zeros(3), of_answer]).astype(np.float32))
        rollouts.append(rollout)
    objective = GroupPolicyObjective(reference, beta, length, clip)
    sums = objective.loss(policy, objective.collate(rollouts, np.random.default_rng(0)))
    [found] = torch.autograd.grad(sums.total, [policy.decoder.embeddings.tokens.weight])
    loss, reported, n_clipped = torch.zeros((), dtype=torch.float64), 0.0, 0
    for rollout in rollouts:
        log_p, log_ref = log_p_of(policy, rollout), log_p_of(reference, rollout)
        old = log_p.detach() if rollout.old_log_p is None else torch.from_numpy(rollout.old_log_p[3:])
        ratio = (log_p - old).exp()
        n_clipped += int(((ratio - 1).abs() > clip).sum())
        kl = (log_ref.detach() - log_p).exp() - (log_ref.detach() - log_p) - 1
        gain = rollout.advantage
        of_tokens = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain) - beta * kl
        loss = loss - of_tokens.sum() / (length or len(of_tokens))
        reported += beta * kl.mean().item() - rollout.reward
    [expected] = torch.autograd.grad(loss, [policy.decoder.embeddings.tokens.weight])
    assert (n_clipped > 2) == is_old
    assert sums.total.item() == near(loss.item())
    assert sums.nats.item() == near(reported) and sums.n_targets == 2
    assert is_close(found, expected, dtype=torch.float32), "advantages are stored in fp32"


# Runs


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lora": LoraConfig(rank=4, targets=("decoder.blocks.*",))},
        {"objective": GroupPolicyConfig(n_prompts=4, group=8, beta=0.01, updates=2)},
    ],
    ids=["all weights", "lora", "two updates"],
)
def test_a_run_raises_the_reward_and_resumes_to_the_bit(
    changes: dict[str, Any], start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = policy_run(tmp_path, start, **changes)
    run = replace(run, train=replace(run.train, grad_accumulation=2))
    outcome = api.train(run, tmp_path / "whole")
    model, valid = outcome.model, outcome.reports["valid"]
    found = model.evaluate()
    assert found == valid, "the trainer's loss, computed again"
    assert found.scores["kl"] > 0 and 1 <= found.scores["answer_tokens"] <= 4
    assert valid.loss == near(0.01 * found.scores["kl"] - found.scores["reward"])
    if "lora" not in changes:
        assert found.scores["reward"] > 0.9, "about 0.25 at the start"
    with monkeypatch.context() as patch:
        signal_at(patch, 3, signal.SIGTERM)
        with pytest.raises(Interrupted):
            api.train(run, tmp_path / "stopped")
    api.resume(tmp_path / "stopped")
    assert remains(tmp_path / "stopped") == remains(tmp_path / "whole")


def test_answers_are_drawn_anew_and_from_the_distribution_of_the_model(start: Path, tmp_path: Path) -> None:
    """The frequencies of the first token in many answers to one prompt are its probabilities."""
    model = api.load(start)
    run = policy_run(tmp_path, start, model=model.config, objective=GroupPolicyConfig(group=2000))
    policy = Policy(run, model.network, model.tokenizer, model.device, trusts_rewards=False)
    ids = policy.encoder.prompt([{"role": "user", "content": "1?"}])
    prompts = [(Prompt((), {"answer": "7"}), ids)]
    rollouts = policy.rollouts(prompts * 2, seed=3)
    firsts = np.array([rollout.token_ids[len(ids)] for rollout in rollouts]).reshape(2, 2000)
    assert (firsts[0] != firsts[1]).any(), "equal prompts have their own answers"
    expected = model.network(torch.tensor([ids]))[0, -1].softmax(-1).detach().numpy()
    found = np.bincount(firsts.ravel(), minlength=len(expected)) / firsts.size
    assert np.abs(found - expected).max() < 4 * math.sqrt(0.25 / firsts.size)
    exact = [rollout.text.strip() == "7" for rollout in rollouts]
    assert [rollout.reward for rollout in rollouts] == list(map(float, exact)) and 0 < sum(exact) < len(exact)


def test_each_answer_is_rewarded_by_the_fields_of_its_own_prompt(start: Path, tmp_path: Path) -> None:
    model = api.load(start)
    run = policy_run(tmp_path, start, model=model.config, objective=GroupPolicyConfig(group=50))
    policy = Policy(run, model.network, model.tokenizer, model.device, trusts_rewards=False)
    answers = [str(digit) for digit in range(10)]
    ids = policy.encoder.prompt([{"role": "user", "content": "1?"}])
    rollouts = policy.rollouts([(Prompt((), {"answer": answer}), ids) for answer in answers], seed=3)
    expected = [float(rollout.text.strip() == answers[row // 50]) for row, rollout in enumerate(rollouts)]
    assert [rollout.reward for rollout in rollouts] == expected
    assert expected != [float(rollout.text.strip() == answers[row % 10]) for row, rollout in enumerate(rollouts)]


def test_a_function_of_the_user_is_a_reward_and_is_not_run_by_a_model_directory(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_rewards.py").write_text("def short(answer, fields):\n    return -len(answer)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    objective = GroupPolicyConfig(n_prompts=2, group=2, rewards=("own_rewards:short",))
    run = policy_run(tmp_path, start, objective=objective)
    outcome = api.train(replace(run, train=replace(run.train, max_steps=1)), tmp_path / "run")
    assert outcome.model.scores()["reward"] < 0
    monkeypatch.delitem(sys.modules, "own_rewards")
    with pytest.raises(UserError, match="own_rewards, which a model directory must not run"):
        outcome.model.evaluate()


# What is refused

REFUSED: dict[str, tuple[Callable[[Run], Run], str]] = {
    "no start": (lambda run: replace(run, init=replace(run.init, path=None)), "prompts tune a model that has learned"),
    "no reward": (lambda run: with_rewards(run), "expected at least one of exact, regex, length"),
    "unknown reward": (lambda run: with_rewards(run, "truth"), "module:function of an installed package, got 'truth'"),
    "missing module": (lambda run: with_rewards(run, "no_such:f"), "of an installed package, got 'no_such:f'"),
    "pattern": (lambda run: with_rewards(run, "regex:("), r"regex:\( is not a regular expression"),
    "length": (lambda run: with_rewards(run, "length:x"), "expected length:N with a number of characters"),
    "rows": (lambda run: replace(run, train=replace(run.train, batch_size=7)), "set objective.n_prompts instead"),
    "updates": (
        lambda run: replace(run, objective=GroupPolicyConfig(updates=5)),
        "train.max_steps: expected a multiple of objective.updates, 5, got 12",
    ),
    "metric": (
        lambda run: replace(run, train=replace(run.train, early_stopping=EarlyStopping(metric="bleu"))),
        "'bleu' is not available for group_policy; choose one of loss, reward, kl, equal_rewards, answer_tokens",
    ),
}


def with_rewards(run: Run, *names: str) -> Run:
    return replace(run, objective=GroupPolicyConfig(rewards=names))


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_do_not_suit_are_refused(case: str, start: Path, tmp_path: Path) -> None:
    change, message = REFUSED[case]
    with pytest.raises(UserError, match=message):
        check_new_run(change(policy_run(tmp_path, start)), tmp_path / "run")


def test_data_that_does_not_suit_is_refused(start: Path, tmp_path: Path) -> None:
    run = policy_run(tmp_path, start)
    with pytest.raises(UserError, match=r"prompts.jsonl:\d+: the reward exact needs the field 'solution'"):
        api.train(with_rewards(run, "exact:solution"), tmp_path / "run")
    with pytest.raises(UserError, match="no training prompt leaves room for an answer of"):
        api.train(replace(run, generation=GenerationConfig(max_new_tokens=30)), tmp_path / "run")
    path = written(tmp_path / "other.jsonl", [{"question": "1?"}])
    with pytest.raises(UserError, match=":1 has no field 'prompt'; it has 'question'"):
        check_new_run(replace(run, data=PromptData(path=path)), tmp_path / "run")
