"""Vectors of tokens and of positions (Vaswani et al. 2017; Su et al. 2021)."""

import math

import torch
from torch import Tensor, nn


def sinusoids(n_tokens: int, width: int) -> Tensor:
    """Return the vectors of the positions 0 … T - 1: (T, D), sines and cosines
    alternately.

    Number 2i of position p is sin(p · ω), number 2i + 1 is cos(p · ω), with the
    frequency ω = 10000^(-2i / D). Raise `ValueError` with the width if it is odd.
    """
    if width % 2:
        raise ValueError(
            f"sines and cosines come in pairs, so the width must be even; it is {width}"
        )
    frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(n_tokens)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate queries or keys by their positions (rotary embedding): (B, H, T, K) → (B,
    H, T, K).

    Numbers i and i + K / 2 of a head are the two coordinates of a point, for i = 0 … K
    / 2 - 1. The point (a, b) of a token at position p is rotated by the angle φ = p ·
    10000^(-2i / K) and becomes (a cos φ - b sin φ, a sin φ + b cos φ). `positions` (T,)
    are the positions of the tokens; the first one need not be 0.
    """
    width = x.shape[-1]
    frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = positions[:, None] * frequencies
    a, b = x.chunk(2, dim=-1)
    return torch.cat(
        (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()),
        dim=-1,
    )


def relative_bucket(distance: Tensor, n_buckets: int, max_distance: int) -> Tensor:
    """Return the bucket of each distance of T5's encoder, which is the place of the key
    minus the place of the query.

    Half of the buckets, H = n_buckets / 2, are for distances of 0 and below, and begin
    with 0. The other half are for distances above 0, and begin with H. In each half,
    let d be the distance without its sign. The first E = H / 2 buckets are for one d
    each: d below E has bucket d. Larger d have the bucket E + (H - E) · log(d / E) /
    log(max_distance / E), rounded down, but at most the last one of the half, H - 1.
    Buckets are int64.
    """
    half = n_buckets // 2
    n_exact = half // 2
    d = distance.abs()
    growth = (d.clamp(min=1) / n_exact).log() / math.log(max_distance / n_exact)
    far = (n_exact + (growth * (half - n_exact)).long()).clamp(max=half - 1)
    return torch.where(d < n_exact, d, far) + half * (distance > 0)


def positions_of(is_token: Tensor) -> Tensor:
    """Return the position of each token in its row, from 0, for rows (B, T) with
    padding at the left.

    `is_token` is True for tokens, False for padding, whose position is 0. Positions are
    int64.
    """
    return (is_token.long().cumsum(dim=1) - 1).clamp(min=0)


def alibi(n_heads: int, n_tokens: int) -> Tensor:
    """Return what ALiBi adds to the scores (Press et al. 2022): (H, T, T).

    Head h, from 1 to H, adds -2^(-8 h / H) · (i - j) to the score of query i for key j,
    at and before the query; the causal mask hides the other keys, for which it adds 0.
    """
    slopes = 2.0 ** (-8.0 * torch.arange(1, n_heads + 1) / n_heads)
    places = torch.arange(n_tokens)
    distance = (places[:, None] - places).clamp(min=0)
    return -slopes[:, None, None] * distance


class Embeddings(nn.Module):
    """The vectors of tokens, plus those of their positions: ids (B, T) → (B, T, D).

    `positions` is "learned" (a table), "sinusoids" or "none". With `is_scaled`, the
    vectors of the tokens are multiplied by √D before positions are added. With
    `d_table`, the table of tokens is narrower, and a matrix leads from it to the width
    D. Another kind of positions raises `ValueError` with its name. Parameters:
    `tokens`, an `nn.Embedding` (V, D or d_table); `project`, a linear layer without
    bias if there is a `d_table`; `table`, an `nn.Embedding` (max_len, D) if positions
    are learned.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        max_len: int,
        positions: str = "learned",
        is_scaled: bool = False,
        d_table: int = 0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_table or d_model)
        self.project = (
            nn.Linear(d_table, d_model, bias=False) if d_table else nn.Identity()
        )
        if positions == "learned":
            self.table = nn.Embedding(max_len, d_model)
        elif positions == "sinusoids":
            self.register_buffer("waves", sinusoids(max_len, d_model), persistent=False)
        elif positions != "none":
            raise ValueError(
                f"positions are learned, sinusoids or none, not {positions}"
            )
        self.kind, self.scale = positions, math.sqrt(d_model) if is_scaled else 1.0

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the vectors of ids (B, T) at `positions` (T,) or (B, T)."""
        x: Tensor = self.project(self.tokens(ids)) * self.scale
        if self.kind == "learned":
            x = x + self.table(positions)
        elif self.kind == "sinusoids":
            x = x + self.get_buffer("waves")[positions]
        return x
