"""Texts with labels as material: classes, numbers, or tags of words."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch

from glassformer.config.run import ClassificationConfig, LabelData, Run, TaggingConfig
from glassformer.config.train import TrainConfig
from glassformer.config.transformer import PositionHead, SequenceHead, TransformerConfig
from glassformer.data.batching import Example, Sampler
from glassformer.data.budget import TokenBudget, evaluation_batches, example_rows
from glassformer.data.fresh_cuts import FreshCuts
from glassformer.data.label_files import Labelled, Tagged
from glassformer.data.label_rows import encode_tagged, encode_texts
from glassformer.data.labels import LabelCorpus, LabelRecord, class_names
from glassformer.errors import UserError
from glassformer.evaluation.division import Division
from glassformer.evaluation.label_scores import LABEL_SCORES, label_scores
from glassformer.evaluation.labels import is_bio
from glassformer.models.build import Network
from glassformer.objectives.classification import ClassificationObjective, RegressionObjective, TaggingObjective
from glassformer.objectives.objective import Objective
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.training.material import Tokenizers, first_dropout_seed, learn_tokenizer
from glassformer.training.reporting import LaunchReporter
from glassformer.training.task import Task, watched_scores

ROWS_OF_TRAIN_EVALUATED = 1000


class LabelMaterial:
    """The labelled texts of a run and their split."""

    def __init__(self, run: Run) -> None:
        self.data = labels_of(run)
        self.corpus = LabelCorpus(self.data)
        self.name = self.corpus.name

    @property
    def digest(self) -> str:
        return self.corpus.digest

    def take_digest(self, digest: str) -> None:
        self.corpus.digest = digest

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes or tags of the training data, by number; none where labels are numbers."""
        return () if self.data.outputs == "regression" else tuple(class_names(self.corpus.split[0]))

    @property
    def n_outputs(self) -> int:
        """Logits that the model's head needs."""
        return len(self.labels) or 1

    @property
    def mean_and_std(self) -> tuple[float, float] | None:
        """Of the numbers that are trained on: their mean and standard deviation."""
        if self.data.outputs != "regression":
            return None
        numbers = np.array([float(record.label) for record in self.corpus.split[0] if isinstance(record, Labelled)])
        with np.errstate(over="ignore"):
            mean, std = float(numbers.mean()), float(numbers.std())
        if not math.isfinite(std):
            raise UserError(f"{self.name} has numbers that are too large to square: divide them")
        return mean, std or 1.0

    def trains_starts(self, run: Run) -> bool:
        return False

    def check(self, run: Run) -> None:
        tags = self.data.outputs == "tags"
        wanted, head, kind = (
            (TaggingConfig, PositionHead, "positions") if tags else (ClassificationConfig, SequenceHead, "sequence")
        )
        if not isinstance(run.objective, wanted):
            raise UserError(
                f"data.outputs {self.data.outputs} is learned with objective.kind {wanted.kind}, and it is "
                f"{run.objective.kind}"
            )
        model = run.model
        if not isinstance(model, TransformerConfig) or model.is_encoder_decoder:
            raise UserError("a label is read off one stack: give [model.encoder], or [model.decoder], alone")
        if self.data.outputs == "regression" and run.objective.label_smoothing:
            raise UserError("numbers have no label smoothing: set objective.label_smoothing 0")
        if not isinstance(model.head, head):
            raise UserError(f"data.outputs {self.data.outputs} needs [model.head] of kind {kind}")
        if self.data.second_field is not None and model.n_token_types < 2:
            raise UserError(
                "a pair of texts is told apart by token types, and the model has none: give --model.n-token-types 2"
            )
        if run.train.batch_size != TrainConfig().batch_size:
            raise UserError("batches of labelled texts are measured in tokens: give data.batch_tokens")

    def news(self) -> list[str]:
        return self.corpus.news()

    def tokenizers(self, run: Run, reporter: LaunchReporter) -> Tokenizers:
        texts = [text for record in self.corpus.split[0] for text in _texts(record)]
        return Tokenizers(learn_tokenizer(run.tokenizer, texts, reporter))

    def prepare(
        self, run: Run, tokenizers: Tokenizers, reporter: LaunchReporter, *, checks_hashes: bool = True
    ) -> "PreparedLabels":
        return PreparedLabels(run, tokenizers.target, self.corpus.split, self.labels, reporter)


