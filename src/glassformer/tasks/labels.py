"""The tasks of models that read whole texts: classes or numbers of texts, tags of words, and text vectors.

Classification and tagging learn from labelled texts. They differ in head, objective and scores.
"""

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.common.errors import Log, Progress, UserError, warn
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import ClassificationConfig, LabelData, NoObjective, Run, TaggingConfig
from glassformer.config.train import UNBALANCED
from glassformer.config.transformer import PositionHead, SequenceHead, TransformerConfig, VectorHead
from glassformer.data.batching import Example, Sampler, TokenBudget, evaluation_batches, example_rows
from glassformer.data.labels import LabelCorpus, Labelled, class_names, imbalance_of, require_known
from glassformer.data.rows import encode_tagged, encode_texts
from glassformer.data.tokens import NO_DROPOUT, BpeDropout, learn_tokenizer
from glassformer.evaluation import metrics
from glassformer.evaluation.labels import best_threshold, classification_report, is_bio
from glassformer.evaluation.loss import ALONE, Division
from glassformer.evaluation.metrics import measure
from glassformer.inference.classify import Classifier, Tagger, predict
from glassformer.models.build import Network
from glassformer.objectives import classification
from glassformer.objectives.loss import Objective
from glassformer.tasks import preparation
from glassformer.tasks.batches import EvaluationData, Places, TrainingData
from glassformer.tasks.reporting import LaunchReporter
from glassformer.tasks.requirements import BUILT_IN, data_of, require_watched
from glassformer.tasks.task import ModelParts, RunData, Task, TrainableTask
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers

Scores = dict[str, Any]
"""Scores by name, and reports."""
ROWS_OF_TRAIN_EVALUATED = 1000


