"""One optimizer step in the fewest lines: the reference of `TrainStep`, which takes the same step with all settings.

One process trains in the dtype of the weights. There is no compilation, no mixed precision, no moving average, no loss
of experts, and no answer to a lack of memory or to NaN.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn

from glassformer.data.batching import Batch
from glassformer.objectives.loss import Objective


def plain_step(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    micro_batches: Sequence[Batch],
    seeds: Sequence[int],
    clip_norm: float = 0.0,
) -> tuple[float, float]:
    """Update the weights; return the loss in nats per target, and the norm of the gradient before it is clipped.

    `seeds` set the random numbers of dropout, one seed for each micro-batch. A `clip_norm` of 0 clips nothing.
    """
    # 1. The divisor: the number of targets of all micro-batches, or the sum of their weights. Means are not added,
    #    because micro-batches have unequal numbers of targets.
    divisor = sum(map(objective.divisor, micro_batches))
    # 2. Forward and backward. Each backward pass adds to the gradients of the passes before it.
    network.train()
    optimizer.zero_grad()
    nats = 0.0
    for batch, seed in zip(micro_batches, seeds, strict=True):
        torch.manual_seed(seed)
        sums = objective.loss(network, batch)  # logits (B, T, V), summed to one number
        (sums.total * (1 / divisor)).backward()
        nats += float(sums.nats)
    # 3. Clip: a gradient longer than `clip_norm` gets this length.
    norm = nn.utils.clip_grad_norm_(network.parameters(), clip_norm or math.inf)
    # 4. Update
    optimizer.step()
    return nats / sum(batch.n_targets for batch in micro_batches), float(norm)
