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
from glassformer.evaluation.labels import best_threshold, classification_report
from glassformer.evaluation.metrics import measure
from glassformer.inference.classify import Classifier
from glassformer.objectives.classification import ClassificationObjective, MultiLabelObjective, RegressionObjective
from glassformer.objectives.loss import Objective
from glassformer.tasks.label_data import LabelTask, Scores
from glassformer.tasks.model_parts import ModelParts
from glassformer.tasks.requirements import BUILT_IN, data_of
from glassformer.tokenization.tokenizer import Tokenizer


class Classification(LabelTask):
    """Classification and regression: a model of one stack predicts a label for a whole text."""

    settings = ClassificationConfig
    facts = BUILT_IN["classification"]
    unit = "text"
    names_are = "classes"
    refuses_truncation = False

    def example(self, run: Run) -> str:
        return '("…", "…")' if takes_pairs(run) else '"…"'

    # Training

    def objective(self, run: Run, class_weights: tuple[float, ...] = ()) -> Objective:
        outputs = data_of(run, LabelData).outputs
        if outputs == "multi_label":
            return MultiLabelObjective()
        if outputs == "classes":
            return ClassificationObjective(run.objective.label_smoothing, class_weights)
        assert isinstance(run.model, TransformerConfig) and isinstance(run.model.head, SequenceHead)
        return RegressionObjective(run.model.head.std or 1.0)

    def label_scores(self, run: Run, logits: Sequence[Tensor], rows: Sequence[Example], names: Sequence[str]) -> Scores:
        """Return accuracy, F1 and calibration for classes, with the full report under `report`; errors for numbers.

        Of two classes, also the threshold with the best F1 of the rarer one; of several labels, with the best F1 over
        all decisions (micro F1). The same rows chose it, so its F1 on other rows is a little lower.
        """
        scores: Scores
        outputs = data_of(run, LabelData).outputs
        if outputs == "regression":
            true = np.array([e.label for e in rows], dtype=np.float64)
            return measure("regression", true, np.array([float(x[0]) for x in logits]))
        if outputs == "multi_label":
            true, stacked = np.array([e.label_set for e in rows]) == 1, torch.stack(list(logits))
            at, f1 = best_threshold(true.flatten(), stacked.sigmoid().flatten().numpy())
            scores = measure("multi_label", true, stacked.numpy() > 0)
            return scores | {"best_threshold": at, "best_threshold_f1": f1}
        labels = np.array([int(e.label or 0) for e in rows])
        probabilities = torch.stack(list(logits)).softmax(dim=-1).numpy()
        report = classification_report(labels, probabilities, list(names))
        scores = measure("classes", report, labels, probabilities)
        if len(names) == 2:
            rarer = int(2 * labels.sum() <= len(labels))
            at, f1 = best_threshold(labels == rarer, probabilities[:, rarer])
            scores |= {"best_threshold": at, "best_threshold_label": names[rarer], "best_threshold_f1": f1}
        return scores | {"most_frequent_share": report.most_frequent_share, "report": report}

    # Use

    def classifier(self, model: ModelParts) -> Classifier:
        data, names = data_of(model.run, LabelData), self.classes(model)
        return Classifier(model.network, model.tokenizer, names, data, model.device, model.name)

    def adopt(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        if not isinstance(getattr(run.model, "head", None), SequenceHead):
            return None
        outputs: Any = "classes" if len(labels) > 1 else "regression"
        return replace(run, data=LabelData(outputs=outputs), objective=ClassificationConfig())


def takes_pairs(run: Run) -> bool:
    """Return True if each item is a pair of texts."""
    return data_of(run, LabelData).second_field is not None


TASK = Classification()
