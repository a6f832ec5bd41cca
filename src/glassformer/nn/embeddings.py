"""Embedding layer: token ids to the first hidden states."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.nn.arguments import number
from glassformer.nn.linear_layers import Linear


@dataclass(frozen=True)
class EmbeddingTables:
    """The tables of an embedding layer, whose rows are added for each token; all have one width."""

    tokens: nn.Embedding
    positions: nn.Module | None = None
    """Module that returns a vector for each position."""
    token_types: nn.Embedding | None = None


class Embeddings(nn.Module):
    """Embedding layer: (tokens · scale + types + positions) → norm → dropout → projection.

    The token table may be narrower than the model (`d_embedding`, Lan 2020). Then positions, types and norm have the
    same width, and a projection widens the sum. During training, token dropout
    zeroes whole token vectors and scales up the others (Gal 2016, "A Theoretically Grounded Application of Dropout in
    RNNs", section 4.2). Each position is dropped independently, whereas Gal drops a word at all its positions.
    """

    def __init__(
        self,
        tables: EmbeddingTables,
        d_model: int,
        *,
        norm: nn.Module | None = None,
        scale: float = 1.0,
        dropout: float = 0.0,
        token_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = tables.tokens
        self.positions = tables.positions
        self.token_types = tables.token_types
        self.norm = norm
        self.projection = None
        if self.tokens.embedding_dim != d_model:
            self.projection = Linear(self.tokens.embedding_dim, d_model, bias=False)
        self.scale = number("scale", scale)
        self.dropout = number("dropout", dropout, 0, 1)
        self.token_dropout = number("token_dropout", token_dropout, 0, 1)

    def forward(self, token_ids: Tensor, positions: Tensor, token_types: Tensor | None = None) -> Tensor:
        """Embed `token_ids` (B, T) at `positions` (T,) or (B, T); return (B, T, d_model)."""
        x = self.tokens(token_ids)
        if self.token_dropout:
            x = x * F.dropout(x.new_ones(*token_ids.shape, 1), self.token_dropout, self.training)
        if self.scale != 1:
            x = x * self.scale
        if self.token_types is not None:
            if token_types is None:
                token_types = torch.zeros_like(token_ids)
            x = x + self.token_types(token_types)
        elif token_types is not None:
            raise ValueError("token_types: expected None, because this model has n_token_types 0; leave it out")
        if self.positions is not None:
            x = x + self.positions(positions).to(x.dtype)
        if self.norm is not None:
            x = self.norm(x)
        if self.dropout:
            x = F.dropout(x, self.dropout, self.training)
        if self.projection is not None:
            x = self.projection(x)
        return x
