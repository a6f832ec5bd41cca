"""Group relative policy optimization: a model samples answers to prompts, and learns from their rewards.

The sampler generates its examples with the weights of the moment, before the step that uses them (`can_be_ahead` is
False). They are a function of the weights, the seed and the number of the micro-batch, so a resumed run is exact
without stored answers.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from glassformer.common.errors import Log, Progress, UserError, warn
from glassformer.common.seeds import Stream, seed_of
from glassformer.config.run import GenerationConfig, GroupPolicyConfig, PromptData, Run
from glassformer.data.batching import NOT_SCORED, EpochOrder, Example
from glassformer.data.prompts import Prompt, PromptCorpus
from glassformer.evaluation import metrics
from glassformer.evaluation.division import ALONE, Division
from glassformer.evaluation.metrics import measure, numbers
from glassformer.evaluation.rewards import Reward, total_reward
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.inference.text import EncodedPrompt, RowText
from glassformer.models.build import Network
from glassformer.models.devices import autocast_dtype, evaluation_mode
from glassformer.models.fitting import InParts
from glassformer.nn.kernels.packed import forget_packed
from glassformer.objectives.group_policy import GroupPolicyObjective, Rollout, advantages
from glassformer.objectives.loss import scored_log_p
from glassformer.tasks import preparation
from glassformer.tasks.batches import EvaluationData, Places, TrainingData
from glassformer.tasks.conversation import ConversationRunData, ConversationTask
from glassformer.tasks.model_parts import ModelParts
from glassformer.tasks.preference import reference_of
from glassformer.tasks.reporting import LaunchReporter
from glassformer.tasks.requirements import BUILT_IN, data_of, require_watched
from glassformer.tasks.task import PreparedData
from glassformer.tokenization.conversations import ConversationEncoder
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers


class GroupPolicyTask(ConversationTask):
    """Answers to prompts, sampled and rewarded."""

    settings = GroupPolicyConfig
    facts = BUILT_IN["group_policy"]
    unit = "answer"

    def metrics(self, run: Run) -> tuple[str, ...]:
        return metrics.names("prompts")

    def adapted(self, run: Run, tokenizer: Tokenizer) -> Tokenizer:
        """Return the tokenizer unchanged: a model without a chat template has not learned to answer."""
        return tokenizer

    def open(self, run: Run) -> "GroupPolicyRunData":
        return GroupPolicyRunData(self, run)

    def evaluation(self, model: ModelParts, places: Places, log: Log) -> EvaluationData[Any]:
        """Return sampled answers to the prompts, compared with the model that the run started from."""
        data, path = data_of(model.run, PromptData), places.path_alone(model.run.name, "prompts")
        prompts = preparation.records_of(model, PromptCorpus, data, path, log)
        policy = Policy(model.run, model.network, model.tokenizer, model.device, trusts_rewards=False)
        encoded = PromptRows(policy.encoder, policy.longest_prompt)
        batches = list(policy.evaluated(encoded.encode(prompts)))
        if encoded.n_left_out:
            log(str(encoded))
        objective = objective_of(model.run, reference_of(model.run, model.device))
        return EvaluationData(lambda: batches, objective, sum(map(len, batches)), records=batches)

    def scores(
        self, model: ModelParts, places: Places, progress: Progress | None, log: Log, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the mean reward of the sampled answers, their KL divergence and length, and the equal groups."""
        data = self.evaluation(model, places, log)
        assert isinstance(data.objective, GroupPolicyObjective)
        return dict(measured(model.run, model.network, data.objective, data.records, model.device))


def settings_of(run: Run) -> GroupPolicyConfig:
    """Return the settings of the objective of a run."""
    assert isinstance(run.objective, GroupPolicyConfig)
    return run.objective


def objective_of(run: Run, reference: Network) -> GroupPolicyObjective:
    """Return the objective of a run, with the model that it compares with."""
    settings = settings_of(run)
    length = run.generation.max_new_tokens if settings.normalisation == "dr_grpo" else None
    return GroupPolicyObjective(reference.eval(), settings.beta, length)


def frozen_copy(network: Network) -> Network:
    """Return a copy of a network that shares the parameters that are not trained, as those below LoRA."""
    shared = {id(p): p for p in network.parameters() if not p.requires_grad}
    return copy.deepcopy(network, shared).requires_grad_(False)