class PreparedLabels:
    """Both sides as examples, in memory; texts that are too long lose their end, and that is told."""

    def __init__(
        self,
        run: Run,
        tokenizer: Tokenizer,
        split: tuple[Sequence[LabelRecord], Sequence[LabelRecord]],
        names: Sequence[str],
        reporter: LaunchReporter,
    ) -> None:
        self.run, self.tokenizer, self.records, self.names = run, tokenizer, split, names
        with reporter.phase("preparing tokens"):
            self.train = self._train(first_dropout_seed(run), reporter.log)
            self.valid = labelled_examples(
                split[1], tokenizer, run.model.max_len, names, "validation texts", reporter.log
            )

    def _train(self, dropout_seed: int, log: Callable[[str], None]) -> list[Example]:
        max_len, share = self.run.model.max_len, self.run.tokenizer.dropout
        return labelled_examples(
            self.records[0], self.tokenizer, max_len, self.names, "training texts", log, share, dropout_seed
        )

    @property
    def summary(self) -> str:
        n_tokens = np.mean([len(e.token_ids) for e in self.train])
        kinds = f", {len(self.names)} {'tags' if self.run.objective.kind == 'tagging' else 'classes'}" * bool(
            self.names
        )
        return f"{len(self.train):,} training texts of {n_tokens:.1f} tokens, {len(self.valid):,} for validation{kinds}"

    def task(self, network: Network, device: torch.device) -> Task:
        run, data = self.run, labels_of(self.run)

        def sampler_of(examples: Sequence[Example], seed: int) -> TokenBudget:
            return TokenBudget(example_rows(examples, "training texts"), data.batch_tokens, seed)

        def sampler_of_cuts(seed: int) -> tuple[Sampler, None]:
            return sampler_of(self._train(seed, lambda _: None), seed), None  # long texts: said of the first epoch

        seed = first_dropout_seed(run)
        first = sampler_of(self.train, seed or run.train.seed)

        def batches(examples: Sequence[Example]) -> Callable[[], Sequence[Sequence[Example]]]:
            return lambda: list(evaluation_batches(example_rows(examples, "texts"), data.batch_tokens))

        return Task(
            objective_of(run),
            FreshCuts(first, sampler_of_cuts, run.train.seed) if seed else first,
            {"train": batches(self.train[:ROWS_OF_TRAIN_EVALUATED]), "valid": batches(self.valid)},
            n_bytes={"train": None, "valid": None},
            score=self._score(network, device),
        )

    def _score(self, network: Network, device: torch.device) -> Callable[[Division], dict[str, float]] | None:
        """Scores at each evaluation; `UserError` for a setting that watches another metric."""
        known = dict(LABEL_SCORES[labels_of(self.run).outputs])
        if not is_bio(self.names):
            known.pop("span_f1", None)
        watched_scores(self.run.train, ["loss"], known)

        def score(division: Division) -> dict[str, float]:
            found = label_scores(network, self.valid, self.names, labels_of(self.run), device, division)
            return {name: float(found[name]) for name in known if isinstance(found.get(name), float)}

        return score


def labels_of(run: Run) -> LabelData:
    """The labelled data of a run; `UserError` when it learns from something else."""
    if not isinstance(run.data, LabelData):
        raise UserError(f"the run {run.name!r} has no labels: it learned from data of kind {run.data.kind}")
    return run.data


def objective_of(run: Run) -> Objective:
    """Classification, regression or tagging."""
    smoothing = run.objective.label_smoothing
    if labels_of(run).outputs == "regression":
        assert isinstance(run.model, TransformerConfig) and isinstance(run.model.head, SequenceHead)
        return RegressionObjective(run.model.head.std or 1.0)
    return (
        TaggingObjective(smoothing) if isinstance(run.objective, TaggingConfig) else ClassificationObjective(smoothing)
    )


def labelled_examples(
    records: Sequence[LabelRecord],
    tokenizer: Tokenizer,
    max_len: int,
    names: Sequence[str],
    name: str,
    log: Callable[[str], None],
    dropout: float = 0.0,
    dropout_seed: int = 0,
) -> list[Example]:
    """Records as rows with their labels, which are known to be among `names`; `dropout` leaves merges out."""
    numbers = {label: i for i, label in enumerate(names)}
    tagged = [record for record in records if isinstance(record, Tagged)]
    labelled = [record for record in records if isinstance(record, Labelled)]
    if tagged:
        tags = [[numbers[tag] for tag in record.tags] for record in tagged]
        words = [record.words for record in tagged]
        rows, n_cut = encode_tagged(tokenizer, words, max_len, tags, dropout, dropout_seed)
        n_read = sum(int((row.labels != -100).sum()) for row in rows if row.labels is not None)
        lost = f", {sum(map(len, tags)) - n_read:,} words with tags"
    else:
        values = [float(numbers[record.label]) if names else float(record.label) for record in labelled]
        texts = [_texts(record) for record in labelled]
        rows, n_cut = encode_texts(tokenizer, texts, max_len, values, dropout, dropout_seed)
        lost = ""
    if n_cut:
        log(f"{n_cut:,} of the {len(rows):,} {name} are longer than {max_len:,} tokens and lose their end{lost}")
    return rows


def _texts(record: LabelRecord) -> list[str]:
    if isinstance(record, Tagged):
        return [" ".join(record.words)]
    return [record.text] if record.second is None else [record.text, record.second]
