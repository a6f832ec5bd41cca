"""The recurrent encoder, and the bridge from where it ends to where the decoder begins."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.nn.attention import Tap
from glassformer.nn.recurrence import States, in_order, reading_order, run, run_masked


@dataclass(frozen=True)
class Encoding:
    """What a recurrent encoder says of a source; C is the width of its state, of both directions side by side."""

    memory: Tensor
    """(B, S, C): the top layer's state at every source position, zeros at padding. Attention reads it."""
    last: States
    """The last state of every layer, (B, C) each; of the backward direction the one at the first token."""

    @property
    def summary(self) -> Tensor:
        """(B, C): the whole source in one vector, the top layer's last state."""
        return self.last[-1][0]


class RecurrentEncoder(nn.Module):
    """hⱼ = f(E xⱼ, hⱼ₋₁), and with a bidirectional module [→hⱼ; ←hⱼ] (Bahdanau 2015, section 3.2).

    With `reverse` the real tokens are read from last to first (Sutskever 2014, section 3.3); the memory stays in the
    order of the source.
    """

    def __init__(self, tokens: nn.Embedding, cells: nn.RNNBase, *, reverse: bool, embedding_dropout: float) -> None:
        super().__init__()
        self.tokens = tokens
        self.cells = cells
        self.reverse = reverse
        self.embedding_dropout = embedding_dropout

    def forward(
        self, source_ids: Tensor, source_attention_mask: Tensor | None = None, tap: Tap | None = None
    ) -> Encoding:
        """`source_ids` (B, S), `source_attention_mask` (B, S) True = real, with padding anywhere."""
        x = F.dropout(self.tokens(source_ids), self.embedding_dropout, self.training)
        x = x if tap is None else tap("embeddings", x)
        real = source_attention_mask
        if real is not None:
            order = reading_order(real, self.reverse)
            memory, last = run_masked(self.cells, in_order(x, order), real.sum(dim=1))
            memory = in_order(memory, order.argsort(dim=1))
        elif self.reverse:
            memory, last = run(self.cells, x.flip(1))
            memory = memory.flip(1)
        else:
            memory, last = run(self.cells, x)
        return Encoding(memory if tap is None else tap("memory", memory), last)


class Bridge(nn.Module):
    """The decoder's first state from the encoder's last, layer by layer: h = tanh(W s) (Bahdanau 2015, appendix A.2.2).

    An LSTM's cell is no output of a tanh: it is W c.
    """

    def __init__(self, d_memory: int, d_decoder: int, n_layers: int, has_cell: bool) -> None:
        super().__init__()
        self.hidden = nn.ModuleList(nn.Linear(d_memory, d_decoder) for _ in range(n_layers))
        self.cell = nn.ModuleList(nn.Linear(d_memory, d_decoder) for _ in range(n_layers if has_cell else 0))

    def forward(self, last: States) -> States:
        hidden = [torch.tanh(proj(layer[0])) for proj, layer in zip(self.hidden, last, strict=True)]
        if not self.cell:
            return tuple((h,) for h in hidden)
        cells = [proj(layer[1]) for proj, layer in zip(self.cell, last, strict=True)]
        return tuple(zip(hidden, cells, strict=True))
