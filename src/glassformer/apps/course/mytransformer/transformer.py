"""The Transformer of 2017 and BART: an encoder and a decoder (Vaswani et al. 2017)."""

import torch
from torch import Tensor, nn

from .attention import Cache, causal_mask, n_cached
from .block import Block, Norm, draw_weights, gelu
from .embeddings import Embeddings

Batch = tuple[tuple[Tensor, Tensor, Tensor], Tensor]
"""The ids that the decoder reads (B, T), the source (B, S) and its mask; and the labels
(B, T).
"""


def batch_of(
    pairs: list[tuple[list[int], list[int]]], start: int, end: int, pad: int
) -> Batch:
    """Return the arguments of a `Transformer`, and the labels, for pairs of ids.

    The source has `end` after its ids. The decoder reads `start` and the target, and
    the labels are the target and `end`. Rows are filled with `pad` at the right; the
    mask of the source is False there, and labels are -100.
    """

    def rows(lists: list[list[int]], filler: int) -> Tensor:
        longest = max(map(len, lists))
        return torch.tensor([row + [filler] * (longest - len(row)) for row in lists])

    source = rows([[*ids, end] for ids, _ in pairs], pad)
    is_source = rows([[1] * (len(ids) + 1) for ids, _ in pairs], 0) == 1
    inputs = rows([[start, *ids] for _, ids in pairs], pad)
    labels = rows([[*ids, end] for _, ids in pairs], -100)
    return (inputs, source, is_source), labels


class Transformer(nn.Module):
    """An encoder and a decoder of post-norm blocks.

    2017: sinusoids, the vectors of tokens times √D, ReLU, one table for each language,
    and its own output matrix. With `is_bart`: learned positions, a norm after each of
    the two embeddings, GELU, and one table of tokens for source, target and output.
    Parameters: `source` and `target`, both `Embeddings`; in BART `source_norm` and
    `target_norm`; `encoder` and `decoder`, lists of blocks; and `output`, D → V without
    bias, in BART with the weight of the table. The first weights are those of
    `xavier_uniform_` for each matrix and table, in BART those of `draw_weights`; biases
    of the former stay as torch draws them. BART has no use for `n_target`. `rate` is
    the dropout of the blocks.
    """

    def __init__(
        self,
        n_source: int,
        n_target: int,
        d_model: int = 64,
        n_heads: int = 4,
        d_ff: int = 256,
        n_layers: int = 2,
        max_len: int = 128,
        is_bart: bool = False,
        rate: float = 0.0,
    ) -> None:
        super().__init__()
        kind = "learned" if is_bart else "sinusoids"
        self.source, self.target = (
            Embeddings(n, d_model, max_len, kind, is_scaled=not is_bart)
            for n in (n_source, n_target)
        )
        self.source_norm, self.target_norm = (
            Norm(d_model) if is_bart else nn.Identity() for _ in range(2)
        )
        activation = gelu if is_bart else torch.relu
        self.encoder, self.decoder = (
            nn.ModuleList(
                Block(d_model, n_heads, d_ff, "post", activation, has_memory, rate)
                for _ in range(n_layers)
            )
            for has_memory in (False, True)
        )
        self.output = nn.Linear(d_model, n_target, bias=False)
        if is_bart:
            self.output.weight = self.target.tokens.weight = self.source.tokens.weight
            draw_weights(self)
        else:
            for weight in self.parameters():
                if weight.dim() == 2:
                    nn.init.xavier_uniform_(weight)

    def encode(self, source: Tensor, is_source: Tensor) -> Tensor:
        """Return the memory (B, S, D) of a source (B, S); `is_source` hides padding."""
        x = self.source_norm(self.source(source, torch.arange(source.shape[1])))
        for block in self.encoder:
            x = block(x, is_source[:, None, None])
        return x

    def decode(
        self,
        ids: Tensor,
        memory: Tensor,
        is_source: Tensor,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the states (B, T, D) of target ids (B, T), each from those up to it.

        With a cache, `ids` are the new ones only.
        """
        n_new, n_before = ids.shape[1], n_cached(cache)
        x = self.target(ids, torch.arange(n_before, n_before + n_new))
        x = self.target_norm(x)
        allowed = causal_mask(n_before + n_new)[n_before:]
        for number, block in enumerate(self.decoder):
            own = None if cache is None else cache[number]
            x = block(x, allowed[None, None], memory, is_source[:, None, None], own)
        return x

    def project(self, x: Tensor) -> Tensor:
        """Return the logits (B, T, V) of states (B, T, D)."""
        return self.output(x)

    def forward(self, ids: Tensor, source: Tensor, is_source: Tensor) -> Tensor:
        """Return the logits (B, T, V) of the token after each of the ids (B, T)."""
        memory = self.encode(source, is_source)
        return self.project(self.decode(ids, memory, is_source))

    def new_cache(self) -> Cache:
        """Return an empty cache for `decode`."""
        return [[] for _ in self.decoder]
