"""The loss over a whole data set, with every target once, and other scores of masked language models.

`Division` shares the batches among processes.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.common import notebook
from glassformer.common.errors import UserError
from glassformer.common.seeds import Stream, rng
from glassformer.data.batching import Batch, Example, evaluation_windows
from glassformer.data.tokens import TokenFile
from glassformer.models.build import Network
from glassformer.models.devices import InParts, evaluation_mode
from glassformer.objectives.loss import Forward, Objective
from glassformer.objectives.noise import MaskedObjective

MAX_TOKENS = 16_384
MAX_LOGITS = 1 << 26
ROWS_AT_ONCE = 64


class Division:
    """Division of batches among processes; this class is for one process, `ProcessGroup` for several.

    The batches are sharded: process r of n takes the batches r, r + n, r + 2n, … (strided, as `DistributedSampler`
    takes examples, but without padding). The results are combined in the order of the batches, so that sums are
    bit-identical to the sums of one process.
    """

    rank, n = 0, 1
    holds_parts = False
    """True if the weights are sharded (FSDP). Then every process must run the same number of forward passes."""

    def takes(self, number: int) -> bool:
        """Return True if this process takes the batch with this number, counted from 0."""
        return number % self.n == self.rank

    def sum(self, *numbers: float) -> list[float]:
        """Return the sum of each number over the processes (all-reduce)."""
        return list(numbers)

    def texts(self, text: str) -> list[str]:
        """Return the text of every process, in the order of the ranks (all-gather)."""
        return [text]

    def joined(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of all processes in one dictionary; numbers keep their bits in JSON."""
        return {name: value for text in self.texts(json.dumps(own)) for name, value in json.loads(text).items()}


ALONE = Division()


@dataclass(frozen=True)
class LossReport:
    """A loss, and the same value in other units."""

    loss: float
    """Nats per target token: total nats / total targets."""
    perplexity: float | None
    """exp(loss); from e^709 on, the largest float, because JSON has no infinity. `None` for regression, whose
    likelihood is a density."""
    bits_per_byte: float | None
    """Total bits / UTF-8 bytes of the text, comparable across tokenizers; `None` if the number of bytes is unknown. The
    first token of the text, or of each document if documents are separate, is not predicted; its bytes do not count."""
    n_tokens: int
    """Number of scored targets."""
    smoothed_loss: float | None = None
    """The training loss with label smoothing, in nats per target; `None` without label smoothing."""

    scores: dict[str, Any] = field(default_factory=dict, compare=False)
    """Scores of the outputs in percent, from `Model.evaluate`. Generated targets have BLEU and chrF, or error rates.
    Labels have accuracy and F1, with all classes under `report`. Masks have accuracy. Empty if only the loss was
    measured."""

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
    """Sum of the training loss with label smoothing; `None` without label smoothing."""
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
    """Yield batches of consecutive windows of the whole text, with every target once; a batch fits in memory.

    Adjacent windows share `overlap` ids: 1 if each id is the target of the id before it, 0 if each id is its own
    target. With `separates_documents`, no window crosses a document boundary. The batch size depends only on `context`
    and `vocab_size`, so that the trainer and `evaluate` add the same numbers.
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
    processes. The sums are added in the order of the batches, so they are bit-identical to the sums of one process.
    """
    in_parts = InParts(may_split=not division.holds_parts and not objective.couples_rows)

    def sums_of_rows(batch: Batch, rows: range) -> tuple[float, float, int]:
        sums = objective.loss(model, batch.rows(rows).to(device))
        return float(sums.nats), float(sums.total), sums.n_targets

    def sums_of(batch: Batch) -> tuple[float, float, int]:
        nats, totals, counts = zip(*in_parts(range(batch.n_rows), partial(sums_of_rows, batch)), strict=True)
        return sum(nats), sum(totals), sum(counts)

    # Three sums per batch; the batches of other processes count as zeros
    sums: list[float] = []
    n_done, draw = 0, rng(0, Stream.EVALUATION)
    for number, examples in enumerate(batches):
        batch = objective.collate(examples, draw)  # in all processes, because `collate` may draw random numbers
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
        sums_of(batch)  # repeated, because each forward pass of another process gathers weights from all processes
    of_all = iter(division.sum(*sums))
    nats, total, n_targets = 0.0, 0.0, 0
    for of_batch in zip(of_all, of_all, of_all, strict=True):
        nats, total, n_targets = nats + of_batch[0], total + of_batch[1], n_targets + int(of_batch[2])
    return EvaluationSums(nats, n_targets, total if objective.label_smoothing else None, objective.is_density)


