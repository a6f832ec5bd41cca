"""Preferences: a model that answers learns which of two answers is better, compared with its initial weights.

The data is prepared with the initial weights, in a resumed run too: the run records their SHA-256 (`init.digest`),
reads them again from `init.path`, and refuses other ones. A row of a batch is a whole preference: its two answers are
two documents, so a batch can be divided like any other batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from glassformer.common.errors import Log, Progress
from glassformer.config.run import PreferenceConfig, PreferenceData, Run
from glassformer.data.batching import Example, TokenBudget, evaluation_batches, evaluation_places, example_rows
from glassformer.data.rows import PreferenceRows
from glassformer.evaluation import metrics
from glassformer.evaluation.loss import ALONE, Division
from glassformer.evaluation.metrics import measure, numbers
from glassformer.models.build import Network, build_model
from glassformer.models.devices import autocast_dtype, evaluation_mode, numerics
from glassformer.models.fitting import InParts
from glassformer.models.transforms import take_weights
from glassformer.objectives.causal import answer_rows
from glassformer.objectives.preference import PreferenceObjective
from glassformer.store.model_directory import read_start
from glassformer.tasks import preparation
from glassformer.tasks.batches import EvaluationData, Places, TrainingData
from glassformer.tasks.conversation import OF_TRAIN_EVALUATED, ConversationTask, PreparedAnswers
from glassformer.tasks.reporting import LaunchReporter
from glassformer.tasks.requirements import BUILT_IN, data_of, require_watched
from glassformer.tasks.task import ModelParts, PreparedData
from glassformer.tokenization.conversations import ConversationEncoder
from glassformer.tokenization.tokenizer import Tokenizer


class PreferenceTask(ConversationTask):
    """Preferences between two answers to the same prompt."""

    settings, data = PreferenceConfig, PreferenceData
    facts = BUILT_IN["preference"]
    unit = "preference"

    def metrics(self, run: Run) -> tuple[str, ...]:
        return metrics.names("preferences")

    def adapted(self, run: Run, tokenizer: Tokenizer) -> Tokenizer:
        """Return the tokenizer unchanged: a model without a chat template has learned no answers to prefer."""
        return tokenizer

    def prepared(self, run: Run, corpus: Any, tokenizer: Tokenizer, reporter: LaunchReporter) -> PreparedData:
        return PreparedPreferences(run, corpus.split, tokenizer, reporter)

    def evaluation(self, model: ModelParts, places: Places, log: Log) -> EvaluationData[Any]:
        """Return the preferences with the log ratios of the reference, the model that the run started from."""
        data, preferences = preparation.records_of(model, PreferenceData, places, "preferences", log)
        rows = PreferenceRows(ConversationEncoder(model.tokenizer, model.name), model.network.config.max_len)
        examples = rows.encode(preferences)
        if rows.n_left_out:
            log(str(rows))
        reference = reference_of(model.run, model.device)
        compared = with_reference(model.run, reference, examples, model.device)
        return EvaluationData(
            lambda: evaluation_batches(example_rows(compared, "preferences"), data.batch_tokens),
            objective_of(model.run),
            len(compared),
            records=compared,
        )

    def scores(
        self, model: ModelParts, places: Places, progress: Progress | None, log: Log, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return how often the reward prefers the chosen answer, in percent, and by how much in the mean."""
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
    run: Run, network: nn.Module, examples: Sequence[Example], device: torch.device, division: Division = ALONE
) -> np.ndarray:
    """Return log π(chosen) - log π(rejected) of each example, in evaluation mode and the precision of the run."""
    objective, precision, found = objective_of(run), autocast_dtype(run.train.precision), np.zeros(len(examples))
    in_parts = InParts(may_split=not division.holds_parts)

    def of_part(places: Sequence[int]) -> np.ndarray:
        batch = answer_rows([examples[place] for place in places]).to(device)
        return objective.log_ratios(network, batch).cpu().double().numpy()  # MPS has no float64

    autocast = torch.autocast(device.type, dtype=precision, enabled=precision is not None)
    rows = example_rows(examples, "preferences")
    with evaluation_mode(network), numerics(replace(run.train, deterministic=False)), autocast:
        for number, places in enumerate(evaluation_places(rows, data_of(run, PreferenceData).batch_tokens)):
            if division.takes(number):
                found[places] = np.concatenate(in_parts(places, of_part))
    return np.array(division.sum(*found))


def with_reference(
    run: Run,
    reference: nn.Module,
    examples: Sequence[Example],
    device: torch.device,
    division: Division = ALONE,
) -> list[Example]:
    """Return the examples with the log ratios of the reference as their `label`."""
    found = log_ratios(run, reference, examples, device, division)
    return [replace(example, label=value) for example, value in zip(examples, found.tolist(), strict=True)]


def margins(
    run: Run, network: nn.Module, examples: Sequence[Example], device: torch.device, division: Division = ALONE
) -> np.ndarray:
    """Return by how much the reward of each chosen answer exceeds that of the rejected one.

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
        require_watched(run, ["preferences"])
        with self.reporter.phase("log probabilities of the reference"):
            train, valid = (with_reference(run, network, side, device, division) for side in (self.train, self.valid))

        def score(division: Division) -> dict[str, float]:
            found = measure("preferences", margins(run, network, valid, device, division))
            return numbers(found, [*found])

        evaluated = {"train": train[:OF_TRAIN_EVALUATED], "valid": valid}
        return TrainingData(
            objective_of(run),
            TokenBudget(example_rows(train, "training preferences"), batch_tokens, run.train.seed),
            preparation.evaluations(evaluated, "preferences", batch_tokens),
            score=score,
        )


TASK = PreferenceTask()
