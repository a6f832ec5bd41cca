"""Recurrent encoder-decoders with attention (Bahdanau 2015; Luong 2015).

Shapes: B texts, T tokens of the target, S tokens of the source, D width of the state.
"""

import math

import torch
from torch import Tensor, nn


def gru_step(x: Tensor, h: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Return the next state (B, D) of a gated recurrent unit, for an input `x` (B, E)
    and a state `h` (B, D).

    r = σ(W x + U h), z = σ(W x + U h), n = tanh(W x + r ∘ U h), h' = (1 - z) ∘ n + z ∘
    h, each with its own matrices and two biases: W x stands for W x + b, and U h for U
    h + b'. So r multiplies b' too, and z keeps the old state. `w` has torch's names:
    "weight_ih" (3 D, E) has the rows of W for r, then for z, then for n; "bias_ih" (3
    D,) is its bias b; "weight_hh" (3 D, D) and "bias_hh" (3 D,) are U and b', in the
    same order.
    """
    x_reset, x_keep, x_new = (x @ w["weight_ih"].T + w["bias_ih"]).chunk(3, dim=-1)
    h_reset, h_keep, h_new = (h @ w["weight_hh"].T + w["bias_hh"]).chunk(3, dim=-1)
    reset, keep = (x_reset + h_reset).sigmoid(), (x_keep + h_keep).sigmoid()
    new = (x_new + reset * h_new).tanh()
    return (1 - keep) * new + keep * h


def lstm_step(
    x: Tensor, h: Tensor, c: Tensor, w: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the next state and the next cell, both (B, D), of a long short-term
    memory.

    i, f, o = σ(W x + U h), g = tanh(W x + U h), c' = f ∘ c + i ∘ g, h' = o ∘ tanh(c'),
    each with its own matrices and two biases. `x` is (B, E); `h` and `c` are (B, D).
    `w` has torch's names: "weight_ih" (4 D, E) has the rows of W in the order i, f, g,
    o; "bias_ih" (4 D,) is its bias; "weight_hh" (4 D, D) and "bias_hh" (4 D,) belong to
    U.
    """
    total = x @ w["weight_ih"].T + w["bias_ih"] + h @ w["weight_hh"].T + w["bias_hh"]
    write, keep, new, read = total.chunk(4, dim=-1)
    cell = keep.sigmoid() * c + write.sigmoid() * new.tanh()
    return read.sigmoid() * cell.tanh(), cell


def dot_scores(query: Tensor, memory: Tensor) -> Tensor:
    """Return the dot product of each query (B, T, D) and each source state (B, S, D):
    scores (B, T, S).

    Raise `ValueError` with both widths if they differ.
    """
    if query.shape[-1] != memory.shape[-1]:
        widths = f"{query.shape[-1]} of the query, {memory.shape[-1]} of the memory"
        raise ValueError(f"dot products need equal widths: {widths}")
    return query @ memory.transpose(1, 2)


def general_scores(query: Tensor, memory: Tensor, w: Tensor) -> Tensor:
    """Return s · (W h) for each query s (B, T, D) and each source state h (B, S, E):
    (B, T, S); `w` is W (D, E).
    """
    return query @ w @ memory.transpose(1, 2)


def additive_scores(query: Tensor, memory: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Return v · tanh(W₁ s + W₂ h) for each query s (B, T, D) and each source state h
    (B, S, E): scores (B, T, S).

    `w` has the matrices "query" (D, A), which is W₁ transposed, and "memory" (E, A),
    which is W₂ transposed, and the vector "vector" (A,), which is v.
    """
    hidden = (query @ w["query"])[:, :, None] + (memory @ w["memory"])[:, None]
    return hidden.tanh() @ w["vector"]


def context(scores: Tensor, memory: Tensor, is_token: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted mean of the memory for each query (B, T, E), and its weights
    (B, T, S).

    The weights are the softmax of the `scores` (B, T, S) over the source tokens.
    `is_token` (B, S) is True for tokens and False for padding of the source. Padding
    has the weight 0 exactly, for every score; a source without any token gives zeros
    for both results. `memory` is (B, S, E). All gradients are finite.
    """
    allowed = is_token[:, None]
    is_empty = ~allowed.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~allowed, float("-inf")).masked_fill(is_empty, 0.0)
    weights = scores.softmax(dim=-1).masked_fill(is_empty, 0.0)
    return weights @ memory, weights


class RecurrentEncoder(nn.Module):
    """Read a source in both directions with two GRU cells.

    Parameters: `tokens`, a table (V, D); `forwards` and `backwards`, each `nn.GRUCell`;
    `bridge`, a linear layer from 2 D to D.
    """

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.forwards, self.backwards = (nn.GRUCell(width, width) for _ in range(2))
        self.bridge = nn.Linear(2 * width, width)

    def forward(self, ids: Tensor, is_token: Tensor) -> tuple[Tensor, Tensor]:
        """Return the memory (B, S, 2 D) and the first state of a decoder (B, D).

        The memory has the states of both directions side by side. Each direction begins
        with zeros, and padding, where `is_token` is False, leaves a state unchanged.
        The first state is tanh of the bridge of the last states of both directions.
        """
        x, places = self.tokens(ids), range(ids.shape[1])
        states, last = [], []
        for cell, order in (
            (self.forwards, places),
            (self.backwards, reversed(places)),
        ):
            h, found = torch.zeros_like(x[:, 0]), {}
            for t in order:
                h = torch.where(is_token[:, t, None], cell(x[:, t], h), h)
                found[t] = h
            states.append(torch.stack([found[t] for t in places], dim=1))
            last.append(h)
        return torch.cat(states, dim=-1), self.bridge(torch.cat(last, dim=-1)).tanh()


class BahdanauDecoder(nn.Module):
    """Attend with the old state, then step: the cell reads the token and the context.

    Parameters: `tokens`, a table (V, D); `query`, D → D, and `memory`, 2 D → D, linear
    layers without bias; `vector` (D,), at first of small random numbers; `cell`, an
    `nn.GRUCell` that reads 3 D numbers.
    """

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.query = nn.Linear(width, width, bias=False)
        self.memory = nn.Linear(2 * width, width, bias=False)
        self.vector = nn.Parameter(torch.randn(width) / math.sqrt(width))
        self.cell = nn.GRUCell(3 * width, width)

    def step(
        self, ids: Tensor, h: Tensor, memory: Tensor, is_source: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Read one token of each text, ids (B,), after the state `h` (B, D).

        Return the output (B, D), which is the new state, the new state, and the
        attention weights (B, S). The score is additive; the context is after the token.
        """
        w = {"query": self.query.weight.T, "memory": self.memory.weight.T}
        scores = additive_scores(h[:, None], memory, w | {"vector": self.vector})
        seen, weights = context(scores, memory, is_source)
        h = self.cell(torch.cat((self.tokens(ids), seen[:, 0]), dim=-1), h)
        return h, h, weights[:, 0]


class LuongDecoder(nn.Module):
    """Step, then attend with the new state, and join it with the context.

    Parameters: `tokens`, a table (V, D); `cell`, an `nn.GRUCell`; `memory`, 2 D → D, a
    linear layer without bias; `combine`, a linear layer from 3 D to D.
    """

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.cell = nn.GRUCell(width, width)
        self.memory = nn.Linear(2 * width, width, bias=False)
        self.combine = nn.Linear(3 * width, width)

    def step(
        self, ids: Tensor, h: Tensor, memory: Tensor, is_source: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Read one token of each text, ids (B,), after the state `h` (B, D).

        Return the output (B, D), tanh of `combine` of the context and the new state, in
        this order; the new state; and the attention weights (B, S). The score is
        `general_scores`, with the weight of `memory`.
        """
        h = self.cell(self.tokens(ids), h)
        scores = general_scores(h[:, None], memory, self.memory.weight)
        seen, weights = context(scores, memory, is_source)
        return self.combine(torch.cat((seen[:, 0], h), dim=-1)).tanh(), h, weights[:, 0]


class EncoderDecoder(nn.Module):
    """A recurrent translator. `kind` is the class of the decoder.

    Parameters: `encoder`, `decoder`, and `output`, a linear layer D → V without bias.
    """

    def __init__(
        self,
        n_source: int,
        n_target: int,
        width: int,
        kind: type[BahdanauDecoder] | type[LuongDecoder] = BahdanauDecoder,
    ) -> None:
        super().__init__()
        self.encoder = RecurrentEncoder(n_source, width)
        self.decoder = kind(n_target, width)
        self.output = nn.Linear(width, n_target, bias=False)

    def encode(self, source: Tensor, is_source: Tensor) -> tuple[Tensor, Tensor]:
        """Return the memory (B, S, 2 D) and the first state (B, D)."""
        memory, h = self.encoder(source, is_source)
        return memory, h

    def forward(self, ids: Tensor, source: Tensor, is_source: Tensor) -> Tensor:
        """Return the logits (B, T, V) of the token after each of the ids (B, T)."""
        memory, h = self.encode(source, is_source)
        outputs = []
        for t in range(ids.shape[1]):
            output, h, _ = self.decoder.step(ids[:, t], h, memory, is_source)
            outputs.append(output)
        return self.output(torch.stack(outputs, dim=1))

    @torch.no_grad()
    def write(
        self, source: Tensor, is_source: Tensor, start: int, end: int, max_len: int
    ) -> list[list[int]]:
        """Translate greedily: return the ids after `start` and before `end`.

        A row without `end` has `max_len` ids.
        """
        memory, h = self.encode(source, is_source)
        ids = torch.full((len(source), 1), start)
        for _ in range(max_len):
            output, h, _ = self.decoder.step(ids[:, -1], h, memory, is_source)
            best = self.output(output).argmax(dim=-1)
            ids = torch.cat((ids, best[:, None]), dim=1)
            if (ids == end).any(dim=1).all():
                break
        rows = ids[:, 1:].tolist()
        return [row[: row.index(end)] if end in row else row for row in rows]
