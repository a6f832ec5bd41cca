"""Preferences and rewards: a model learns which answers are better, and is compared with its initial weights.

With preferences (DPO, IPO), one of two answers is better. The data is prepared with the initial weights, in a resumed
run too: the run records the SHA-256 of these weights (`init.digest`) and refuses other weights. A row of a batch is a
whole preference, so a batch can be divided like any other batch.

In group relative policy optimization (GRPO), the model samples answers to prompts, and a function rewards the answers.
A batch is sampled with the newest weights, just before its step (`can_be_ahead` is False). The answers depend only on
the weights, the seed and the number of the micro-batch, so a resumed run needs no stored answers. If several updates
use the same answers, a run is saved and stopped only after the last of them.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from glassformer.common.errors import Log, Progress, placed
from glassformer.common.seeds import Stream, seed_of
from glassformer.config.run import (
    GenerationConfig,
    GroupPolicyConfig,
    PreferenceConfig,
    PreferenceData,
    PromptData,
    Run,
)
from glassformer.data import batching
from glassformer.data.conversations import Prompt
from glassformer.data.rows import PreferenceRows, PromptRows
from glassformer.evaluation import metrics
from glassformer.evaluation.loss import ALONE, Division
from glassformer.evaluation.metrics import measure, numbers
from glassformer.evaluation.rewards import Reward, total_reward
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.inference.text import EncodedPrompt
from glassformer.inference.writer import RowText
from glassformer.models.build import Network, build_model
from glassformer.models.devices import InParts, evaluation_mode, numerics
from glassformer.models.transforms import take_weights
from glassformer.nn.kernels.linear import forget_packed
from glassformer.objectives.causal import answer_rows
from glassformer.objectives.loss import scored_log_p
from glassformer.objectives.preference import GroupPolicyObjective, PreferenceObjective, Rollout, advantages
from glassformer.store.model_directory import read_start
from glassformer.tasks import preparation
from glassformer.tasks.batches import EvaluationData, Places, TrainingData, in_precision
from glassformer.tasks.conversation import OF_TRAIN_EVALUATED, ConversationTask, PreparedAnswers
from glassformer.tasks.reporting import LaunchReporter
from glassformer.tasks.requirements import BUILT_IN, data_of
from glassformer.tasks.task import MicroBatch, ModelParts, PreparedData
from glassformer.tokenization.conversations import ConversationEncoder
from glassformer.tokenization.tokenizer import Tokenizer


class PreferenceTask(ConversationTask):
    """Preferences between two answers to the same prompt."""

    settings, data = PreferenceConfig, PreferenceData
    facts = BUILT_IN["preference"]
    unit = "preference"

    def metrics(self, run: Run) -> tuple[str, ...]:
        return metrics.names("preferences")

    def prepared(self, run: Run, corpus: Any, tokenizer: Tokenizer, reporter: LaunchReporter) -> PreparedData:
        return PreparedPreferences(run, corpus.split, tokenizer, reporter)

    def evaluation(self, model: ModelParts, places: Places, log: Log) -> EvaluationData[Any]:
        """Return the preferences with the log ratios of the reference, the model that the run started from."""
        data, preferences = preparation.records_of(model, PreferenceData, places, "preferences", log)
        rows = PreferenceRows(ConversationEncoder(model.tokenizer, model.name), model.network.config.max_len)
        examples = rows.encode(preferences)
        if rows.n_left_out:
            log(str(rows))
        compared = with_reference(model.run, reference_of(model.run, model.device), examples, model.device)
        return EvaluationData(
            lambda: batching.evaluation_batches(batching.example_rows(compared, "preferences"), data.batch_tokens),
            objective_of(model.run),
            len(compared),
            records=compared,
        )

    def scores(
        self, model: ModelParts, places: Places, progress: Progress | None, log: Log, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return how often the chosen answer has the higher reward, in percent, and the mean difference of rewards."""
        examples = self.evaluation(model, places, log).records
        return dict(measure("preferences", margins(model.run, model.network, examples, model.device)))


def reference_of(run: Run, device: torch.device) -> Network:
    """Return the model that a run started from; raise `UserError` if its weights have changed."""
    reference = build_model(run.model)
    take_weights(reference, read_start(run.init).weights_in_use())
    return reference.to(device)


def objective_of(run: Run) -> PreferenceObjective:
    """Return the objective of a run."""
    assert isinstance(run.objective, PreferenceConfig)
    return PreferenceObjective(run.objective.loss, run.objective.beta)


