"""Sampling rules: pure functions of logits (B, V), where -inf excludes a token; and log-probabilities.

`Sampler` applies the rules of a generation. The rules that depend on earlier ids come first (`constraints`).
"""

import math
from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from glassformer.config.run import GenerationConfig
from glassformer.inference.constraints import Constraints, Past


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k largest logits of a row (Fan 2018) and ties with the k-th; a k above V keeps all.

    >>> keep_top_k(torch.tensor([[1.0, 3.0, 2.0]]), 2)
    tensor([[-inf, 3., 2.]])
    """
    kth = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < kth, -math.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the fewest most probable tokens whose probabilities sum to p or more (Holtzman 2020); at least one.

    >>> keep_top_p(torch.tensor([[0.5, 0.3, 0.2]]).log(), 0.7).exp().round(decimals=1)
    tensor([[0.5000, 0.3000, 0.0000]])
    """
    probabilities, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
    before = probabilities.cumsum(dim=-1) - probabilities  # total probability of all more probable tokens
    drop = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= p)
    drop.scatter_(-1, order[..., :1], False)
    return logits.masked_fill(drop, -math.inf)


def keep_min_p(logits: Tensor, min_p: float) -> Tensor:
    """Keep tokens with a probability of at least min_p × the highest one (Nguyen 2024).

    >>> keep_min_p(torch.tensor([[0.6, 0.3, 0.1]]).log(), 0.4).exp().round(decimals=1)
    tensor([[0.6000, 0.3000, 0.0000]])
    """
    if not min_p:
        return logits
    floor = logits.amax(dim=-1, keepdim=True) + math.log(min_p)
    return logits.masked_fill(logits < floor, -math.inf)


def shape_logits(logits: Tensor, config: GenerationConfig) -> Tensor:
    """Apply the rules of one draw in the order temperature, top-k, top-p, min-p.

    At temperature 0, return the logits unchanged: the caller takes the largest one (`choose`).
    """
    if config.temperature == 0:
        return logits
    if config.temperature < 1e-4:  # a division might overflow: keep only the largest
        return keep_top_k(logits, 1)
    logits = logits / config.temperature
    if config.top_k:
        logits = keep_top_k(logits, config.top_k)
    if config.top_p < 1:
        logits = keep_top_p(logits, config.top_p)
    return keep_min_p(logits, config.min_p)


class Sampler:
    """The rules by which a generation chooses ids."""

    def __init__(
        self,
        config: GenerationConfig,
        suppress_ids: Sequence[int],
        device: torch.device | str,
        ends: Collection[int] = (),
    ) -> None:
        self.config, self.device = config, device
        self.is_greedy = config.temperature == 0
        self.constraints = Constraints(config, suppress_ids, ends, device)
        self.reads_past = self.constraints.read_past
        """True if a rule depends on the earlier ids. If not, a caller may leave out the pasts."""

    def shape(self, logits: Tensor, pasts: Sequence[Past]) -> Tensor:
        """Apply all rules to logits (N, V), row i after `pasts[i]`. `pasts` may be empty unless `reads_past`.

        The result is on the CPU, because not every device has the double precision that sampling needs.
        """
        scores = logits.to(self.device, torch.float32, copy=True)
        scores = self.constraints.exclude_(self.constraints.penalise_(scores, pasts), pasts)
        return shape_logits(scores, self.config).cpu()

    def impossible(self, shaped: Tensor) -> list[int]:
        """Return the numbers of the rows of shaped logits (N, V) in which no id is allowed."""
        if not self.constraints.may_exclude_all:
            return []
        rows: list[int] = (shaped.amax(dim=1) == -math.inf).nonzero()[:, 0].tolist()
        return rows

    def choose(self, shaped: Tensor, generators: Sequence[np.random.Generator]) -> list[int | None]:
        """Choose an id for each row of shaped logits (N, V): the most probable (greedy), or one by its generator.

        The id of a row is None if no id is allowed.
        """
        uniform = None
        if not self.is_greedy:
            uniform = torch.tensor([generator.random() for generator in generators], dtype=torch.float64)
        chosen: list[int | None] = [*choose(shaped, uniform).tolist()]
        if self.constraints.may_exclude_all:
            for row in self.impossible(shaped):
                chosen[row] = None
        return chosen


def choose(logits: Tensor, uniform: Tensor | None) -> Tensor:
    """Choose ids (B,) from shaped logits (B, V): the largest if `uniform` is None, otherwise a sample.

    In the cumulative distribution of a row, each token has an interval. `uniform` (B,) has a number in [0, 1) for each
    row, which selects the token whose interval contains it. So the sample of a row does not depend on other rows.

    >>> choose(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0.7]))
    tensor([1])
    """
    if uniform is None:
        return logits.argmax(dim=-1)
    return draw(logits.double().softmax(dim=-1), uniform)


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw ids (B,) with probabilities proportional to `weights` (B, V), by the numbers `uniform` (B,) in [0, 1).

    >>> draw(torch.tensor([[1.0, 0.0, 3.0]]), torch.tensor([0.3]))
    tensor([2])
    """
    cumulative = weights.cumsum(dim=-1)
    target = uniform.to(cumulative)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp(max=weights.shape[-1] - 1)


def log_softmax(logits: Tensor) -> Tensor:
    """Compute log softmax over the last axis in fp32 or higher precision."""
    return logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
