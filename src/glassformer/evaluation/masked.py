"""Metrics of masked language models besides the loss: accuracy at masks and pseudo-perplexity."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.common.errors import UserError
from glassformer.common.seeds import Stream, rng
from glassformer.data.batching import Batch, Example
from glassformer.models.build import Network
from glassformer.models.devices import evaluation_mode
from glassformer.models.fitting import InParts
from glassformer.objectives.masked import MaskedObjective

ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class MaskedScores:
    """Metrics of a masked language model, in percent."""

    masked_accuracy: float
    """Percentage of tokens at `[MASK]` whose most probable candidate is correct."""
    most_frequent_share: float
    """Percentage of the most frequent of these tokens: the accuracy of a model that always predicts it."""


@torch.no_grad()
def masked_scores(
    network: Network,
    objective: MaskedObjective,
    batches: Iterable[Sequence[Example]],
    device: torch.device | str,
    progress: Callable[[int], None] | None = None,
) -> MaskedScores:
    """Compute accuracies over all batches, with the same masks as the evaluation loss.

    Chosen tokens that were replaced or left unchanged count in the loss but not here: only masked tokens are predicted.
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
    return MaskedScores(100 * right / n, 100 * int(counts.max()) / n)


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
        rows = np.repeat(row[None], len(places), axis=0)  # one copy of the row per place, with that place masked
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
