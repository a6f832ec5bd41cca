"""Encoder and decoder stacks: embeddings, blocks, final norm. Inputs shared by the blocks are computed here once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from glassformer.models.blocks import Block, BlockInputs
from glassformer.models.branches import Branches
from glassformer.models.state import TransformerState
from glassformer.nn.attention import Tap, tapped
from glassformer.nn.embeddings import Embeddings
from glassformer.nn.experts import Experts
from glassformer.nn.kv_cache import CacheStep, Slots
from glassformer.nn.masks import Mask, positions_from_mask
from glassformer.nn.positions import LearnedPositions


class StackInputs(TypedDict, total=False):
    """Inputs of a stack besides token ids (B, T), their mask and a memory."""

    token_types: Tensor | None
    """(B, T): the part of a pair that each token belongs to."""
    positions: Tensor | None
    """(B, T); by default, those among the real tokens of a row."""
    document_ids: Tensor | None
    """(B, T): no token sees another document; -1 fills a row."""


@dataclass(frozen=True)
class Positions:
    """Positions of the tokens, (T,) or (B, T), and (S,) or (B, S)."""

    of_queries: Tensor
    of_keys: Tensor


@dataclass(frozen=True)
class Past:
    """The cached tokens of one step of generation, and the slots of its new tokens."""

    state: TransformerState
    slots: Slots

    def add_to(self, inputs: BlockInputs, i: int) -> BlockInputs:
        """Return the inputs of block `i` with its cache and its projected source."""
        memory = None if self.state.memory is None else self.state.memory[i]
        step = CacheStep(self.state.layers[i], self.slots)
        return BlockInputs(inputs.mask, inputs.rotary, memory, inputs.memory_mask, step, inputs.real, inputs.tap)


@dataclass(frozen=True)
class StackParts:
    """The modules of an encoder or decoder stack."""

    embeddings: Embeddings
    blocks: Sequence[Block]
    windows: Sequence[int]
    """Window of the self-attention of each block; 0 = no limit."""
    final_norm: nn.Module | None
    rotaries: Sequence[nn.Module]
    """Angles of queries and keys: one module for each base."""
    rotary_of: Sequence[int]
    """Number of the module of `rotaries` for the self-attention of each block; -1 = none."""
    score_bias: nn.Module | None
    """Bias of the scores, for every self-attention of the stack."""


class _BlockStack(nn.Module):
    """Base of both stacks."""

    causal: bool
    """True if a token does not see later tokens."""

    def __init__(self, parts: StackParts) -> None:
        super().__init__()
        self.embeddings = parts.embeddings
        self.blocks = nn.ModuleList(parts.blocks)
        self.windows = tuple(parts.windows)
        self.rotary_of = tuple(parts.rotary_of)
        self.final_norm = parts.final_norm
        self.rotaries = nn.ModuleList(parts.rotaries)
        self.score_bias = parts.score_bias
        self.has_experts = any(isinstance(block.ff, Experts) for block in parts.blocks)
        self.activation_checkpointing = 0
        """n = every n-th block is recomputed in the backward pass, from the first on; 0 = none. The trainer sets it."""

    def forward(
        self,
        token_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tap: Tap | None = None,
        **inputs: Unpack[StackInputs],
    ) -> Tensor:
        """Return states (B, T, D) of `token_ids` (B, T), `memory` (B, S, D); masks (B, T) and (B, S), True = real."""
        positions, document_ids = inputs.get("positions"), inputs.get("document_ids")
        if positions is None:
            positions = self.token_positions(token_ids, attention_mask)
        documents, real = None, attention_mask
        if document_ids is not None:
            documents, real = (document_ids, document_ids), document_ids >= 0  # -1 fills a packed row
        if not (self.has_experts and self.training):
            real = None
        mask = Mask(causal=self.causal, keys=attention_mask, documents=documents)
        x = self.embeddings(token_ids, positions, inputs.get("token_types"))
        memory_rule = _memory_mask(memory_mask, x)
        of_blocks = BlockInputs(mask, memory=memory, memory_mask=memory_rule, real=real, tap=tap)
        return self.run_blocks(x, of_blocks, Positions(positions, positions))

    def run_blocks(self, x: Tensor, inputs: BlockInputs, positions: Positions, past: Past | None = None) -> Tensor:
        """Run `x` (B, T, D) through every block and the final norm; return (B, T, D).

        Adds windows, score bias and rotary angles to `inputs`, and in generation the caches of the `past`.
        """
        tap = inputs.tap
        # Positions act on queries and keys, or on the scores.
        bias = None if self.score_bias is None else self.score_bias(positions.of_queries, positions.of_keys)
        kinds = self._by_kind(x, inputs, positions, bias)
        # Blocks.
        x = tapped(tap, "embeddings", x)
        every = self.activation_checkpointing
        for i, block in enumerate(self.blocks):
            of_block = kinds[self.windows[i], self.rotary_of[i]]
            if tap is not None:
                of_block = replace(of_block, tap=tap.scope(f"blocks.{i}"))
            if past is not None:
                of_block = past.add_to(of_block, i)
            if self.training and past is None and every and i % every == 0:
                x = checkpoint(block, x, of_block, use_reentrant=False)
            else:
                x = block(x, of_block)
        # Final norm.
        if self.final_norm is not None:
            x = self.final_norm(x)
        return tapped(tap, "final", x)

    def _by_kind(
        self, x: Tensor, inputs: BlockInputs, positions: Positions, bias: Tensor | None
    ) -> dict[tuple[int, int], BlockInputs]:
        """Return the inputs of the blocks by window and rotary module: they share one mask and one table of angles."""
        n_keys = positions.of_keys.shape[-1]
        angles: list[tuple[Tensor, Tensor] | None] = []
        for rotary in self.rotaries:
            angles.append(rotary(positions.of_queries))
        angles.append(None)
        masks: dict[int, Mask] = {}
        kinds: dict[tuple[int, int], BlockInputs] = {}
        block: Any
        for window, number, block in zip(self.windows, self.rotary_of, self.blocks, strict=False):
            if (window, number) in kinds:
                continue
            if window not in masks:
                mask = replace(inputs.mask, bias=bias, window=window)
                if inputs.tap is None:
                    masks[window] = block.self_attn.prepare_mask(mask, x, n_keys)
                else:
                    masks[window] = mask.materialized(x.shape[1], n_keys, x.device)  # for the readable formulas
            of_all = (inputs.memory, inputs.memory_mask, inputs.step, inputs.real, inputs.tap)
            kinds[window, number] = BlockInputs(masks[window], angles[number], *of_all)
        return kinds

    def token_positions(self, token_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return the positions of the tokens among the real tokens of each row, (B, T) or (T,)."""
        n_tokens = token_ids.shape[1]
        self.check_length(n_tokens)
        if attention_mask is not None:
            return positions_from_mask(attention_mask)
        return torch.arange(n_tokens, device=token_ids.device)

    def check_length(self, n_tokens: int) -> None:
        """Raise `ValueError` if learned positions are too few for `n_tokens`: clearer than the error of a lookup."""
        table = self.embeddings.positions
        if isinstance(table, LearnedPositions) and n_tokens > table.max_len:
            raise ValueError(f"expected at most {table.max_len} tokens, because positions are learned, got {n_tokens}")


