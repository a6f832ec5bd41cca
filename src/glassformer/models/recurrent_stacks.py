"""Recurrent encoder, bridge and decoders: without attention, with attention before the step, or after it.

Letters: B batch, T target length, S source length, E d_embedding, D d_decoder, C width of the source vectors.
y is the input token, s the top layer's state, c the context. Biases are included; the papers omit them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.models.state import join_masks, join_rows
from glassformer.nn import recurrence
from glassformer.nn.attention import Tap, scoped, tapped
from glassformer.nn.boundary import vectors_of
from glassformer.nn.layers import Linear


@dataclass(frozen=True)
class Encoding:
    """Output of a recurrent encoder; C is the width of its state, with both directions concatenated."""

    memory: Tensor
    """(B, S, C): the top layer's state at every source position, zeros at padding. Only attention reads it."""
    last: recurrence.States
    """Last state of every layer, (B, C) each; the backward direction ends at the first token."""

    @property
    def summary(self) -> Tensor:
        """(B, C): the whole source as one vector, the last state of the top layer."""
        return self.last[-1][0]


class RecurrentEncoder(nn.Module):
    """Recurrent encoder hⱼ = f(E xⱼ, hⱼ₋₁), or [→hⱼ; ←hⱼ] with a bidirectional module (Bahdanau 2015, section 3.2).

    With `reverse`, real tokens are read from last to first (Sutskever 2014, sec. 3.3); `memory` has the source's order.
    """

    def __init__(
        self,
        tokens: nn.Embedding,
        cells: nn.RNNBase,
        cell_step: recurrence.CellStep,
        *,
        reverse: bool,
        embedding_dropout: float,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.cells = cells
        self.cell_step = cell_step
        self.reverse = reverse
        self.embedding_dropout = embedding_dropout

    def forward(self, source_ids: Tensor, source_attention_mask: Tensor | None, tap: Tap | None) -> Encoding:
        """Encode `source_ids` (B, S); `source_attention_mask` (B, S) is True for real tokens, with padding anywhere.

        A tap receives gates such as "cells.0.forward.reset", (B, 1, D), at each step, but not if a mask is given.
        """
        x = F.dropout(vectors_of(self.tokens, source_ids, "source_ids"), self.embedding_dropout, self.training)
        x = tapped(tap, "embeddings", x)
        real = source_attention_mask
        if real is not None:
            order = recurrence.reading_order(real, self.reverse)
            memory, last = recurrence.run_masked(self.cells, recurrence.in_order(x, order), real.sum(dim=1))
            memory = recurrence.in_order(memory, order.argsort(dim=1))
        else:
            if self.reverse:
                x = x.flip(1)
            of_cells = scoped(tap, "cells")
            if of_cells is None:
                memory, last = recurrence.run(self.cells, x)
            else:
                memory, last = recurrence.run_by_steps(self.cells, self.cell_step, x, of_cells)
            if self.reverse:
                memory = memory.flip(1)
        return Encoding(tapped(tap, "memory", memory), last)


class Bridge(nn.Module):
    """Bridge from the encoder's last to the decoder's first state, per layer h = tanh(W s) (Bahdanau 2015, A.2.2).

    The cell state of an LSTM is not the output of a tanh, so the bridge maps it by W c.
    """

    def __init__(self, d_memory: int, d_decoder: int, n_layers: int, has_cell: bool) -> None:
        super().__init__()
        self.hidden = nn.ModuleList(Linear(d_memory, d_decoder) for _ in range(n_layers))
        self.cell = nn.ModuleList()
        if has_cell:
            self.cell.extend(Linear(d_memory, d_decoder) for _ in range(n_layers))

    def forward(self, last: recurrence.States) -> recurrence.States:
        hidden = [torch.tanh(proj(layer[0])) for proj, layer in zip(self.hidden, last, strict=True)]
        if not self.cell:
            return tuple((h,) for h in hidden)
        cells = [proj(layer[1]) for proj, layer in zip(self.cell, last, strict=True)]
        return tuple(zip(hidden, cells, strict=True))


@dataclass(frozen=True)
class SourceMemory:
    """Source vectors that the decoder reads, computed once."""

    summary: Tensor
    """(B, C): last state of the encoder."""
    memory: tuple[Tensor, Tensor] | None = None
    """Keys and values for the attention, (B, S, ·), if the decoder has attention."""
    mask: Tensor | None = None
    """(B, S) True = a real source token."""

    def select(self, rows: Tensor) -> "SourceMemory":
        """Return the sources of `rows`."""
        return SourceMemory(*recurrence.on_tensors(lambda x: x[rows], (self.summary, self.memory, self.mask)))

    def joined(self, other: "SourceMemory") -> "SourceMemory":
        """Return the sources of this memory, then the sources of `other`, padded to the larger size."""
        summary = torch.cat((self.summary, other.summary))
        if self.memory is None or other.memory is None:  # nothing reads the mask
            return SourceMemory(summary)
        (keys, values), (other_keys, other_values) = self.memory, other.memory
        memory = join_rows(keys, other_keys, -2), join_rows(values, other_values, -2)
        return SourceMemory(summary, memory, join_masks(self.mask, other.mask, keys, other_keys))


@dataclass(frozen=True)
class RecurrentState:
    """State of a recurrent model between generation steps; a step returns a new state and keeps the old one valid."""

    lengths: Tensor
    """(B,) number of real tokens so far."""
    layers: recurrence.States
    """State of every layer: (h,), or (h, c) for an LSTM; (B, D) each."""
    attentional: Tensor | None
    """(B, D): h̃ of the previous step, if the next step reads it."""
    source: SourceMemory

    def select(self, rows: Tensor) -> "RecurrentState":
        """Return the state whose row i is row `rows[i]` of this state; so rows are repeated, reordered or dropped."""
        layers, attentional = recurrence.on_tensors(lambda x: x[rows], (self.layers, self.attentional))
        return RecurrentState(self.lengths[rows], layers, attentional, self.source.select(rows))

    def joined(self, other: "RecurrentState") -> "RecurrentState":
        """Return a state with the rows of this state, then the rows of `other`; their sources may differ in size."""
        both = (self.layers, self.attentional), (other.layers, other.attentional)
        layers, attentional = recurrence.on_tensors(lambda *x: torch.cat(x), *both)
        lengths = torch.cat((self.lengths, other.lengths))
        return RecurrentState(lengths, layers, attentional, self.source.joined(other.source))

    def or_else(self, old: "RecurrentState", rows: Tensor) -> "RecurrentState":
        """Return this state in rows where `rows` (B,) is True, and `old` in the others; both have the same source."""
        layers, attentional = recurrence.where(rows, (self.layers, self.attentional), (old.layers, old.attentional))
        return replace(self, layers=layers, attentional=attentional)


class MaxoutReadout(nn.Module):
    """Maxout tⱼ = max(t̃ⱼ, t̃ⱼ₊ₗ), t̃ = U s + V E y + C c, l = d_embedding (Bahdanau 2015, A.2.2; Goodfellow 2013).

    s is the state after the step, as in section 3.1 (the appendix uses the state before it). Pairs come from the two
    halves of t̃; the paper pairs neighbours.
    """

    def __init__(self, d_decoder: int, d_embedding: int, d_context: int) -> None:
        super().__init__()
        self.state_proj = Linear(d_decoder, 2 * d_embedding)
        self.token_proj = Linear(d_embedding, 2 * d_embedding, bias=False)
        self.context_proj = Linear(d_context, 2 * d_embedding, bias=False)

    def forward(self, states: Tensor, embedded: Tensor, contexts: Tensor) -> Tensor:
        """Compute the readout (B, T, E) of states (B, T, D), embeddings (B, T, E) and contexts (B, T or 1, C)."""
        both = self.state_proj(states) + self.token_proj(embedded) + self.context_proj(contexts)
        return torch.maximum(*both.chunk(2, dim=-1))


@dataclass(frozen=True)
class DecoderParts:
    """Parts that every kind of decoder has."""

    tokens: nn.Embedding
    cells: nn.RNNBase
    cell_step: recurrence.CellStep
    embedding_dropout: float = 0.0


class RecurrentDecoder(nn.Module, ABC):
    """Recurrent decoder sₜ = f([E yₜ₋₁; fed], sₜ₋₁); subclasses define `fed`, the extra input, and `read`, the output.

    If a step reads a result of the previous step (`steps_alone`), the decoder runs a loop over the steps. Otherwise it
    calls PyTorch's module once. With a tap it always runs the loop, which is the reference for that call.
    """

    steps_alone: bool
    """True if a step reads an attention result of the previous step, so that steps cannot run in one call."""

    def __init__(self, parts: DecoderParts, deep_output: MaxoutReadout | None = None) -> None:
        super().__init__()
        self.tokens = parts.tokens
        self.cells = parts.cells
        self.cell_step = parts.cell_step
        self.embedding_dropout = parts.embedding_dropout
        self.deep_output = deep_output

    @abstractmethod
    def fed(self, state: RecurrentState, tap: Tap | None = None) -> Tensor | None:
        """Return (B, ·), the vector concatenated with the token in the input of the next step; `None` for no vector."""

    @abstractmethod
    def read(self, states: Tensor, fed: Tensor | None, source: SourceMemory, tap: Tap | None) -> tuple[Tensor, Tensor]:
        """Return the readout of the new states (B, T, D), of the same width, and the contexts (B, T or 1, C)."""

    def start(self, encoding: Encoding, first: recurrence.States, mask: Tensor | None) -> RecurrentState:
        """Return the state before the first token: `first` for the layers, and the source with its `mask` (B, S)."""
        # Under autocast the bridge returns half precision; the state has the dtype of the weights of the cells.
        dtype = self.cells.all_weights[0][0].dtype
        return RecurrentState(
            lengths=torch.zeros(encoding.memory.shape[0], dtype=torch.long, device=encoding.memory.device),
            layers=recurrence.on_tensors(lambda part: part.to(dtype), first),
            attentional=None,
            source=SourceMemory(encoding.summary.to(dtype), mask=mask),
        )

    def forward(
        self, token_ids: Tensor, state: RecurrentState, attention_mask: Tensor | None = None, tap: Tap | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """Return the head input (B, T, ·) and the new state of `token_ids` (B, T); `attention_mask` (B, T) True = real.

        Padding may be anywhere in a row; it does not change the state.
        """
        x = F.dropout(vectors_of(self.tokens, token_ids), self.embedding_dropout, self.training)
        x = tapped(tap, "embeddings", x)
        if self.steps_alone or tap is not None:
            read, contexts, state = self._one_by_one(x, state, attention_mask, tap)
        else:
            read, contexts, state = self._at_once(x, state, attention_mask)
        if self.deep_output is not None:
            read = self.deep_output(read, x, contexts)
        n_new = token_ids.shape[1] if attention_mask is None else attention_mask.sum(dim=1)
        return read, replace(state, lengths=state.lengths + n_new)

    def _one_by_one(
        self, x: Tensor, state: RecurrentState, real: Tensor | None, tap: Tap | None
    ) -> tuple[Tensor, Tensor, RecurrentState]:
        step = recurrence.Stepper(self.cells, self.cell_step, x.shape[2])
        reads, contexts = [], []
        is_real = [None] * x.shape[1] if real is None else real.unbind(dim=1)
        for projected, in_rows in zip(step.project(x), is_real, strict=True):  # (B, G·D), (B,)
            # 1. The cells read the token and the vector beside it.
            fed = self.fed(state, tap)  # (B, ·)
            layers = step(projected, fed, state.layers, scoped(tap, "cells"))
            if tap is not None:
                hidden, *cell = layers[-1]
                layers = (*layers[:-1], (tap("hidden", hidden[:, None])[:, 0], *cell))
            # 2. The readout, which the next step may read.
            read, context = self.read(layers[-1][0][:, None], fed, state.source, tap)  # (B, 1, ·), (B, 1, C)
            after = replace(state, layers=layers, attentional=None if state.attentional is None else read[:, 0])
            # 3. Padding does not change the state of its row.
            if in_rows is not None:
                after = after.or_else(state, in_rows)
            state = after
            reads.append(read)
            contexts.append(context)
        return torch.cat(reads, dim=1), torch.cat(contexts, dim=1), state

    def _at_once(self, x: Tensor, state: RecurrentState, real: Tensor | None) -> tuple[Tensor, Tensor, RecurrentState]:
        fed = self.fed(state)
        if fed is not None:
            x = torch.cat((x, fed[:, None].expand(-1, x.shape[1], -1)), dim=2)
        if real is None:
            states, layers = recurrence.run(self.cells, x, state.layers)
        else:
            order = recurrence.reading_order(real)
            states, layers = recurrence.run_masked(
                self.cells, recurrence.in_order(x, order), real.sum(dim=1), state.layers
            )
            states = recurrence.in_order(states, order.argsort(dim=1))
        return *self.read(states, fed, state.source, None), replace(state, layers=layers)


class PlainDecoder(RecurrentDecoder):
    """Decoder without attention, sₜ = f(E yₜ₋₁, sₜ₋₁): only its first state holds the source (Sutskever 2014, sec. 2).

    With `context_every_step`, sₜ = f([E yₜ₋₁; c], sₜ₋₁), where c is the encoder's last state (Cho 2014, section 2.2).
    """

    steps_alone = False

    def __init__(self, parts: DecoderParts, deep_output: MaxoutReadout | None, *, context_every_step: bool) -> None:
        super().__init__(parts, deep_output)
        self.context_every_step = context_every_step

    def fed(self, state: RecurrentState, tap: Tap | None = None) -> Tensor | None:
        return state.source.summary if self.context_every_step else None

    def read(self, states: Tensor, fed: Tensor | None, source: SourceMemory, tap: Tap | None) -> tuple[Tensor, Tensor]:
        return states, source.summary[:, None]


class _AttendingDecoder(RecurrentDecoder):
    """Decoder with attention: `start` projects the memory once for all steps."""

    def __init__(
        self, parts: DecoderParts, deep_output: MaxoutReadout | None, cross_attn: recurrence.SingleHeadAttention
    ) -> None:
        super().__init__(parts, deep_output)
        self.cross_attn = cross_attn

    def start(self, encoding: Encoding, first: recurrence.States, mask: Tensor | None) -> RecurrentState:
        state = super().start(encoding, first, mask)
        return replace(state, source=replace(state.source, memory=self.cross_attn.project_memory(encoding.memory)))

    def look(self, queries: Tensor, source: SourceMemory, tap: Tap | None) -> Tensor:
        """Return the contexts (B, T, C) of `queries` (B, T, D) over the source."""
        assert source.memory is not None
        contexts, _ = self.cross_attn(queries, source.memory, source.mask, tap=scoped(tap, "cross_attn"))
        return contexts


class AttendBeforeDecoder(_AttendingDecoder):
    """Decoder that attends before the step: cₜ = attend(sₜ₋₁), sₜ = f([E yₜ₋₁; cₜ], sₜ₋₁) (Bahdanau 2015, section 3.1).

    With several layers, the state of the top layer is the query, and the bottom layer reads the context.
    """

    steps_alone = True

    def fed(self, state: RecurrentState, tap: Tap | None = None) -> Tensor | None:
        return self.look(state.layers[-1][0][:, None], state.source, tap)[:, 0]

    def read(self, states: Tensor, fed: Tensor | None, source: SourceMemory, tap: Tap | None) -> tuple[Tensor, Tensor]:
        assert fed is not None
        return states, fed[:, None]


class AttendAfterDecoder(_AttendingDecoder):
    """Decoder that attends after the step: cₜ = attend(sₜ), h̃ₜ = tanh(W[cₜ; sₜ]) (Luong 2015, section 3, equation 5).

    sₜ = f(E yₜ₋₁, sₜ₋₁). With `input_feeding`, sₜ = f([E yₜ₋₁; h̃ₜ₋₁], sₜ₋₁), so that a step reads the result of the
    previous attention (section 3.3); h̃₀ is 0.
    """

    def __init__(self, parts: DecoderParts, cross_attn: recurrence.SingleHeadAttention, *, input_feeding: bool) -> None:
        super().__init__(parts, None, cross_attn)
        d_decoder = parts.cells.hidden_size
        self.combine = Linear(cross_attn.d_context + d_decoder, d_decoder)
        self.steps_alone = input_feeding

    def start(self, encoding: Encoding, first: recurrence.States, mask: Tensor | None) -> RecurrentState:
        state = super().start(encoding, first, mask)
        if self.steps_alone:
            state = replace(state, attentional=torch.zeros_like(state.layers[-1][0]))
        return state

    def fed(self, state: RecurrentState, tap: Tap | None = None) -> Tensor | None:
        return state.attentional

    def read(self, states: Tensor, fed: Tensor | None, source: SourceMemory, tap: Tap | None) -> tuple[Tensor, Tensor]:
        contexts = self.look(states, source, tap)
        return torch.tanh(self.combine(torch.cat((contexts, states), dim=2))), contexts