# Masked language models: accuracy at masks, and pseudo-perplexity


@torch.no_grad()
def masked_scores(
    network: Network,
    objective: MaskedObjective,
    batches: Iterable[Sequence[Example]],
    device: torch.device | str,
    progress: Callable[[int], None] | None = None,
) -> dict[str, float]:
    """Return the percentage of masks at which the most probable token is right, with the masks of the evaluation loss.

    Chosen tokens that were replaced by random ones or left unchanged count in the loss but not here.
    `most_frequent_share` is the accuracy of a model that always predicts the most frequent masked token.
    """
    draw, in_parts = rng(0, Stream.EVALUATION), InParts()
    right, labels = 0, []

    def scores_of(batch: Batch, rows: range) -> tuple[int, Tensor]:
        batch = batch.rows(rows).to(device)
        assert batch.loss_positions is not None
        is_hidden = batch.token_ids.flatten()[batch.loss_positions] == objective.mask_id
        true = batch.labels_of_logits[is_hidden]
        return int((network(**batch.model_inputs()).argmax(dim=1)[is_hidden] == true).sum()), true.cpu()

    with evaluation_mode(network):
        for examples in batches:
            batch = objective.collate(examples, draw)
            for n_right, true in in_parts(range(batch.n_rows), partial(scores_of, batch)):
                right += n_right
                labels.append(true)
            if progress is not None:
                progress(sum(map(len, labels)))
    counts = torch.cat(labels).bincount()
    if not len(counts):
        raise UserError("the text is too short, and no token was masked: give a longer text")
    n = int(counts.sum())
    return {"masked_accuracy": 100 * right / n, "most_frequent_share": 100 * int(counts.max()) / n}


@torch.no_grad()
def pseudo_perplexity(
    network: Network,
    objective: MaskedObjective,
    batches: Iterable[Sequence[Example]],
    device: torch.device | str,
    progress: Callable[[int], None] | None = None,
) -> float:
    """Compute exp(-Σ log p(tokenᵢ | all others) / number of tokens), one mask at a time (Salazar 2020, equation 4)."""
    nats, n, in_parts = 0.0, 0, InParts()

    def nats_of(row: np.ndarray, batch: Sequence[int]) -> float:
        places = np.array(batch)
        rows = np.repeat(row[None], len(places), axis=0)  # one copy of the row per masked position
        rows[np.arange(len(places)), places] = objective.mask_id
        loss_positions = torch.arange(len(places)) * len(row) + torch.from_numpy(places)
        logits = network(torch.from_numpy(rows).to(device), loss_positions=loss_positions.to(device)).float()
        return float(F.cross_entropy(logits, torch.from_numpy(row[places]).to(device), reduction="sum"))

    with evaluation_mode(network):
        for example in (example for batch in batches for example in batch):
            row = objective.whole(example.token_ids)
            places = np.flatnonzero(~objective.edges.special[row]).tolist()
            for begin in range(0, len(places), ROWS_AT_ONCE):
                batch = places[begin : begin + ROWS_AT_ONCE]
                nats += sum(in_parts(batch, partial(nats_of, row)))
                n += len(batch)
                if progress is not None:
                    progress(n)
    return math.exp(nats / n)