class Encoder(_BlockStack):
    """Encoder stack: every token sees every real token.

    >>> from glassformer import Stack, TransformerConfig, build_model
    >>> config = TransformerConfig(encoder=Stack(n_layers=1, n_heads=4), d_model=16, vocab_size=100)
    >>> build_model(config).encoder(torch.tensor([[5, 6, 7]])).shape
    torch.Size([1, 3, 16])
    """

    causal = False


class Decoder(_BlockStack):
    """Decoder stack: a token sees itself and earlier tokens; with cross-attention it also reads a memory.

    >>> from glassformer import Stack, TransformerConfig, build_model
    >>> config = TransformerConfig(decoder=Stack(n_layers=1, n_heads=4), d_model=16, vocab_size=100)
    >>> build_model(config).decoder(torch.tensor([[5, 6, 7]])).shape
    torch.Size([1, 3, 16])
    """

    causal = True

    def step(
        self, token_ids: Tensor, state: TransformerState, attention_mask: Tensor | None = None, tap: Tap | None = None
    ) -> tuple[Tensor, TransformerState]:
        """Add (B, T) tokens to a cached prefix; padding (False in `attention_mask`) does not change the prefix."""
        if state.branches is not None:
            return self._step_branches(token_ids, state, state.branches.grown(state.lengths), tap)
        n_new = token_ids.shape[1]
        # Positions of the new tokens, and their slots.
        if state.uniform and (attention_mask is None or bool(attention_mask.all())):
            positions = torch.arange(state.longest, state.longest + n_new, device=token_ids.device)
            slots = Slots(state.longest, state.longest + n_new)
            lengths = state.lengths + n_new
        else:
            real = torch.ones_like(token_ids, dtype=torch.bool) if attention_mask is None else attention_mask
            # A padding token gets the position of the last real one: inside the table, and with a key to attend to.
            positions = (state.lengths[:, None] + real.cumsum(dim=1) - 1).clamp(min=0)  # (B, T)
            lengths = state.lengths + real.sum(dim=1)
            slots = Slots(None, int(lengths.max()), positions.masked_fill(~real, -1))
        if slots.n_filled > state.max_len:
            raise ValueError(f"expected at most {state.max_len} tokens in this state, got {slots.n_filled}")
        self.check_length(slots.n_filled)
        state.make_room(slots.n_filled)
        # Slots are positions: the causal rule alone hides both the future and slots that only longer rows have filled.
        key_positions = torch.arange(slots.n_filled, device=token_ids.device)
        if slots.start is not None and n_new == 1 and not any(self.windows):
            mask = Mask()  # one query that sees all filled slots
        elif slots.start == 0:
            mask = Mask(causal=True)
        else:
            mask = Mask(causal=True, query_index=positions)
        x = self.embeddings(token_ids, positions)
        inputs = BlockInputs(mask, memory_mask=_memory_mask(state.memory_mask, x), tap=tap)
        x = self.run_blocks(x, inputs, Positions(positions, key_positions), Past(state, slots))
        return x, replace(state, lengths=lengths, longest=slots.n_filled, uniform=slots.start is not None)

    def _step_branches(
        self, token_ids: Tensor, state: TransformerState, branches: Branches, tap: Tap | None
    ) -> tuple[Tensor, TransformerState]:
        """Add one token per row to a state that has branched; `branches` contains the new slots.

        The rows of a group are the queries of one row of the blocks: (R, 1) tokens become (groups, width).
        """
        if token_ids.shape[1] != 1:
            raise ValueError("token_ids: expected one token per row, because this state has branched")
        self.check_length(state.longest + 1)
        positions = branches.fold(state.lengths[:, None])  # (groups, width)
        mask = Mask(query_index=positions, key_index=branches.positions, pairs=branches.fold(branches.seen[:, None]))
        slots = Slots(branches.n_slots - branches.width, branches.n_slots)
        state.make_room(slots.n_filled)
        x = self.embeddings(branches.fold(token_ids), positions)
        inputs = BlockInputs(mask, memory_mask=_memory_mask(state.memory_mask, x), tap=tap)
        x = self.run_blocks(x, inputs, Positions(positions, branches.positions), Past(state, slots))
        state = replace(state, lengths=state.lengths + 1, longest=state.longest + 1, branches=branches)
        return branches.unfold(x), state


def _memory_mask(memory_mask: Tensor | None, x: Tensor) -> Mask | None:
    """Return the mask of the cross-attention, by the length of the source."""
    if memory_mask is None:
        return None
    return Mask(keys=memory_mask).materialized(x.shape[1], memory_mask.shape[1], x.device)
