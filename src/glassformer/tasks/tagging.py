"""Tagging: a tag for every word of a text, read off its first token."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.config.run import LabelData, Run, TaggingConfig
from glassformer.config.transformer import PositionHead
from glassformer.data.batching import Example
from glassformer.evaluation.labels import classification_report, is_bio, span_f1
from glassformer.inference.classify import tag_words
from glassformer.inference.ensemble import Ensemble
from glassformer.models.build import Network
from glassformer.objectives.classification import TaggingObjective
from glassformer.objectives.objective import Objective
from glassformer.tasks import label_data
from glassformer.tasks.evaluation_data import EvaluationData, Places
from glassformer.tasks.label_data import LabelRunData, LabelTask, check_labels, scores_of
from glassformer.tasks.preparation import micro_batch, require_data
from glassformer.tasks.task import HasTestSet, Log, Progress, Tags, TakesOver, TrainedModel, Votes
from glassformer.tasks.training_data import MicroBatch
from glassformer.tokenization.tokenizer import Tokenizer

SCORES = {"accuracy": True, "macro_f1": True, "span_f1": True}
"""The scores, in percent, and that higher is better; `span_f1` where tags are those of spans (B-, I-, O)."""


class Tagging(LabelTask, Tags, Votes, HasTestSet, TakesOver):
    """One stack says the tag of every word."""

    settings = TaggingConfig
    verb = "tag"
    unit = "word"
    names_are = "tags"

    def learned(self, run: Run) -> str:
        return "tag words"

    def example(self, run: Run) -> str:
        return '"…"'

    def special_tokens(self, run: Run) -> tuple[str, ...]:
        return ()

    def metrics(self, run: Run) -> tuple[str, ...]:
        return tuple(SCORES)

    def is_regression(self, run: Run) -> bool:
        return False

    # Training

    def check(self, run: Run) -> None:
        require_data(run, LabelData, ("tags",))
        check_labels(run, PositionHead)

    def open(self, run: Run) -> LabelRunData:
        return LabelRunData(self, run)

    def micro_batch(self, run: Run) -> MicroBatch:
        return micro_batch(run)

    def objective(self, run: Run) -> Objective:
        return TaggingObjective(run.objective.label_smoothing)

    def higher_is_better(self, run: Run, names: Sequence[str]) -> dict[str, bool]:
        return {name: higher for name, higher in SCORES.items() if name != "span_f1" or is_bio(names)}

    def label_scores(
        self, run: Run, logits: Sequence[Tensor], rows: Sequence[Example], names: Sequence[str]
    ) -> dict[str, Any]:
        """Accuracy and F1 of words, the whole report under `report`, and F1 of spans where tags are those of spans."""
        gold = [e.labels[e.labels != -100] for e in rows if e.labels is not None]
        probabilities = torch.cat(list(logits)).softmax(dim=1).numpy()
        scores = scores_of(classification_report(np.concatenate(gold), probabilities, list(names)))
        if is_bio(names):
            written = [[names[i] for i in x.argmax(dim=1).tolist()] for x in logits]
            spans = span_f1([[names[i] for i in of_row] for of_row in gold], written)
            scores |= {"span_f1": spans.f1, "span_precision": spans.precision, "span_recall": spans.recall}
        return scores

    # Use

    def evaluation(self, model: TrainedModel, places: Places, log: Log) -> EvaluationData[Example]:
        # Words that are cut off have no tag: of other data the scores would be others.
        return label_data.evaluation(self, model, places, log, refuses_cuts=True)

    def scores(
        self, model: TrainedModel, places: Places, progress: Progress | None, log: Log, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        return label_data.scores(self, model, places, log)

    def test_path(self, run: Run) -> str | None:
        return label_data.test_path(run)

    def tag(self, model: TrainedModel, rows: Sequence[Sequence[str]], log: Log) -> list[list[tuple[str, float]]]:
        return tag_words(model.vote, model.tokenizer, rows, model.classes, model.device, log)

    def vote(self, run: Run, networks: Sequence[Network]) -> Ensemble:
        return Ensemble(networks)

    def taken_over(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        if not isinstance(getattr(run.model, "head", None), PositionHead):
            return None
        return replace(run, data=LabelData(outputs="tags"), objective=TaggingConfig())


TASK = Tagging()
