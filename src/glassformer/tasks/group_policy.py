"""Group relative policy optimization: a model samples answers to prompts, and learns from their rewards.

The sampler generates its examples with the weights of the moment, before the step that uses them (`can_be_ahead` is
False). They are a function of the weights, the seed and the number of the micro-batch, so a resumed run is exact
without stored answers.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from glassformer.common.errors import Log, Progress, UserError
from glassformer.common.seeds import Stream, seed_of
from glassformer.config.run import GenerationConfig, GroupPolicyConfig, PromptData, Run
from glassformer.data.batching import NOT_SCORED, EpochOrder, Example
from glassformer.data.conversations import Prompt
from glassformer.data.rows import PromptRows
from glassformer.evaluation import metrics
from glassformer.evaluation.loss import Division
from glassformer.evaluation.metrics import measure, numbers
from glassformer.evaluation.rewards import Reward, total_reward
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.inference.text import EncodedPrompt
from glassformer.inference.writer import RowText
from glassformer.models.build import Network
from glassformer.models.devices import autocast_dtype, evaluation_mode
from glassformer.models.fitting import InParts
from glassformer.nn.kernels.packed import forget_packed
from glassformer.objectives.loss import scored_log_p
from glassformer.objectives.preference import GroupPolicyObjective, Rollout, advantages
from glassformer.tasks import preparation
from glassformer.tasks.batches import EvaluationData, Places, TrainingData
from glassformer.tasks.conversation import ConversationTask, PreparedAnswers
from glassformer.tasks.preference import reference_of
from glassformer.tasks.reporting import LaunchReporter
from glassformer.tasks.requirements import BUILT_IN, require_watched
from glassformer.tasks.task import MicroBatch, ModelParts, PreparedData
from glassformer.tokenization.conversations import ConversationEncoder
from glassformer.tokenization.tokenizer import Tokenizer


class GroupPolicyTask(ConversationTask):
    """Answers to prompts, sampled and rewarded."""

    settings, data = GroupPolicyConfig, PromptData
    facts = BUILT_IN["group_policy"]
    unit = "answer"

    def metrics(self, run: Run) -> tuple[str, ...]:
        return metrics.names("prompts")

    def micro_batch(self, run: Run) -> MicroBatch:
        return MicroBatch(settings_of(run).n_prompts * settings_of(run).group)

    def adapted(self, run: Run, tokenizer: Tokenizer) -> Tokenizer:
        """Return the tokenizer unchanged: a model without a chat template has not learned to answer."""
        return tokenizer

    def prepared(self, run: Run, corpus: Any, tokenizer: Tokenizer, reporter: LaunchReporter) -> PreparedData:
        return PreparedPrompts(run, corpus.split, tokenizer, reporter)

    def evaluation(self, model: ModelParts, places: Places, log: Log) -> EvaluationData[Any]:
        """Return sampled answers to the prompts, compared with the model that the run started from."""
        _, prompts = preparation.records_of(model, PromptData, places, "prompts", log)
        policy = Policy(model.run, model.network, model.tokenizer, model.device, trusts_rewards=False)
        encoded = PromptRows(policy.encoder, longest_prompt(model.run))
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


def longest_prompt(run: Run) -> int:
    """Return the number of tokens of the longest prompt that leaves room for an answer."""
    return run.model.max_len - run.generation.max_new_tokens


def objective_of(run: Run, reference: Network) -> GroupPolicyObjective:
    """Return the objective of a run, with the model that it compares with."""
    settings = settings_of(run)
    length = run.generation.max_new_tokens if settings.normalisation == "dr_grpo" else None
    return GroupPolicyObjective(reference.eval(), settings.beta, length)


def frozen_copy(network: Network) -> Network:
    """Return a copy of a network that shares the parameters that are not trained, as those below LoRA."""
    shared = {id(p): p for p in network.parameters() if not p.requires_grad}
    return copy.deepcopy(network, shared).requires_grad_(False)


class Policy:
    """A model that samples answers, and their rewards."""

    def __init__(
        self, run: Run, network: Network, tokenizer: Tokenizer, device: torch.device, *, trusts_rewards: bool
    ) -> None:
        self.run, self.network, self.tokenizer, self.device = run, network, tokenizer, device
        self.encoder = ConversationEncoder(tokenizer, run.name)
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
        return row.whole(answer)

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
