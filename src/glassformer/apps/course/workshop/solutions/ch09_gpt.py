"""Chapter 9: the labels and the loss of a language model, and how it chooses the next token.

Shapes: B texts, H heads, T tokens, V tokens of the vocabulary, K width of a head.
"""

import math

import torch
from torch import Tensor

Cache = tuple[Tensor, Tensor]
"""Keys and values of all earlier tokens, each (B, H, S, K)."""


def shift(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs and the labels of a language model, both (B, T - 1): the label is the next id of `ids` (B, T).

    The model itself does not shift: its logits at a position are for the label at the same position.
    """
    return ids[:, :-1], ids[:, 1:]


def mean_loss(nats: Tensor, counts: Tensor) -> Tensor:
    """Return the loss of micro-batches, equal to that of one batch with the same texts.

    Micro-batches are the parts of a batch that are computed one after another, for one step of the optimizer.
    `nats` (N,) are the sums of the cross-entropy over the labels of each micro-batch, and `counts` (N,) the numbers of
    these labels.
    """
    return nats.sum() / counts.sum()


def perplexity(nats: list[float], counts: list[int]) -> float:
    """Return the perplexity of a text that was read in batches: exp of the mean cross-entropy of all its tokens.

    `nats` are the sums of the cross-entropy over the tokens of each batch, and `counts` the numbers of these tokens.
    """
    return math.exp(sum(nats) / sum(counts))


def with_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Return the probabilities softmax(logits / temperature) over the last axis (…, V).

    At temperature 0, the largest logit has the probability 1, all others 0. Of several largest ones, take the first.
    """
    if temperature == 0:
        return torch.zeros_like(logits).scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
    return (logits / temperature).softmax(dim=-1)


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k largest logits of the last axis (…, V), and those equal to the k-th; set the others to -inf.

    All are kept if k is larger than V.
    """
    kth = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < kth, float("-inf"))


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the most probable tokens whose probabilities add up to p, as few as possible; set other logits to -inf.

    `logits` (…, V). The token with which the sum reaches p is kept too. At least one token is kept, for every p. Of
    equal logits, the first is kept first.
    """
    probabilities, order = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    drops = before >= p
    drops[..., 0] = False
    return logits.masked_fill(torch.zeros_like(drops).scatter(-1, order, drops), float("-inf"))


def draw(probabilities: Tensor, u: float) -> int:
    """Draw an id with the `probabilities` (V,), by a random number u from 0 to below 1.

    Return the first id whose cumulative sum, its own probability included, is larger than u. If rounding errors leave
    none, return the last id.
    """
    return min(int((probabilities.cumsum(dim=0) <= u).sum()), len(probabilities) - 1)


def positions_of(is_token: Tensor) -> Tensor:
    """Return the position of each token in its row, from 0, for rows (B, T) with padding at the left.

    `is_token` is True for tokens, False for padding, whose position is 0. Positions are int64.
    """
    return (is_token.long().cumsum(dim=1) - 1).clamp(min=0)


def attend_with_cache(query: Tensor, key: Tensor, value: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
    """Return causal attention of new tokens, and the cache with their keys and values.

    `query`, `key` and `value` (B, H, T, K) are of the T new tokens only. `cache` has the keys and values of the S
    tokens before them, or is None if they are the first ones. A new token may attend to all tokens of the cache, to
    the new tokens before it and to itself. The attention (B, H, T, K) is softmax(Q Kᵀ / √d) V,
    where d is the width of a key.
    """
    if cache is not None:
        key, value = torch.cat([cache[0], key], dim=2), torch.cat([cache[1], value], dim=2)
    n_new, n_all = query.shape[2], key.shape[2]
    allowed = torch.ones(n_new, n_all, dtype=torch.bool).tril(n_all - n_new)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return scores.masked_fill(~allowed, float("-inf")).softmax(dim=-1) @ value, (key, value)
