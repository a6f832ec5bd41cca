"""Tagging: predict a tag for each word of a text from the first token of the word."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from glassformer.config.run import LabelData, Run, TaggingConfig
from glassformer.config.transformer import PositionHead
from glassformer.data.batching import Example
from glassformer.evaluation.labels import classification_report, is_bio
from glassformer.evaluation.metrics import measure
from glassformer.inference.classify import Tagger
from glassformer.objectives.classification import TaggingObjective
from glassformer.objectives.loss import Objective
from glassformer.tasks.label_data import LabelTask, Scores
from glassformer.tasks.model_parts import ModelParts
from glassformer.tasks.requirements import BUILT_IN
from glassformer.tokenization.tokenizer import Tokenizer


class Tagging(LabelTask):
    """Tagging: a model of one stack predicts a tag for each word."""

    settings = TaggingConfig
    facts = BUILT_IN["tagging"]
    unit = "word"
    names_are = "tags"
    refuses_truncation = True  # truncated words get no tag, so scores would not be comparable

    # Training

    def objective(self, run: Run, class_weights: tuple[float, ...] = ()) -> Objective:
        return TaggingObjective(run.objective.label_smoothing, class_weights)

    def label_scores(self, run: Run, logits: Sequence[Tensor], rows: Sequence[Example], names: Sequence[str]) -> Scores:
        """Return accuracy and F1 of words, the full report under `report`, and F1 of spans if the tags mark spans."""
        gold = [e.labels[e.labels != -100] for e in rows if e.labels is not None]
        labels, probabilities = np.concatenate(gold), torch.cat(list(logits)).softmax(dim=-1).numpy()
        report = classification_report(labels, probabilities, list(names))
        scores: Scores = {**measure("words", report, labels, probabilities)}
        scores |= {name: getattr(report, name) for name in ("calibration_error", "most_frequent_share")}
        scores["report"] = report
        if is_bio(names):
            predicted = [[names[i] for i in x.argmax(dim=1).tolist()] for x in logits]
            scores |= measure("spans", [[names[i] for i in of_row] for of_row in gold], predicted)
        return scores

    # Use

    def tagger(self, model: ModelParts) -> Tagger:
        return Tagger(model.network, model.tokenizer, self.classes(model), model.device)

    def adopt(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        if not isinstance(getattr(run.model, "head", None), PositionHead):
            return None
        return replace(run, data=LabelData(outputs="tags"), objective=TaggingConfig())


TASK = Tagging()
