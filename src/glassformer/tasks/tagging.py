"""Tagging: predict a tag for each word of a text from the first token of the word."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from glassformer.config.run import LabelData, Run, TaggingConfig
from glassformer.config.transformer import PositionHead
from glassformer.data.batching import Example
from glassformer.evaluation.labels import classification_report, is_bio, span_f1
from glassformer.inference.classify import Tagger
from glassformer.objectives.classification import TaggingObjective
from glassformer.objectives.loss import Objective
from glassformer.tasks.label_data import LabelTask, Scores, scores_of
from glassformer.tasks.model_parts import ModelParts
from glassformer.tokenization.tokenizer import Tokenizer

SCORES = {"accuracy": True, "macro_f1": True, "span_f1": True}
"""Scores in percent; True if higher is better. `span_f1` exists for span tags only (B-, I-, O)."""


class Tagging(LabelTask):
    """Tagging: a model of one stack predicts a tag for each word."""

    settings = TaggingConfig
    verb = "tag"
    unit = "word"
    names_are = "tags"
    outputs = ("tags",)
    head = PositionHead
    refuses_cuts = True  # truncated words get no tag, so scores would not be comparable

    def learned(self, run: Run) -> str:
        return "tag words"

    def example(self, run: Run) -> str:
        return '"…"'

    def metrics(self, run: Run) -> tuple[str, ...]:
        return tuple(SCORES)

    # Training

    def objective(self, run: Run) -> Objective:
        return TaggingObjective(run.objective.label_smoothing)

    def higher_is_better(self, run: Run, names: Sequence[str]) -> dict[str, bool]:
        return {name: higher for name, higher in SCORES.items() if name != "span_f1" or is_bio(names)}

    def label_scores(self, run: Run, logits: Sequence[Tensor], rows: Sequence[Example], names: Sequence[str]) -> Scores:
        """Return accuracy and F1 of words, the full report under `report`, and F1 of spans if the tags mark spans."""
        gold = [e.labels[e.labels != -100] for e in rows if e.labels is not None]
        probabilities = torch.cat(list(logits)).softmax(dim=1).numpy()
        scores = scores_of(classification_report(np.concatenate(gold), probabilities, list(names)))
        if is_bio(names):
            written = [[names[i] for i in x.argmax(dim=1).tolist()] for x in logits]
            spans = span_f1([[names[i] for i in of_row] for of_row in gold], written)
            scores |= {"span_f1": spans.f1, "span_precision": spans.precision, "span_recall": spans.recall}
        return scores

    # Use

    def tagger(self, model: ModelParts) -> Tagger:
        return Tagger(self.vote(model), model.tokenizer, self.classes(model), model.device)

    def adopt(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        if not isinstance(getattr(run.model, "head", None), PositionHead):
            return None
        return replace(run, data=LabelData(outputs="tags"), objective=TaggingConfig())


TASK = Tagging()