@torch.no_grad()
def log_ratios(
    run: Run, network: nn.Module, examples: Sequence[batching.Example], device: torch.device, division: Division = ALONE
) -> np.ndarray:
    """Return log π(chosen) - log π(rejected) of each example, in evaluation mode and the precision of the run."""
    objective, found = objective_of(run), np.zeros(len(examples))
    in_parts = InParts(may_split=not division.holds_parts)

    def of_part(places: Sequence[int]) -> np.ndarray:
        batch = answer_rows([examples[place] for place in places]).to(device)
        return objective.log_ratios(network, batch).cpu().double().numpy()  # MPS has no float64

    autocast = in_precision(run.train.precision, device)
    rows = batching.example_rows(examples, "preferences")
    with evaluation_mode(network), numerics(replace(run.train, deterministic=False)), autocast:
        for number, places in enumerate(batching.evaluation_places(rows, data_of(run, PreferenceData).batch_tokens)):
            if division.takes(number):
                found[places] = np.concatenate(in_parts(places, of_part))
    return np.array(division.sum(*found))


def with_reference(
    run: Run,
    reference: nn.Module,
    examples: Sequence[batching.Example],
    device: torch.device,
    division: Division = ALONE,
) -> list[batching.Example]:
    """Return the examples with the log ratios of the reference as their `label`."""
    found = log_ratios(run, reference, examples, device, division)
    return [replace(example, label=value) for example, value in zip(examples, found.tolist(), strict=True)]


def margins(
    run: Run, network: nn.Module, examples: Sequence[batching.Example], device: torch.device, division: Division = ALONE
) -> np.ndarray:
    """Return, for each example, the reward of the chosen answer minus the reward of the rejected answer.

    The reward is β log π/π_ref (Rafailov 2023, section 4).
    """
    reference = np.array([example.label for example in examples])
    return objective_of(run).beta * (log_ratios(run, network, examples, device, division) - reference)


class PreparedPreferences(PreparedAnswers):
    """Training and validation preferences."""

    def rows(self) -> PreferenceRows:
        return PreferenceRows(self.encoder, self.run.model.max_len)

    def none_fits(self, name: str, rows: PreferenceRows) -> str:
        return f"no {name} preference fits model.max_len {self.run.model.max_len:,}: raise it"

    def training_data(self, network: Network, device: torch.device, division: Division) -> TrainingData:
        """Return the data for the loop; `network` has its initial weights, so it is the reference here."""
        run, batch_tokens = self.run, data_of(self.run, PreferenceData).batch_tokens
        with self.reporter.phase("log probabilities of the reference"):
            train, valid = (with_reference(run, network, side, device, division) for side in (self.train, self.valid))

        def score(division: Division) -> dict[str, float]:
            found = measure("preferences", margins(run, network, valid, device, division))
            return numbers(found, [*found])

        evaluated = {"train": train[:OF_TRAIN_EVALUATED], "valid": valid}
        return TrainingData(
            objective_of(run),
            batching.TokenBudget(batching.example_rows(train, "training preferences"), batch_tokens, run.train.seed),
            preparation.evaluations(evaluated, "preferences", batch_tokens),
            score=score,
        )


PREFERENCE = PreferenceTask()


