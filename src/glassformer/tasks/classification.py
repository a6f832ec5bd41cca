"""Classification (a class for a text or a pair of texts) and regression (a number)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.config.run import ClassificationConfig, LabelData, Run
from glassformer.config.transformer import SequenceHead, TransformerConfig
from glassformer.data.batching import Example
from glassformer.errors import UserError
from glassformer.evaluation.labels import classification_report
from glassformer.evaluation.metrics import measure
from glassformer.inference.classify import predict, text_rows
from glassformer.objectives.classification import ClassificationObjective, MultiLabelObjective, RegressionObjective
from glassformer.objectives.loss import Objective
from glassformer.tasks.label_data import LabelTask, Scores
from glassformer.tasks.requirements import CLASSES, data_of
from glassformer.tasks.task import Classifies, Log, TakesOver, TrainedModel
from glassformer.tokenization.tokenizer import Tokenizer


class Classification(LabelTask, Classifies, TakesOver):
    """Classification and regression: a model of one stack predicts a label for a whole text."""

    settings = ClassificationConfig
    verb = "classify"
    unit = "text"
    names_are = "classes"
    requires = CLASSES
    refuses_cuts = False

    def learned(self, run: Run) -> str:
        texts = "two texts" if self.takes_pairs(run) else "a text"
        predicted = {"regression": "a number", "multi_label": "labels"}
        return f"predict {predicted.get(data_of(run, LabelData).outputs, 'a label')} for {texts}"

    def example(self, run: Run) -> str:
        return '("…", "…")' if self.takes_pairs(run) else '"…"'

    def is_multi_label(self, run: Run) -> bool:
        return data_of(run, LabelData).outputs == "multi_label"

    def choices(self, run: Run, logits: Tensor) -> Tensor:
        if self.is_multi_label(run):  # each label is present or absent: softmax([x, 0])[0] = sigmoid(x)
            return torch.stack([logits, torch.zeros_like(logits)], dim=-1)
        return super().choices(run, logits)

    def probabilities(self, run: Run, logits: Tensor) -> Tensor:
        return logits.sigmoid() if self.is_multi_label(run) else super().probabilities(run, logits)

    def takes_pairs(self, run: Run) -> bool:
        return data_of(run, LabelData).second_field is not None

    # Training

    def objective(self, run: Run) -> Objective:
        if self.is_multi_label(run):
            return MultiLabelObjective()
        if not self.is_regression(run):
            return ClassificationObjective(run.objective.label_smoothing)
        assert isinstance(run.model, TransformerConfig) and isinstance(run.model.head, SequenceHead)
        return RegressionObjective(run.model.head.std or 1.0)

    def sections(self, run: Run, labels: Sequence[str] = ()) -> tuple[str, ...]:
        return (data_of(run, LabelData).outputs,)

    def label_scores(self, run: Run, logits: Sequence[Tensor], rows: Sequence[Example], names: Sequence[str]) -> Scores:
        """Return accuracy, F1 and calibration for classes, with the full report under `report`; errors for numbers."""
        if self.is_regression(run):
            true = np.array([e.label for e in rows], dtype=np.float64)
            return measure("regression", true, np.array([float(x[0]) for x in logits]))
        if self.is_multi_label(run):
            true = np.array([e.label_set for e in rows]) == 1
            return measure("multi_label", true, torch.stack(list(logits)).numpy() > 0)
        labels = np.array([int(e.label or 0) for e in rows])
        probabilities = self.probabilities(run, torch.stack(list(logits))).numpy()
        report = classification_report(labels, probabilities, list(names))
        scores: Scores = {**measure("classes", report, labels, probabilities)}
        return scores | {"most_frequent_share": report.most_frequent_share, "report": report}

    # Use

    def classify(self, model: TrainedModel, rows: Sequence[tuple[str, ...]], log: Log) -> list[dict[str, float]]:
        is_imported = data_of(model.run, LabelData).path is None  # then one or two texts are both possible
        for row in rows:
            if not is_imported and (len(row) > 1) != self.takes_pairs(model.run):
                texts = "two texts" if self.takes_pairs(model.run) else "one text"
                raise UserError(f"{model.name}: expected {texts} per item, got {len(row)}")
        logits = predict(model.vote, text_rows(model.tokenizer, rows, model.vote.config.max_len, log), model.device)
        if not model.classes:
            return [{"number": float(x[0])} for x in logits]
        found = [self.probabilities(model.run, x).tolist() for x in logits]
        return [dict(zip(model.classes, probabilities, strict=True)) for probabilities in found]

    def taken_over(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        if not isinstance(getattr(run.model, "head", None), SequenceHead):
            return None
        outputs: Any = "classes" if len(labels) > 1 else "regression"
        return replace(run, data=LabelData(outputs=outputs), objective=ClassificationConfig())


TASK = Classification()
