"""Chapter 4: attention over the source (Bahdanau et al. 2015; Luong et al. 2015).

Shapes: B texts, T queries of width D, S source tokens of width E, A width of the hidden layer.
"""

from torch import Tensor


def dot_scores(query: Tensor, memory: Tensor) -> Tensor:
    """Return the dot product of each query (B, T, D) and each source state (B, S, D): scores (B, T, S).

    Raise `ValueError` with both widths if they differ.
    """
    if query.shape[-1] != memory.shape[-1]:
        raise ValueError(
            f"dot products need equal widths; that of the query is {query.shape[-1]}, and that of the memory "
            f"{memory.shape[-1]}"
        )
    return query @ memory.transpose(1, 2)


def general_scores(query: Tensor, memory: Tensor, w: Tensor) -> Tensor:
    """Return s · (W h) for each query s (B, T, D) and each source state h (B, S, E): (B, T, S); `w` is W (D, E)."""
    return query @ w @ memory.transpose(1, 2)


def additive_scores(query: Tensor, memory: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Return v · tanh(W₁ s + W₂ h) for each query s (B, T, D) and each source state h (B, S, E): scores (B, T, S).

    `w` has the matrices "query" (D, A), which is W₁ transposed, and "memory" (E, A), which is W₂ transposed, and the
    vector "vector" (A,), which is v.
    """
    hidden = (query @ w["query"])[:, :, None] + (memory @ w["memory"])[:, None]
    return hidden.tanh() @ w["vector"]


def context(scores: Tensor, memory: Tensor, is_token: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted mean of the memory for each query (B, T, E), and its weights (B, T, S).

    The weights are the softmax of the `scores` (B, T, S) over the source tokens. `is_token` (B, S) is True for tokens
    and False for padding of the source. Padding has the weight 0 exactly, for every score; a source without any token
    gives zeros for both results. `memory` is (B, S, E). All gradients are finite.
    """
    allowed = is_token[:, None]
    is_empty = ~allowed.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~allowed, float("-inf")).masked_fill(is_empty, 0.0)
    weights = scores.softmax(dim=-1).masked_fill(is_empty, 0.0)
    return weights @ memory, weights