class GroupPolicyTask(ConversationTask):
    """Answers to prompts, sampled and rewarded."""

    settings, data = GroupPolicyConfig, PromptData
    facts = BUILT_IN["group_policy"]
    unit = "answer"

    def metrics(self, run: Run) -> tuple[str, ...]:
        return metrics.names("prompts")

    def micro_batch(self, run: Run) -> MicroBatch:
        return MicroBatch(settings_of(run).n_prompts * settings_of(run).group)

    def prepared(self, run: Run, corpus: Any, tokenizer: Tokenizer, reporter: LaunchReporter) -> PreparedData:
        return PreparedPrompts(run, corpus.split, tokenizer, reporter)

    def evaluation(self, model: ModelParts, places: Places, log: Log) -> EvaluationData[Any]:
        """Return sampled answers to the prompts, with an objective that compares the model with the run's start."""
        _, prompts = preparation.records_of(model, PromptData, places, "prompts", log)
        policy = Policy(model.run, model.network, model.tokenizer, model.device, trusts_rewards=False)
        encoded = PromptRows(policy.encoder, longest_prompt(model.run))
        batches = list(policy.evaluated(encoded.encode(prompts)))
        if encoded.n_left_out:
            log(str(encoded))
        objective = policy_objective_of(model.run, reference_of(model.run, model.device))
        return EvaluationData(lambda: batches, objective, sum(map(len, batches)), records=batches)

    def scores(
        self, model: ModelParts, places: Places, progress: Progress | None, log: Log, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return mean reward, KL divergence and length of sampled answers, and the share of groups of equal rewards."""
        data = self.evaluation(model, places, log)
        assert isinstance(data.objective, GroupPolicyObjective)
        return dict(measured(model.run, model.network, data.objective, data.records, model.device))


def settings_of(run: Run) -> GroupPolicyConfig:
    """Return the settings of the objective of a run."""
    assert isinstance(run.objective, GroupPolicyConfig)
    return run.objective


def longest_prompt(run: Run) -> int:
    """Return the number of tokens of the longest prompt that leaves room for an answer."""
    return run.model.max_len - run.generation.max_new_tokens


def policy_objective_of(run: Run, reference: Network) -> GroupPolicyObjective:
    """Return the objective of a run, which compares the trained model with `reference`."""
    settings = settings_of(run)
    length = run.generation.max_new_tokens if settings.normalisation == "dr_grpo" else None
    return GroupPolicyObjective(reference.eval(), settings.beta, length, settings.clip)


def frozen_copy(network: Network) -> Network:
    """Return a frozen copy of a network; both share the parameters that are not trained, such as those below LoRA."""
    shared = {id(p): p for p in network.parameters() if not p.requires_grad}
    return copy.deepcopy(network, shared).requires_grad_(False)


class Policy:
    """A model that samples answers, and the function that rewards the answers."""

    def __init__(
        self, run: Run, network: Network, tokenizer: Tokenizer, device: torch.device, *, trusts_rewards: bool
    ) -> None:
        self.run, self.network, self.tokenizer, self.device = run, network, tokenizer, device
        self.encoder = ConversationEncoder(tokenizer, run.name)
        self.reward: Reward = total_reward(settings_of(run).rewards, imports=trusts_rewards)

    def rollouts(self, prompts: Sequence[tuple[Prompt, list[int]]], seed: int) -> list[Rollout]:
        """Return answers sampled from the distribution of the model: a group for each prompt, group after group."""
        config = settings_of(self.run)
        settings = self._settings(seed, config.group)
        # 1. Sample
        asked = [prompt for prompt in prompts for _ in range(config.group)]
        answers: list[list[int]] = [[] for _ in asked]
        with evaluation_mode(self.network):
            for step in Generation(self.network, [ids for _, ids in prompts], settings):
                for number, token in step.items():
                    answers[number].append(token)
        forget_packed(self.network)  # the next step changes the weights
        # 2. Reward, and compare with the other answers of the group
        texts = [self._text(ids, answer, settings) for (_, ids), answer in zip(asked, answers, strict=True)]
        rewards = [self._rewarded(prompt, text) for (prompt, _), text in zip(asked, texts, strict=True)]
        by_group = np.array(rewards).reshape(-1, config.group)
        gains = advantages(by_group, config.normalisation == "grpo").ravel().tolist()
        # 3. Rows, whose labels are the tokens of the answers
        rows = []
        for (_, prompt), answer, text, reward, gain in zip(asked, answers, texts, rewards, gains, strict=True):
            ids = np.array([*prompt, *answer], dtype=np.int64)
            labels = np.where(np.arange(len(ids)) < len(prompt), batching.NOT_SCORED, ids)
            rows.append(Rollout(ids, labels=labels, text=text, reward=reward, advantage=gain))
        return rows

    def evaluated(self, prompts: Sequence[tuple[Prompt, list[int]]]) -> Iterator[list[Rollout]]:
        """Yield the answers to all prompts, in batches; the seeds are the same in every evaluation."""
        n = settings_of(self.run).n_prompts
        for number, begin in enumerate(range(0, len(prompts), n)):
            yield self.rollouts(prompts[begin : begin + n], seed_of(0, Stream.ROLLOUTS, number))

    @torch.no_grad()
    def log_p(self, objective: GroupPolicyObjective, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
        """Return the log probability of each label of the answers, as the loss computes it."""

        def of_part(part: Sequence[Rollout]) -> list[np.ndarray]:
            batch = objective.collate(part, np.random.default_rng(0)).to(self.device)
            return list(scored_log_p(self.network, batch).float().cpu().numpy())

        with evaluation_mode(self.network), in_precision(self.run.train.precision, self.device):
            return [row for part in InParts()(rollouts, of_part) for row in part]

    def _settings(self, seed: int, group: int) -> Settings:
        """Return the settings of a generation that draws every token with its probability under the model."""
        config = self.network.config
        return Settings(
            GenerationConfig(max_new_tokens=self.run.generation.max_new_tokens, seed=seed >> 1),  # 63 bits
            config.max_len,
            [end for end in {self.encoder.end_id, self.tokenizer.eos_id} if end is not None],
            range(self.tokenizer.vocab_size, config.vocab_size),
            samples=range(group),
            differ=True,
            device=self.device,
        )

    def _text(self, prompt: Sequence[int], answer: Sequence[int], settings: Settings) -> str:
        row = RowText(self.tokenizer, EncodedPrompt(list(prompt), is_spaced=True), settings)
        return row.whole(answer)

    def _rewarded(self, prompt: Prompt, text: str) -> float:
        with placed(prompt.where):
            return self.reward(text, prompt.fields)


@torch.no_grad()
def measured(
    run: Run,
    network: Network,
    objective: GroupPolicyObjective,
    batches: Sequence[Sequence[Rollout]],
    device: torch.device,
) -> metrics.Values:
    """Return the metrics of sampled answers."""
    in_parts, group = InParts(), settings_of(run).group

    def divergences(part: Sequence[batching.Example]) -> list[float]:
        batch = objective.collate(part, np.random.default_rng(0)).to(device)
        kl = objective.divergences(scored_log_p(network, batch), batch)
        return (kl.sum(dim=1) / (batch.labels != batching.NOT_SCORED).sum(dim=1)).tolist()

    found: list[float] = []
    with evaluation_mode(network), in_precision(run.train.precision, device):
        for rollouts in batches:
            found += [value for part in in_parts(rollouts, divergences) for value in part]
    all_of = [rollout for rollouts in batches for rollout in rollouts]
    rewards = np.array([rollout.reward for rollout in all_of]).reshape(-1, group)
    lengths = np.array(
        [int((rollout.labels != batching.NOT_SCORED).sum()) for rollout in all_of if rollout.labels is not None]
    )
    return measure("prompts", rewards, np.array(found).reshape(-1, group), lengths.reshape(-1, group))


class PreparedPrompts(PreparedAnswers):
    """Training and validation prompts."""

    def rows(self) -> PromptRows:
        return PromptRows(self.encoder, longest_prompt(self.run))

    def none_fits(self, name: str, rows: PromptRows) -> str:
        return (
            f"no {name} prompt leaves room for an answer of generation.max_new_tokens "
            f"{self.run.generation.max_new_tokens:,} in model.max_len {self.run.model.max_len:,}: lower the former"
        )

    def training_data(self, network: Network, device: torch.device, division: Division) -> TrainingData:
        """Return the data for the loop; `network` has its initial weights, of which the reference is a copy."""
        run = self.run
        policy = Policy(run, network, self.tokenizer, device, trusts_rewards=True)
        objective = policy_objective_of(run, frozen_copy(network))
        newest: list[list[Rollout]] = []  # of the newest evaluation

        def evaluated() -> list[list[Rollout]]:
            newest[:] = policy.evaluated(self.valid)
            return newest

        def score(division: Division) -> dict[str, float]:
            found = measured(run, network, objective, newest, device)
            return numbers(found, [*found])

        def sample() -> str:
            return f"{self.valid[0][0].question[-1]['content']} │ {newest[0][0].text}"

        return TrainingData(
            objective,
            RolloutSampler(policy, self.train, objective),
            {"valid": evaluated},
            sample=sample,
            score=score,
            can_be_ahead=False,
            n_inseparable=settings_of(run).updates,
        )


class RolloutSampler:
    """Sampler whose batches are answers to shuffled prompts, sampled with the newest weights.

    A batch depends only on these weights, the seed and the number of the batch. So a resumed run samples the same
    answers. With several updates, the answers of the first step are the batches of the next ones too.
    """

    def __init__(
        self, policy: Policy, prompts: Sequence[tuple[Prompt, list[int]]], objective: GroupPolicyObjective
    ) -> None:
        self.policy, self.prompts, self.objective = policy, prompts, objective
        self.seed, self.updates = policy.run.train.seed, settings_of(policy.run).updates
        self._n_per_step = policy.run.train.grad_accumulation
        self._order = batching.EpochOrder(len(prompts), settings_of(policy.run).n_prompts, self.seed)
        self._kept: dict[int, list[batching.Example]] = {}
        self.n_batches_per_epoch = self._order.n_batches_per_epoch * self.updates

    def batch(self, number: int) -> list[batching.Example]:
        step, place = divmod(number, self._n_per_step)
        if step % self.updates == 0:
            first = step // self.updates * self._n_per_step + place
            self._kept[place] = self._sampled(first)
        return self._kept[place]

    def _sampled(self, number: int) -> list[batching.Example]:
        prompts = [self.prompts[place] for place in self._order.batch(number)]
        rollouts = self.policy.rollouts(prompts, seed_of(self.seed, Stream.ROLLOUTS, number))
        if self.updates == 1:
            return [*rollouts]
        found = self.policy.log_p(self.objective, rollouts)
        return [replace(rollout, old_log_p=row) for rollout, row in zip(rollouts, found, strict=True)]


GROUP_POLICY = GroupPolicyTask()
