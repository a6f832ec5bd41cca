"""Labels: the class of a text or of two, or a number (regression); a tag for every word, read off its first token."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.config.run import ClassificationConfig, LabelData, Run, TaggingConfig
from glassformer.config.transformer import PositionHead, SequenceHead, TransformerConfig
from glassformer.data.batching import Example
from glassformer.errors import UserError
from glassformer.evaluation.labels import (
    ClassificationReport,
    classification_report,
    is_bio,
    pearson,
    rmse,
    span_f1,
    spearman,
)
from glassformer.inference.classify import classify_texts, tag_words
from glassformer.objectives.classification import ClassificationObjective, RegressionObjective, TaggingObjective
from glassformer.objectives.loss import Objective
from glassformer.tasks.label_data import LabelTask
from glassformer.tasks.preparation import labels_of
from glassformer.tasks.task import Classifies, Log, Tags, TakesOver, TrainedModel
from glassformer.tokenization.tokenizer import Tokenizer

SCORES: dict[str, dict[str, bool]] = {
    "classes": {"accuracy": True, "macro_f1": True, "calibration_error": False},
    "regression": {"rmse": False, "pearson": True, "spearman": True},
    "tags": {"accuracy": True, "macro_f1": True, "span_f1": True},
}
"""The scores of each kind of label, in percent but for `rmse`, and whether higher is better; `span_f1` where tags are
those of spans (B-, I-, O)."""


def figures(report: ClassificationReport) -> dict[str, Any]:
    """The figures of a report, in percent, and the report itself."""
    names = ("accuracy", "macro_f1", "calibration_error", "most_frequent_share")
    return {name: getattr(report, name) for name in names} | {"report": report}


class Classification(LabelTask, Classifies, TakesOver):
    """One stack says the label of a whole."""

    settings = ClassificationConfig
    verb = "classify"
    unit = "text"
    names_are = "classes"
    outputs = ("classes", "regression")
    head = SequenceHead
    refuses_cuts = False

    def learned(self, run: Run) -> str:
        texts = "two texts" if self.takes_pairs(run) else "a text"
        return f"say a {'number' if self.is_regression(run) else 'label'} for {texts}"

    def example(self, run: Run) -> str:
        return '("…", "…")' if self.takes_pairs(run) else '"…"'

    def metrics(self, run: Run) -> tuple[str, ...]:
        return tuple(SCORES[labels_of(run).outputs])

    def takes_pairs(self, run: Run) -> bool:
        return labels_of(run).second_field is not None

    # Training

    def objective(self, run: Run) -> Objective:
        if not self.is_regression(run):
            return ClassificationObjective(run.objective.label_smoothing)
        assert isinstance(run.model, TransformerConfig) and isinstance(run.model.head, SequenceHead)
        return RegressionObjective(run.model.head.std or 1.0)

    def higher_is_better(self, run: Run, names: Sequence[str]) -> dict[str, bool]:
        return SCORES[labels_of(run).outputs]

    def label_scores(
        self, run: Run, logits: Sequence[Tensor], rows: Sequence[Example], names: Sequence[str]
    ) -> dict[str, Any]:
        """Accuracy, F1 and calibration of classes, the whole report under `report`; errors of numbers."""
        if self.is_regression(run):
            found = np.array([float(x[0]) for x in logits])
            true = np.array([e.label for e in rows], dtype=np.float64)
            return {"rmse": rmse(true, found), "pearson": pearson(true, found), "spearman": spearman(true, found)}
        labels = np.array([int(e.label or 0) for e in rows])
        return figures(classification_report(labels, torch.stack(list(logits)).softmax(dim=1).numpy(), list(names)))

    # Use

    def classify(self, model: TrainedModel, rows: Sequence[tuple[str, ...]], log: Log) -> list[dict[str, float]]:
        for row in rows:
            if (len(row) > 1) != self.takes_pairs(model.run):
                texts = "two texts" if self.takes_pairs(model.run) else "one text"
                raise UserError(f"{model.name} reads {texts} at a time")
        return classify_texts(model.vote, model.tokenizer, rows, model.classes, model.device, log)

    def taken_over(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        if not isinstance(getattr(run.model, "head", None), SequenceHead):
            return None
        outputs: Any = "classes" if len(labels) > 1 else "regression"
        return replace(run, data=LabelData(outputs=outputs), objective=ClassificationConfig())


class Tagging(LabelTask, Tags, TakesOver):
    """One stack says the tag of every word."""

    settings = TaggingConfig
    verb = "tag"
    unit = "word"
    names_are = "tags"
    outputs = ("tags",)
    head = PositionHead
    refuses_cuts = True  # words that are cut off have no tag: of other data the scores would be others

    def learned(self, run: Run) -> str:
        return "tag words"

    def example(self, run: Run) -> str:
        return '"…"'

    def metrics(self, run: Run) -> tuple[str, ...]:
        return tuple(SCORES["tags"])

    # Training

    def objective(self, run: Run) -> Objective:
        return TaggingObjective(run.objective.label_smoothing)

    def higher_is_better(self, run: Run, names: Sequence[str]) -> dict[str, bool]:
        return {name: higher for name, higher in SCORES["tags"].items() if name != "span_f1" or is_bio(names)}

    def label_scores(
        self, run: Run, logits: Sequence[Tensor], rows: Sequence[Example], names: Sequence[str]
    ) -> dict[str, Any]:
        """Accuracy and F1 of words, the whole report under `report`, and F1 of spans where tags are those of spans."""
        gold = [e.labels[e.labels != -100] for e in rows if e.labels is not None]
        probabilities = torch.cat(list(logits)).softmax(dim=1).numpy()
        scores = figures(classification_report(np.concatenate(gold), probabilities, list(names)))
        if is_bio(names):
            written = [[names[i] for i in x.argmax(dim=1).tolist()] for x in logits]
            spans = span_f1([[names[i] for i in of_row] for of_row in gold], written)
            scores |= {"span_f1": spans.f1, "span_precision": spans.precision, "span_recall": spans.recall}
        return scores

    # Use

    def tag(self, model: TrainedModel, rows: Sequence[Sequence[str]], log: Log) -> list[list[tuple[str, float]]]:
        return tag_words(model.vote, model.tokenizer, rows, model.classes, model.device, log)

    def taken_over(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        if not isinstance(getattr(run.model, "head", None), PositionHead):
            return None
        return replace(run, data=LabelData(outputs="tags"), objective=TaggingConfig())


CLASSIFICATION, TAGGING = Classification(), Tagging()