class LabelTask(TrainableTask):
    """Base class of the tasks that learn from labelled texts."""

    names_are: str
    """Plural noun for the names of labels: classes or tags."""
    refuses_truncation: bool
    """True if an evaluation refuses a file with texts that would be truncated."""

    @abstractmethod
    def objective(self, run: Run, class_weights: tuple[float, ...] = ()) -> Objective: ...

    @abstractmethod
    def label_scores(self, run: Run, logits: Sequence[Tensor], rows: Sequence[Example], names: Sequence[str]) -> Scores:
        """Return the scores of a model's logits on labelled rows."""

    def metrics(self, run: Run) -> tuple[str, ...]:
        return metrics.names(*run.data.scores)

    def classes(self, model: ModelParts) -> tuple[str, ...]:
        return () if data_of(model.run, LabelData).outputs == "regression" else model.labels

    def open(self, run: Run) -> "LabelRunData":
        return LabelRunData(self, run)

    def evaluation(self, model: ModelParts, places: Places, log: Log) -> EvaluationData[Example]:
        data, records = preparation.records_of(model, LabelData, places, "texts with labels", log)
        names = self.classes(model)
        if names:
            require_known(records, names)
        told = preparation.refuse if self.refuses_truncation and places.path is not None else log
        max_len = model.config.max_len
        examples = LabelRows(model.tokenizer, max_len, names, data.outputs, told).encode(records, "texts")
        rows = example_rows(examples, "texts")
        return EvaluationData(
            lambda: evaluation_batches(rows, data.batch_tokens),
            self.objective(model.run),
            sum(int((e.labels != -100).sum()) if e.labels is not None else 1 for e in examples),
            records=examples,
        )

    def scores(
        self, model: ModelParts, places: Places, progress: Progress | None, log: Log, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        rows = self.evaluation(model, places, log).records
        return self.measure(model.run, model.network, rows, self.classes(model), model.device)

    def measure(
        self,
        run: Run,
        network: nn.Module,
        rows: Sequence[Example],
        names: Sequence[str],
        device: torch.device | str,
        division: Division = ALONE,
    ) -> Scores:
        """Return the scores of a network on labelled rows; `division` divides the batches among processes."""
        logits = predict(network, rows, device, division.takes)
        if division.n > 1:
            own = {str(place): x.tolist() for place, x in enumerate(logits) if x.numel()}
            for place, values in division.joined(own).items():
                logits[int(place)] = torch.tensor(values)
        return self.label_scores(run, logits, rows, names)


class LabelRunData(RunData):
    """Labelled texts of a run, split into training and validation data."""

    corpus: LabelCorpus

    def __init__(self, task: LabelTask, run: Run) -> None:
        self.task, self.data = task, data_of(run, LabelData)
        self.corpus = LabelCorpus(self.data)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes or tags in the training data, in order of their ids; empty for numbers."""
        return () if self.data.outputs == "regression" else tuple(class_names(self.corpus.split[0]))

    def metric(self) -> tuple[str, str]:
        """Return the metric `accuracy`, or `macro_f1` if labels are unbalanced, with the reason; `loss` for numbers."""
        if self.data.outputs == "regression":
            return "loss", ""
        imbalance = imbalance_of(self.corpus.counts)
        if imbalance is None or imbalance <= UNBALANCED:
            return "accuracy", ""
        names = self.task.names_are
        return "macro_f1", f"the {names} are unbalanced, {imbalance:,.1f} : 1 (more than {UNBALANCED:g} : 1)"

    @cached_property
    def class_weights(self) -> tuple[float, ...]:
        """Weight of each label in the loss of a training step."""
        return classification.balanced_weights([self.corpus.counts[name] for name in self.labels])

    def _mean_and_std(self) -> tuple[float, float]:
        """Return the mean and standard deviation of the numbers in the training data."""
        numbers = np.array([float(record.labels[0]) for record in self.corpus.split[0]])
        with np.errstate(over="ignore"):
            mean, std = float(numbers.mean()), float(numbers.std())
        if not math.isfinite(std):
            raise UserError(f"{self.corpus.name} has numbers whose squares overflow: scale them down")
        return mean, std or 1.0

    def complete(self, run: Run, tokenizers: Tokenizers) -> ModelConfig:
        """Return the model configuration with one output per label or, for numbers, their mean and deviation."""
        model = preparation.with_vocabulary(run.model, tokenizers)
        assert isinstance(model, TransformerConfig) and isinstance(model.head, (PositionHead, SequenceHead))
        n_outputs = len(self.labels) or 1
        if model.head.n_labels not in (0, n_outputs):
            raise UserError(f"model.head.n_labels: expected {n_outputs}, got {model.head.n_labels}; leave it at 0")
        head = replace(model.head, n_labels=n_outputs)
        if isinstance(head, SequenceHead) and head.std == 0 and self.data.outputs == "regression":
            mean, std = self._mean_and_std()
            head = replace(head, mean=mean, std=std)
        return replace(model, head=head)

    def tokenizers(self, run: Run, reporter: LaunchReporter) -> Tokenizers:
        inputs = [record.inputs for record in self.corpus.split[0]]
        texts = map(" ".join, inputs) if self.data.outputs == "tags" else itertools.chain(*inputs)
        return Tokenizers(learn_tokenizer(run.tokenizer, texts, reporter.phase))

    def prepare(
        self, run: Run, tokenizers: Tokenizers, reporter: LaunchReporter, *, checks_hashes: bool = True
    ) -> "PreparedLabels":
        return PreparedLabels(self, run, tokenizers.target, reporter)


class PreparedLabels:
    """Training and validation examples, in memory. Long texts are truncated, and the log reports how many."""

    def __init__(self, data: LabelRunData, run: Run, tokenizer: Tokenizer, reporter: LaunchReporter) -> None:
        self.task, self.names, self.run = data.task, data.labels, run
        is_weighted = getattr(run.objective, "class_weights", "none") == "balanced"
        self.class_weights = data.class_weights if is_weighted else ()
        self.records, valid = data.corpus.split
        rows = LabelRows(tokenizer, run.model.max_len, self.names, data.data.outputs, warn)
        with reporter.phase("preparing tokens"):
            self.train = self._train(rows, preparation.first_dropout_seed(run))
            self.valid = rows.encode(valid, "validation texts")
        self.rows = replace(rows, log=lambda _: None)  # truncation is logged once

    def _train(self, rows: "LabelRows", dropout_seed: int) -> list[Example]:
        return rows.encode(self.records, "training texts", BpeDropout(self.run.tokenizer.bpe_dropout, dropout_seed))

    @property
    def summary(self) -> str:
        n_tokens = np.mean([len(e.token_ids) for e in self.train])
        kinds = f", {len(self.names)} {self.task.names_are}" if self.names else ""
        if weights := self.class_weights:
            kinds += f" with weights from {min(weights):.3g} to {max(weights):.3g} in the loss of a step"
        return f"{len(self.train):,} training texts of {n_tokens:.1f} tokens, {len(self.valid):,} for validation{kinds}"

    def training_data(self, network: Network, device: torch.device, division: Division) -> TrainingData:
        run, data = self.run, data_of(self.run, LabelData)

        def sampler_of(examples: Sequence[Example], seed: int) -> TokenBudget:
            return TokenBudget(example_rows(examples, "training texts"), data.batch_tokens, seed)

        def sampler_of_epoch(seed: int) -> tuple[Sampler, None]:
            return sampler_of(self._train(self.rows, seed), seed), None

        seed = preparation.first_dropout_seed(run)
        first = sampler_of(self.train, seed or run.train.seed)
        evaluated = {"train": self.train[:ROWS_OF_TRAIN_EVALUATED], "valid": self.valid}

        return TrainingData(
            self.task.objective(run),
            preparation.reencoded_each_epoch(run, first, sampler_of_epoch),
            preparation.evaluations(evaluated, "texts", data.batch_tokens),
            score=self._score(network, device),
            step_objective=self.task.objective(run, self.class_weights) if self.class_weights else None,
        )

    def _score(self, network: Network, device: torch.device) -> Callable[[Division], dict[str, float]] | None:
        """Return the function that computes scores; raise `UserError` if a setting watches a score that labels lack."""
        sections = [name for name in self.run.data.scores if name != "spans" or is_bio(self.names)]
        require_watched(self.run, sections)
        known = metrics.names(*sections)

        def score(division: Division) -> dict[str, float]:
            found = self.task.measure(self.run, network, self.valid, self.names, device, division)
            return {name: float(found[name]) for name in known if isinstance(found.get(name), float)}

        return score


@dataclass(frozen=True)
class LabelRows:
    """Encoder of labelled records as rows of at most `max_len` tokens; all labels must be in `names`."""

    tokenizer: Tokenizer
    max_len: int
    names: Sequence[str]
    outputs: str
    """The setting `data.outputs`."""
    log: Log
    """Receives the number of truncated rows."""

    def encode(self, records: Sequence[Labelled], name: str, dropout: BpeDropout = NO_DROPOUT) -> list[Example]:
        """Return the rows of records, which are called `name` in the log."""
        numbers, lost = {label: i for i, label in enumerate(self.names)}, ""
        inputs, tokenizer, max_len = [record.inputs for record in records], self.tokenizer, self.max_len
        if self.outputs == "tags":
            tags = [[numbers[tag] for tag in record.labels] for record in records]
            rows, n_cut = encode_tagged(tokenizer, inputs, max_len, tags, dropout=dropout)
            n_read = sum(int((row.labels != -100).sum()) for row in rows if row.labels is not None)
            lost = f" ({sum(map(len, tags)) - n_read:,} tagged words are lost)"
        else:
            rows, n_cut = encode_texts(tokenizer, inputs, max_len, dropout=dropout)
            targets = [self._target(record.labels, numbers) for record in records]
            rows = [replace(row, **target) for row, target in zip(rows, targets, strict=True)]
        if n_cut:
            self.log(
                f"{n_cut:,} of the {len(rows):,} {name} are longer than {max_len:,} tokens and are truncated{lost}"
            )
        return rows

    def _target(self, labels: Sequence[str], numbers: Mapping[str, int]) -> dict[str, Any]:
        """Return the labels of a text as a field of `Example`; `numbers` maps their names to indices."""
        if self.outputs == "regression":
            return {"label": float(labels[0])}
        if self.outputs == "classes":
            return {"label": float(numbers[labels[0]])}
        label_set = np.zeros(len(numbers), dtype=np.float32)
        label_set[[numbers[label] for label in labels]] = 1
        return {"label_set": label_set}


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
            return classification.MultiLabelObjective()
        if outputs == "classes":
            return classification.ClassificationObjective(run.objective.label_smoothing, class_weights)
        assert isinstance(run.model, TransformerConfig) and isinstance(run.model.head, SequenceHead)
        return classification.RegressionObjective(run.model.head.std or 1.0)

    def label_scores(self, run: Run, logits: Sequence[Tensor], rows: Sequence[Example], names: Sequence[str]) -> Scores:
        """Return accuracy, F1 and calibration for classes, with the full report under `report`; errors for numbers.

        For two classes, the result also has the threshold with the best F1 of the rarer class. For several labels, it
        has the threshold with the best F1 over all decisions (micro F1). The threshold is chosen on the same rows, so
        on other rows its F1 is a little lower.
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


CLASSIFICATION = Classification()


class Tagging(LabelTask):
    """Tagging: a model of one stack predicts a tag for each word."""

    settings = TaggingConfig
    facts = BUILT_IN["tagging"]
    unit = "word"
    names_are = "tags"
    refuses_truncation = True  # truncated words get no tag, so scores would not be comparable

    # Training

    def objective(self, run: Run, class_weights: tuple[float, ...] = ()) -> Objective:
        return classification.TaggingObjective(run.objective.label_smoothing, class_weights)

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


TAGGING = Tagging()


class TextVectors(Task):
    """Text vectors: a model of one stack computes a vector for each text."""

    settings = NoObjective
    facts = BUILT_IN["none"]

    def adopt(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        if not isinstance(getattr(run.model, "head", None), VectorHead):
            return None
        return replace(run, objective=NoObjective())


VECTORS = TextVectors()