@dataclass
class PromptRows:
    """Encoded prompts; one with more than `longest` tokens leaves no room for an answer, and is left out."""

    encoder: ConversationEncoder
    longest: int
    n_prompts: int = field(default=0, init=False)
    n_left_out: int = field(default=0, init=False)

    def encode(self, prompts: Sequence[Prompt]) -> list[tuple[Prompt, list[int]]]:
        """Return the prompts that fit, each with its ids."""
        rows = [(prompt, self.encoder.prompt(prompt.question)) for prompt in prompts]
        fitting = [(prompt, ids) for prompt, ids in rows if len(ids) <= self.longest]
        self.n_prompts += len(fitting)
        self.n_left_out += len(rows) - len(fitting)
        return fitting

    def __str__(self) -> str:
        left_out = f", {self.n_left_out:,} of more than {self.longest:,} tokens are left out" if self.n_left_out else ""
        return f"{self.n_prompts:,} prompts{left_out}"


class Policy:
    """A model that samples answers, and their rewards."""

    def __init__(
        self, run: Run, network: Network, tokenizer: Tokenizer, device: torch.device, *, trusts_rewards: bool
    ) -> None:
        self.run, self.network, self.tokenizer, self.device = run, network, tokenizer, device
        self.encoder = ConversationEncoder(tokenizer, run.name)
        self.longest_prompt = run.model.max_len - run.generation.max_new_tokens
        self.reward: Reward = total_reward(settings_of(run).rewards, imports=trusts_rewards)

    def rollouts(self, prompts: Sequence[tuple[Prompt, list[int]]], seed: int) -> list[Rollout]:
        """Sample a group of answers to each prompt from the distribution of the model, all groups one after another."""
        group = settings_of(self.run).group
        settings = self._settings(seed, group)
        answers: list[list[int]] = [[] for _ in range(group * len(prompts))]
        with evaluation_mode(self.network):
            for step in Generation(self.network, [ids for _, ids in prompts], settings):
                for number, token in step.items():
                    answers[number].append(token)
        forget_packed(self.network)  # the next step changes the weights
        texts = [self._text(prompts[row // group][1], ids, settings) for row, ids in enumerate(answers)]
        rewards = np.array([self._rewarded(prompts[row // group][0], text) for row, text in enumerate(texts)])
        is_divided = settings_of(self.run).normalisation == "grpo"
        gains = advantages(rewards.reshape(-1, group), is_divided).ravel()
        return [
            _rollout(prompts[row // group][1], ids, (texts[row], float(rewards[row]), float(gains[row])))
            for row, ids in enumerate(answers)
        ]

    def evaluated(self, prompts: Sequence[tuple[Prompt, list[int]]]) -> Iterator[list[Rollout]]:
        """Yield the answers to all prompts, in batches, with the seeds of every evaluation."""
        n = settings_of(self.run).n_prompts
        for number, begin in enumerate(range(0, len(prompts), n)):
            yield self.rollouts(prompts[begin : begin + n], seed_of(0, Stream.ROLLOUTS, number))

    def _settings(self, seed: int, group: int) -> Settings:
        """Return the settings of a generation that draws every token of the vocabulary with its probability."""
        config = self.network.config
        ends = {self.encoder.end_id, self.tokenizer.eos_id} - {None}
        return Settings(
            GenerationConfig(max_new_tokens=self.run.generation.max_new_tokens, seed=seed >> 1),  # 63 bits
            config.max_len,
            [end for end in ends if end is not None],
            range(self.tokenizer.vocab_size, config.vocab_size),
            samples=range(group),
            differ=True,
            device=self.device,
        )

    def _text(self, prompt: Sequence[int], answer: Sequence[int], settings: Settings) -> str:
        row = RowText(self.tokenizer, EncodedPrompt(list(prompt), is_spaced=True), settings)
        return "".join([*map(row.push, answer), row.flush()])

    def _rewarded(self, prompt: Prompt, text: str) -> float:
        try:
            return self.reward(text, prompt.fields)
        except UserError as error:
            raise UserError(f"{prompt.where}: {error}") from error


def _rollout(prompt: Sequence[int], answer: Sequence[int], values: tuple[str, float, float]) -> Rollout:
    ids, (text, reward, advantage) = np.array([*prompt, *answer], dtype=np.int64), values
    labels = np.where(np.arange(len(ids)) < len(prompt), NOT_SCORED, ids)
    return Rollout(ids, labels=labels, text=text, reward=reward, advantage=advantage)


@torch.no_grad()
def measured(
    run: Run,
    network: Network,
    objective: GroupPolicyObjective,
    batches: Sequence[Sequence[Rollout]],
    device: torch.device,
) -> metrics.Values:
    """Return the metrics of sampled answers."""
    precision, in_parts, group = autocast_dtype(run.train.precision), InParts(), settings_of(run).group

    def divergences(part: Sequence[Example]) -> list[float]:
        batch = objective.collate(part, np.random.default_rng(0)).to(device)
        kl = objective.divergences(scored_log_p(network, batch), batch)
        return (kl.sum(dim=1) / (batch.labels != NOT_SCORED).sum(dim=1)).tolist()

    found: list[float] = []
    with (
        evaluation_mode(network),
        torch.autocast(device.type, dtype=precision, enabled=precision is not None),
    ):
        for rollouts in batches:
            found += [value for part in in_parts(rollouts, divergences) for value in part]
    all_of = [rollout for rollouts in batches for rollout in rollouts]
    rewards = np.array([rollout.reward for rollout in all_of]).reshape(-1, group)
    lengths = np.array([int((rollout.labels != NOT_SCORED).sum()) for rollout in all_of if rollout.labels is not None])
    return measure("prompts", rewards, np.array(found).reshape(-1, group), lengths.reshape(-1, group))


class GroupPolicyRunData(ConversationRunData):
    """Prompts of a run, split into training and validation data."""

    def __init__(self, task: GroupPolicyTask, run: Run) -> None:
        self.task, self.corpus = task, PromptCorpus(data_of(run, PromptData))

    def prepare(
        self, run: Run, tokenizers: Tokenizers, reporter: LaunchReporter, *, checks_hashes: bool = True
    ) -> PreparedData:
        return PreparedPrompts(run, self.corpus.split, tokenizers.target, reporter)


class PreparedPrompts:
    """Training and validation prompts, in memory."""

    def __init__(self, run: Run, sides: Sequence[Any], tokenizer: Tokenizer, reporter: LaunchReporter) -> None:
        self.run, self.tokenizer = run, tokenizer
        longest = run.model.max_len - run.generation.max_new_tokens
        rows = [PromptRows(ConversationEncoder(tokenizer, run.name), longest) for _ in sides]
        with reporter.phase("preparing tokens"):
            self.train, self.valid = (of_side.encode(side) for of_side, side in zip(rows, sides, strict=True))
        self.summary = f"{rows[0]}; for validation {rows[1]}"
        for name, of_side in zip(("training", "validation"), rows, strict=True):
            if of_side.n_left_out:
                warn(f"{name} data: {of_side}")
        for name, prompts in (("training", self.train), ("validation", self.valid)):
            if not prompts:
                raise UserError(
                    f"no {name} prompt leaves room for an answer of generation.max_new_tokens "
                    f"{run.generation.max_new_tokens:,} in model.max_len {run.model.max_len:,}: lower the former"
                )

    def training_data(self, network: Network, device: torch.device, division: Division = ALONE) -> TrainingData:
        """Return the data for the loop; `network` has its initial weights, of which the reference is a copy."""
        run = self.run
        require_watched(run, ["prompts"])
        policy = Policy(run, network, self.tokenizer, device, trusts_rewards=True)
        objective = objective_of(run, frozen_copy(network))
        newest: list[list[Rollout]] = []  # of the evaluation

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
            RolloutSampler(policy, self.train),
            {"valid": evaluated},
            sample=sample,
            score=score,
            can_be_ahead=False,
        )


class RolloutSampler:
    """Answers to shuffled prompts, sampled with the weights of the moment: a function of them, the seed and the number.

    So a resumed run samples the same answers.
    """

    def __init__(self, policy: Policy, prompts: Sequence[tuple[Prompt, list[int]]]) -> None:
        self.policy, self.prompts, self.seed = policy, prompts, policy.run.train.seed
        self._order = EpochOrder(len(prompts), settings_of(policy.run).n_prompts, self.seed)
        self.n_batches_per_epoch = self._order.n_batches_per_epoch

    def batch(self, number: int) -> list[Example]:
        prompts = [self.prompts[place] for place in self._order.batch(number)]
        return [*self.policy.rollouts(prompts, seed_of(self.seed, Stream.ROLLOUTS, number))]


TASK = GroupPolicyTask()
