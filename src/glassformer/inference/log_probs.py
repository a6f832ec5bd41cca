"""Log probabilities, of one model and of several."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def log_softmax(logits: Tensor) -> Tensor:
    """Over the last axis, in single precision at least."""
    return logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    """log (Σ softmax(logitsᵢ) / n) of the logits (…, V) of n members, in single precision at the least.

    >>> sure, unsure = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.9, 0.1]).log()
    >>> mean_log_probs([sure, unsure]).exp()
    tensor([0.7000, 0.3000])
    """
    return torch.stack([log_softmax(x) for x in logits]).logsumexp(dim=0) - math.log(len(logits))
