"""Evaluation loss over a whole text: every target once, total nats / total targets."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from glassformer.common import notebook
from glassformer.common.seeds import Stream, rng
from glassformer.data.batching import Batch, Example, evaluation_windows
from glassformer.data.tokens import TokenFile
from glassformer.evaluation.division import ALONE, Division
from glassformer.models.fitting import InParts
from glassformer.objectives.loss import Forward, Objective

MAX_TOKENS = 16_384
MAX_LOGITS = 1 << 26


@dataclass(frozen=True)
class LossReport:
    """A loss, and the same value in other units."""

    loss: float
    """Nats per target token: total nats / total targets."""
    perplexity: float | None
    """exp(loss); from e^709 on, the largest float, because JSON has no infinity. `None` for regression, whose
    likelihood is a density."""
    bits_per_byte: float | None
    """Total bits / UTF-8 bytes of the text: comparable across tokenizers; `None` if the bytes are unknown. The bytes of
    a first token that is not predicted do not count: of the text, or of each document if documents are separate."""
    n_tokens: int
    """Number of scored targets."""
    smoothed_loss: float | None = None
    """The training loss with label smoothing, in nats per target; `None` without label smoothing."""

    scores: dict[str, Any] = field(default_factory=dict, compare=False)
    """Scores of the outputs in percent, from `Model.evaluate`: BLEU and chrF, or error rates, of targets; accuracy and
    F1 of labels, with all classes under `report`; accuracy of filled masks. Empty if only the loss was measured."""

    def to_dict(self) -> dict[str, Any]:
        """Return the values of the loss, and the scores, by name."""
        return {name: value for name, value in vars(self).items() if name != "scores"} | self.scores

    def _repr_html_(self) -> str:
        return notebook.table(self.to_dict())


@dataclass(frozen=True)
class EvaluationSums:
    """Sums over all targets of an evaluation."""

    nats: float
    n_targets: int
    smoothed: float | None = None
    """The sum of the training loss with label smoothing; `None` without label smoothing."""
    is_density: bool = False
    """True if the likelihood of a target is a density."""

    def report(self, n_bytes: int | None = None) -> LossReport:
        """Return the loss per target, and per byte of a text of `n_bytes`.

        >>> EvaluationSums(nats=200 * math.log(2), n_targets=100).report(n_bytes=400).bits_per_byte
        0.5
        """
        loss = self.nats / self.n_targets
        perplexity = bits_per_byte = smoothed_loss = None
        if not self.is_density:
            perplexity = math.exp(loss) if loss < 709 else sys.float_info.max
        if n_bytes:
            bits_per_byte = self.nats / math.log(2) / n_bytes
        if self.smoothed is not None:
            smoothed_loss = self.smoothed / self.n_targets
        return LossReport(loss, perplexity, bits_per_byte, self.n_targets, smoothed_loss)


def evaluation_rows(
    tokens: TokenFile, context: int, vocab_size: int, separates_documents: bool, overlap: int = 1
) -> Iterator[list[Example]]:
    """Yield the whole text in consecutive windows, every target once, in batches that fit in memory.

    Adjacent windows share `overlap` ids: 1 if each id is the target of the previous one, 0 if each id is its own
    target. With `separates_documents`, no window crosses a document boundary. The batch size depends only on the
    shape, so that the trainer and `evaluate` add the same numbers.
    """
    n_rows = max(1, min(MAX_TOKENS // context, MAX_LOGITS // (context * vocab_size)))
    return evaluation_windows(tokens, context, n_rows, overlap, separates_documents=separates_documents)


@torch.no_grad()
def evaluate_loss(
    model: Forward,
    objective: Objective,
    batches: Iterable[Sequence[Example]],
    device: torch.device,
    progress: Callable[[int], None] | None = None,
    division: Division = ALONE,
) -> EvaluationSums:
    """Sum the loss over all batches, in double precision; the caller sets evaluation mode and autocast.

    `progress` is called after each batch with the number of targets done. `division` distributes batches among
    processes; the sums are added in the order of the batches, so they are bit-identical to those of one process.
    """
    in_parts = InParts(may_split=not division.holds_parts and not getattr(objective, "couples_rows", False))

    def sums_of_rows(batch: Batch, rows: range) -> tuple[float, float, int]:
        sums = objective.loss(model, batch.rows(rows).to(device))
        return float(sums.nats), float(sums.total), sums.n_targets

    def sums_of(batch: Batch) -> tuple[float, float, int]:
        parts = in_parts(range(batch.n_rows), partial(sums_of_rows, batch))
        nats, totals, counts = zip(*parts, strict=True)
        return sum(nats), sum(totals), sum(counts)

    # Three sums per batch; zeros for the batches of other processes
    sums: list[float] = []
    n_done, draw = 0, rng(0, Stream.EVALUATION)
    for number, examples in enumerate(batches):
        batch = objective.collate(examples, draw)  # in all processes, because it may draw random numbers
        if division.takes(number):
            sums += sums_of(batch)
        else:
            sums += (0.0, 0.0, 0)
        n_done += batch.n_targets
        if progress is not None:
            progress(n_done)
    # The sums of all processes
    n_left = len(sums) // 3 % division.n
    if division.holds_parts and n_left and division.rank >= n_left:
        sums_of(batch)  # repeat for the others: each forward gathers weights from all processes
    of_all = iter(division.sum(*sums))
    nats, total, n_targets = 0.0, 0.0, 0
    for of_batch in zip(of_all, of_all, of_all, strict=True):
        nats, total, n_targets = nats + of_batch[0], total + of_batch[1], n_targets + int(of_batch[2])
    smoothed = total if objective.label_smoothing else None
    return EvaluationSums(nats, n_targets, smoothed, getattr(objective, "is_density", False))
