"""Recurrent layers: PyTorch's modules for a whole sequence, or one step at a time; and the attention of a decoder.

Letters: B batch, T length, E width of the input, D width of the state, G gates. The state of a layer is a tuple of
tensors (B, D): (h,), or (h, c) for an LSTM. The state of a module is a tuple of layer states, bottom layer first.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from glassformer.common.arguments import one_of, takes_other_names
from glassformer.nn.attention import (
    Memory,
    Tap,
    masked_softmax,
    scaled_dot_product_scores,
    scoped,
    tapped,
    tapped_as_one,
)
from glassformer.nn.boundary import real_tokens, wrong_activations
from glassformer.nn.kernels import processor
from glassformer.nn.kernels.linear import product_dtype
from glassformer.nn.layers import Linear

LayerState = tuple[Tensor, ...]
States = tuple[LayerState, ...]


class CellStep(Protocol):
    """Function (W x + b, U h + b', state) → next state; the two sums are (B, G·D), with the gates side by side.

    A tap receives each gate as (B, 1, D).
    """

    def __call__(
        self, from_input: Tensor, from_state: Tensor, state: LayerState, tap: Tap | None = None
    ) -> LayerState: ...


def rnn_step(from_input: Tensor, from_state: Tensor, state: LayerState, tap: Tap | None = None) -> LayerState:
    """Compute h' = tanh(W x + U h) (Elman 1990).

    >>> rnn_step(torch.zeros(1, 2), torch.zeros(1, 2), (torch.ones(1, 2),))
    (tensor([[0., 0.]]),)
    """
    return (torch.tanh(from_input + from_state).to(state[0].dtype),)  # cast back to the state's dtype


def gru_step(from_input: Tensor, from_state: Tensor, state: LayerState, tap: Tap | None = None) -> LayerState:
    """Compute r, z = σ(W x + U h); n = tanh(W x + r ∘ U h); h' = (1 - z) ∘ n + z ∘ h (Cho 2014, section 2.3).

    As in PyTorch, the reset gate r multiplies U h, where Cho has U(r ∘ h); z keeps the old state. A tap receives r as
    "reset", z as "keep" and n as "new".

    >>> gru_step(torch.zeros(1, 3), torch.zeros(1, 3), (torch.ones(1, 1),))
    (tensor([[0.5000]]),)
    """
    (hidden,) = state
    widths = (2 * hidden.shape[1], hidden.shape[1])
    input_gates, input_new = from_input.split_with_sizes(widths, dim=1)
    state_gates, state_new = from_state.split_with_sizes(widths, dim=1)
    reset, keep = torch.sigmoid(input_gates + state_gates).chunk(2, dim=1)
    reset, keep = tapped_as_one(tap, "reset", reset), tapped_as_one(tap, "keep", keep)
    new = tapped_as_one(tap, "new", torch.tanh(input_new + reset * state_new))
    return (new + keep * (hidden - new),)


def lstm_step(from_input: Tensor, from_state: Tensor, state: LayerState, tap: Tap | None = None) -> LayerState:
    """Compute one LSTM step (Hochreiter 1997, Gers 2000); the gates are in the order i, f, g, o.

    i, f, o = σ(W x + U h); g = tanh(W x + U h); c' = f ∘ c + i ∘ g; h' = o ∘ tanh(c').
    A tap receives i as "write", f as "keep", g as "new", o as "read" and c' as "cell".

    >>> h, c = lstm_step(torch.zeros(1, 4), torch.zeros(1, 4), (torch.zeros(1, 1), torch.ones(1, 1)))
    >>> c
    tensor([[0.5000]])
    """
    write, keep, new, read = (from_input + from_state).chunk(4, dim=1)
    write, keep = tapped_as_one(tap, "write", write.sigmoid()), tapped_as_one(tap, "keep", keep.sigmoid())
    new, read = tapped_as_one(tap, "new", new.tanh()), tapped_as_one(tap, "read", read.sigmoid())
    cell = tapped_as_one(tap, "cell", keep * state[1] + write * new)
    return read * cell.tanh(), cell


class Stepper:
    """Single steps of a recurrent module, for steps whose input depends on the result of the previous step.

    The input of the bottom layer is [x; fed]. `project` multiplies x for all steps at once; `fed` may be None. The
    constructor computes everything that does not change from step to step.
    """

    def __init__(self, cells: nn.RNNBase, cell_step: CellStep, d_x: int) -> None:
        self.cell_step = cell_step
        self.dropout, self.training = cells.dropout, cells.training
        # w_ih, w_hh, b_ih, b_hh of each layer, cast once: autocast would cast a slice of a matrix at every step
        self.layers = [tuple(p.to(product_dtype(p)) for p in layer) for layer in cells.all_weights]
        w_in = self.layers[0][0]
        self.w_x, self.w_fed = w_in[:, :d_x], w_in[:, d_x:]

    def project(self, x: Tensor) -> Sequence[Tensor]:
        """Project `x` (B, T, E) to T tensors (B, G·D)."""
        # The backward pass of `unbind` is a single stack; indexing by t would fill a full-size gradient for each t.
        return F.linear(x, self.w_x, self.layers[0][2]).unbind(dim=1)

    def __call__(self, projected: Tensor, fed: Tensor | None, states: States, tap: Tap | None = None) -> States:
        """Run one step of every layer: `projected` (B, G·D), `fed` (B, ·); a tap receives the gates as "0.keep" …"""
        from_input = projected if fed is None else projected + F.linear(fed, self.w_fed)
        new: list[LayerState] = []
        for number, ((w_in, w_state, b_in, b_state), state) in enumerate(zip(self.layers, states, strict=True)):
            if new:
                from_input = F.linear(F.dropout(new[-1][0], self.dropout, self.training), w_in, b_in)
            from_state = F.linear(state[0], w_state, b_state)
            new.append(self.cell_step(from_input, from_state, state, scoped(tap, str(number))))
        return tuple(new)


def run(cells: nn.RNNBase, x: Tensor, states: States | None = None) -> tuple[Tensor, States]:
    """Run a sequence without padding: `x` (B, T, E) → top-layer states (B, T, D), and the last state of each layer.

    A bidirectional module concatenates both directions, in outputs and last states. Initial `states` of None are zeros.
    """
    with _autocast_obeyed(cells, x) as x:
        outputs, last = cells(x, _joined(states))
    return outputs, _apart(cells, last)


def run_by_steps(cells: nn.RNNBase, cell_step: CellStep, x: Tensor, tap: Tap) -> tuple[Tensor, States]:
    """Return the result of `run(cells, x)`, computed by formulas one step at a time, for a tap.

    The tap receives the gates of each layer and direction, such as "0.forward.reset", and the states, such as
    "0.forward.state", (B, 1, D) at each step. The first step of "backward" reads the last position.
    """
    directions = ("forward", "backward")[: 1 + cells.bidirectional]
    n_parts = 2 if isinstance(cells, nn.LSTM) else 1  # the state of an LSTM also has a cell
    ends: list[LayerState] = []
    for number in range(cells.num_layers):
        outputs, last = [], []
        for direction, name in enumerate(directions):
            w_in, w_state, b_in, b_state = cells.all_weights[number * len(directions) + direction]
            of_layer = scoped(tap, f"{number}.{name}")
            state = tuple(x.new_zeros(x.shape[0], cells.hidden_size) for _ in range(n_parts))
            states = []
            for from_input in _turned(F.linear(x, w_in, b_in), direction).unbind(dim=1):
                state = cell_step(from_input, F.linear(state[0], w_state, b_state), state, of_layer)
                hidden = tapped(of_layer, "state", state[0][:, None])
                state = (hidden[:, 0], *state[1:])
                states.append(hidden)
            outputs.append(_turned(torch.cat(states, dim=1), direction))
            last.append(state)
        x = torch.cat(outputs, dim=2)
        ends.append(tuple(torch.cat(parts, dim=1) for parts in zip(*last, strict=True)))
        if cells.training and number < cells.num_layers - 1:
            x = F.dropout(x, cells.dropout)
    return x, tuple(ends)


def _turned(x: Tensor, direction: int) -> Tensor:
    """Return `x` (B, T, ·) with T reversed for direction 1, which reads from last to first; else return `x`."""
    return x.flip(1) if direction else x


def run_masked(cells: nn.RNNBase, x: Tensor, lengths: Tensor, states: States | None = None) -> tuple[Tensor, States]:
    """Apply `run` to rows whose first `lengths` (B,) tokens are real; padding has no effect, and its outputs are 0.

    A row without a real token keeps its initial state.
    """
    # A packed row cannot be empty: such a row reads one token, and its result is discarded below.
    n_read = lengths.clamp(min=1).cpu()
    with _autocast_obeyed(cells, x) as x:
        packed = pack_padded_sequence(x, n_read, batch_first=True, enforce_sorted=False)
        outputs, last = cells(packed, _joined(states))
    outputs, _ = pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])
    is_empty = lengths == 0
    ends = _apart(cells, last)
    begins = states or tuple(tuple(torch.zeros_like(part) for part in layer) for layer in ends)
    return outputs.masked_fill(is_empty[:, None, None], 0.0), where(~is_empty, ends, begins)


def reading_order(real: Tensor, reverse: bool = False) -> Tensor:
    """Return the reading order: the indices of the real tokens from first to last (or last to first), then padding.

    `real` (B, T) bool, True = a real token → (B, T), a permutation of each row; the argsort of a permutation inverts
    it.

    >>> real = torch.tensor([[False, True, True], [True, False, True]])
    >>> reading_order(real).tolist(), reading_order(real, reverse=True).tolist()
    ([[1, 2, 0], [0, 2, 1]], [[2, 1, 0], [2, 0, 1]])
    """
    n_tokens = real.shape[1]
    turn = torch.arange(n_tokens, device=real.device)
    if reverse:
        turn = n_tokens - 1 - turn
    return torch.where(real, turn, n_tokens).argsort(dim=1, stable=True)


def in_order(x: Tensor, order: Tensor) -> Tensor:
    """Return `x` (B, T, ·) with the positions of each row permuted by `order` (B, T)."""
    return x.gather(1, order[:, :, None].expand(-1, -1, x.shape[2]))


def where(rows: Tensor, new: Any, old: Any) -> Any:
    """Return `new` in rows where `rows` (B,) is True, and `old` in the other rows."""
    return on_tensors(lambda n, o: torch.where(rows[:, None], n, o), new, old)


def on_tensors(function: Callable[..., Tensor], *parts: Any) -> Any:
    """Apply a function to the tensors of equally nested tuples; a part may also be `None`.

    >>> on_tensors(torch.add, (torch.ones(1), None), (torch.ones(1), None))
    (tensor([2.]), None)
    """
    if parts[0] is None:
        return None
    if isinstance(parts[0], Tensor):
        return function(*parts)
    return tuple(on_tensors(function, *items) for items in zip(*parts, strict=True))


@contextmanager
def _autocast_obeyed(cells: nn.RNNBase, x: Tensor) -> Iterator[Tensor]:
    """Yield `x`; if the cells do not follow autocast, disable autocast and cast `x` to the dtype of the weights.

    Under autocast, cuDNN's cells run in fp16 even if bf16 is requested, and the loss is then not scaled for fp16.
    The cells of a CPU use the requested type.
    """
    weight = next(cells.parameters())
    kind = weight.device.type
    if _obeys_autocast(kind) or not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        yield x
    else:
        with torch.autocast(kind, enabled=False):
            yield x.to(weight.dtype)


def _obeys_autocast(device_type: str) -> bool:
    """Return True if cells compute in the precision of autocast: on a CPU that computes LSTMs in bf16."""
    return device_type == "cpu" and processor.this.packs_bfloat16


def _joined(states: States | None) -> Tensor | tuple[Tensor, ...] | None:
    """Stack states for PyTorch's modules: (n_layers, B, D), or a pair of such tensors for an LSTM."""
    if states is None:
        return None
    hidden, *cell = (torch.stack(parts) for parts in zip(*states, strict=True))
    return (hidden, *cell) if cell else hidden


def _apart(cells: nn.RNNBase, last: Tensor | tuple[Tensor, ...]) -> States:
    """Invert `_joined`, with both directions of a layer concatenated."""
    parts = last if isinstance(last, tuple) else (last,)
    by_part = [part.unflatten(0, (cells.num_layers, -1)).transpose(1, 2).flatten(2).unbind(0) for part in parts]
    return tuple(zip(*by_part, strict=True))


# The attention of a recurrent decoder


def additive_scores(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    """Compute score(q, k) = vᵀ tanh(q + k) of projected q = W₁h and k = W₂s (Bahdanau 2015, appendix A.1.2).

    `query` (B, T, A), `key` (B, S, A), `vector` (A,) → (B, T, S).

    >>> additive_scores(torch.zeros(1, 1, 2), torch.zeros(1, 3, 2), torch.ones(2)).shape
    torch.Size([1, 1, 3])
    """
    return torch.tanh(query[:, :, None] + key[:, None, :]) @ vector


def multiplicative_scores(query: Tensor, key: Tensor) -> Tensor:
    """Compute score(q, k) = qᵀk: Luong (2015), equation 8 "dot"; "general" if `key` is already W·s.

    `query` (B, T, A), `key` (B, S, A) → (B, T, S).
    """
    return query @ key.transpose(-2, -1)


Score = Literal["additive", "dot", "general", "scaled_dot"]

_PROJECTED: dict[Score, str] = {"additive": "qk", "dot": "", "general": "k", "scaled_dot": "qkv"}
"""Letters of the queries (q), keys (k) and values (v) that have a projection matrix, for each score."""


class SingleHeadAttention(nn.Module):
    """Attention context = Σⱼ softmaxⱼ(score(h, sⱼ)) vⱼ of a state h (width `d_query`) and memory sⱼ (width `d_memory`).

    - "additive": vᵀ tanh(W₁h + W₂s) (Bahdanau 2015, appendix A.1.2), which is Luong's "concat" vᵀ tanh(W[h; s])
      with W split into two halves.
    - "dot": hᵀs, "general": hᵀW s (Luong 2015, section 3.1, equation 8).
    - "scaled_dot": (W₁h)ᵀ(W₂s) / √A over the values W₃s (Vaswani 2017, equation 1, with one head).

    Letters: B batch, T query length, S source length, A `d_attention`, W `d_context`, the width of a value: `d_memory`,
    or A if values are projected. "dot" and "general" have no A, and "dot" needs `d_query` equal to `d_memory`, which is
    `d_query` by default.

    >>> attention = SingleHeadAttention(16, 32, 24, score="additive")
    >>> context, weights = attention(torch.zeros(2, 16), torch.zeros(2, 5, 32))
    >>> context.shape, weights.shape
    (torch.Size([2, 32]), torch.Size([2, 5]))
    """

    @takes_other_names
    def __init__(
        self, d_query: int, d_memory: int | None = None, d_attention: int | None = None, score: Score = "additive"
    ) -> None:
        super().__init__()
        d_memory = d_query if d_memory is None else d_memory
        self.d_query, self.d_memory = d_query, d_memory
        projected = _PROJECTED[one_of("score", score, _PROJECTED)]
        if score == "dot" and d_query != d_memory:
            raise ValueError(f"score dot: expected d_query equal to d_memory, got {d_query} and {d_memory}")
        d_key, self.d_context = d_query, d_memory
        self.q_proj: nn.Module = nn.Identity()
        self.k_proj: nn.Module = nn.Identity()
        self.v_proj: nn.Module = nn.Identity()
        if "q" in projected:
            d_key = d_attention or d_query
            self.q_proj = Linear(d_query, d_key, bias=False)
        if "k" in projected:
            self.k_proj = Linear(d_memory, d_key, bias=False)
        if "v" in projected:
            self.d_context = d_key
            self.v_proj = Linear(d_memory, d_key, bias=False)
        self.vector = None
        if score == "additive":
            self.vector = nn.Parameter(torch.empty(d_key))
            nn.init.uniform_(self.vector, -1 / math.sqrt(d_key), 1 / math.sqrt(d_key))
        self.multiply = multiplicative_scores
        if score == "scaled_dot":
            self.multiply = scaled_dot_product_scores

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project `memory` (B, S, D) to keys (B, S, A) and values (B, S, W), once per source."""
        return self.k_proj(memory), self.v_proj(memory)

    def forward(
        self,
        query: Tensor,
        memory: Memory,
        mask: Tensor | None = None,
        *,
        tap: Tap | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the context (B, T, W) of `query` (B, T, D) and the weights (B, T, S).

        `memory` is (B, S, ·), or the result of `project_memory`. `mask` (B, S) has True or 1 for a real token; a row
        without one gets zeros. A query (B, D) is one step, and the results have no axis T; it may come after a memory.
        The tap receives scores and weights (B, 1, T, S), context (B, 1, T, W).
        """
        if isinstance(memory, Tensor):
            if memory.dim() == 2 and query.dim() == 3:
                query, memory = memory, query  # as in many notebooks
            if memory.dim() != 3 or memory.shape[2] != self.d_memory:
                raise wrong_activations("memory", memory, self.d_memory, "d_memory")
            memory = self.project_memory(memory)
        keys, values = memory
        if is_one_step := query.dim() == 2:
            query = query[:, None]
        if query.shape[-1] != self.d_query or query.shape[0] != keys.shape[0]:
            raise wrong_activations("query", query, self.d_query, "d_query")
        if mask is not None:
            mask = real_tokens("mask", mask, keys[..., 0])[:, None]  # (B, 1, S)
        scores = tapped_as_one(tap, "scores", self.scores(self.q_proj(query), keys))
        weights = tapped_as_one(tap, "weights", masked_softmax(scores, mask))
        context = tapped_as_one(tap, "context", weights @ values)
        return (context[:, 0], weights[:, 0]) if is_one_step else (context, weights)

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return the scores (B, T, S) of a projected query and projected keys."""
        if self.vector is None:
            return self.multiply(query, keys)
        return additive_scores(query, keys, self.vector)
