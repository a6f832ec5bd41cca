"""What the loop and an evaluation are given: batches, their objective, and how a model is measured on them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import nn

from glassformer import files
from glassformer.config.train import TrainConfig
from glassformer.data.batching import Example, Sampler
from glassformer.devices import arithmetic, autocast_dtype
from glassformer.errors import UserError
from glassformer.evaluation.division import Division
from glassformer.evaluation.loss import LossReport, evaluate_loss, evaluation_mode
from glassformer.evaluation.text import LOSSES
from glassformer.objectives.loss import Objective
from glassformer.seeds import Stream, rng

Place = str | Path | None
R = TypeVar("R")

FEW_TARGETS = 1000
"""With fewer targets a validation loss is too uncertain to choose a checkpoint by."""


@dataclass(frozen=True)
class TrainingData:
    """What is trained on what, and how it is measured."""

    objective: Objective
    sampler: Sampler
    evaluations: dict[str, Callable[[], Iterable[Sequence[Example]]]]
    """Fresh batches of each split."""
    n_bytes: Mapping[str, int | None] = field(default_factory=dict)
    """Of the text of each split, where they are known."""
    sample: Callable[[], str] | None = None
    """Text that the model writes now, shown at each evaluation."""
    score: Callable[[Division], dict[str, float]] | None = None
    """Scores of the model's outputs now, such as BLEU; taken at each evaluation, so given only when they are wanted.
    All processes call it, and divide the work."""
    has_one_shape: bool = False
    """Every batch of training has as many rows and tokens as the first, and no padding."""


@dataclass(frozen=True)
class EvaluationData(Generic[R]):
    """Batches, and what is to be made of them."""

    batches: Callable[[], Iterable[Sequence[Example]]]
    objective: Objective
    n_targets: int
    """About how many there are, for progress."""
    n_bytes: int | None = None
    """That the targets stand for, where they are known."""
    records: Sequence[R] = ()
    """What the batches are made of, where scores need it."""

    def loss(
        self,
        network: nn.Module,
        device: torch.device,
        train: TrainConfig | None,
        progress: Callable[[int, int], None] | None,
    ) -> LossReport:
        """The reported loss in the precision of a run, or in that of the weights where `train` is None."""
        # No backward, so kernels need not be deterministic; CUDA would refuse to change that after earlier work.
        settings = nullcontext() if train is None else arithmetic(replace(train, deterministic=False))
        autocast = None if train is None else autocast_dtype(train.precision)
        report = (lambda done: progress(done, self.n_targets)) if progress else None
        with evaluation_mode(network), settings:
            return evaluate_loss(network, self.objective, self.batches(), device, self.n_bytes, autocast, report)


@dataclass(frozen=True)
class Places:
    """Where other data stands; nothing of it = the validation side of the run's own data."""

    path: Place = None
    source: Place = None
    target: Place = None

    def __post_init__(self) -> None:
        """Raises `UserError` for what is no path."""
        for name, given in vars(self).items():
            if given is not None:
                files.as_path(given, name)

    def path_alone(self, name: str, kind: str) -> Place:
        """The one file, of a model that has no source; `UserError` that names the `kind` of its data."""
        if self.source is not None or self.target is not None:
            raise UserError(f"{name} has no source and is evaluated on {kind}: give it as --data.path FILE")
        return self.path


@dataclass(frozen=True)
class MicroBatch:
    """How large a batch of training is, as far as the settings tell: of so many rows, or of a budget of tokens."""

    n_rows: int = 0
    """Rows of each batch; 0 = as many as the budget holds."""
    budget: int = 0
    """Tokens of a batch, padding included."""
    row_length: int = 0
    """Tokens of the longest row; 0 = as many as the model reads."""
    is_full: bool = False
    """Every row is as long as the longest."""
    scored_share: float = 1.0
    """Of the tokens, those that get logits."""

    def rows(self, longest: int) -> int:
        """Rows of a batch whose longest row has so many tokens."""
        return self.n_rows or max(1, self.budget // longest)


def require_losses(config: TrainConfig, data: TrainingData) -> None:
    """Raise `UserError` before the first step when a loss that a setting watches is not measured."""
    missing = set() if data.n_bytes.get("valid") else {"bits_per_byte"}
    missing |= set() if data.objective.label_smoothing else {"smoothed_loss"}
    known = [name for name in LOSSES if name not in missing]
    for key, watcher in config.watchers.items():
        if watcher.metric not in known and (data.score is None or watcher.metric in LOSSES):
            raise UserError(f"{key}.metric is {watcher.metric!r}, which is unknown here; there are {', '.join(known)}")


def watched_scores(
    config: TrainConfig, losses: Sequence[str], scores: Mapping[str, bool], of: str = "here"
) -> list[str]:
    """The scores that the settings of a run watch: early stopping, and a schedule of kind plateau.

    `scores` says of each whether higher is better. Raises `UserError` for a metric that is not among `losses` and
    `scores`, and for a score watched in the wrong direction; `of` ends the sentence "which is unknown …".
    """
    found = []
    for key, watcher in config.watchers.items():
        name = watcher.metric
        if name in losses:
            continue
        if name not in scores:
            raise UserError(
                f"{key}.metric is {name!r}, which is unknown {of}; there are {', '.join([*losses, *scores])}"
            )
        if watcher.higher_is_better != scores[name]:
            raise UserError(f"{key}.higher_is_better must be {str(scores[name]).lower()} for {name}")
        found.append(name)
    return list(dict.fromkeys(found))


def few_targets(data: TrainingData) -> list[str]:
    """Return a sentence where the validation side has fewer than `FEW_TARGETS` targets."""
    n, draw = 0, rng(0, Stream.EVALUATION)
    for examples in data.evaluations["valid"]():
        n += data.objective.collate(examples, draw).n_targets
        if n >= FEW_TARGETS:
            return []
    return [
        f"the validation side has only {n:,} targets: its loss is uncertain, and so are the best checkpoint and early "
        "stopping, which go by it; give more data, a larger data.valid_fraction, or validation data of its own"
    ]
