"""Encoder and Decoder: embeddings, blocks, final norm. What blocks share is computed here, once."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from glassformer.models.blocks import Block, BlockInputs
from glassformer.nn.attention import Tap
from glassformer.nn.embeddings import Embeddings
from glassformer.nn.kv_cache import Branches, Slots, TransformerState
from glassformer.nn.masks import Mask, positions_from_mask
from glassformer.nn.positions import LearnedPositions


class _BlockStack(nn.Module):
    """What both stacks have; `rotary` and `score_bias` belong to the stack and serve every self-attention."""

    causal: bool
    """No token sees what comes after it."""

    def __init__(
        self,
        embeddings: Embeddings,
        blocks: Sequence[Block],
        windows: Sequence[int],
        final_norm: nn.Module | None,
        rotary: nn.Module | None,
        score_bias: nn.Module | None,
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.blocks = nn.ModuleList(blocks)
        self.windows = tuple(windows)  # of each block; 0 = all
        self.final_norm = final_norm
        self.rotary = rotary
        self.score_bias = score_bias
        self.activation_checkpointing = False
        """Recompute each block in the backward pass; the trainer sets it."""

    def forward(
        self,
        token_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        token_types: Tensor | None = None,
        positions: Tensor | None = None,
        document_ids: Tensor | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """`token_ids` (B, T), `memory` (B, S, D), masks of both, (B, T) and (B, S), True = real → states (B, T, D)."""
        positions = self.token_positions(token_ids, attention_mask, positions)
        documents = None if document_ids is None else (document_ids, document_ids)
        mask = Mask(causal=self.causal, keys=attention_mask, documents=documents)
        x = self.embeddings(token_ids, positions, token_types)
        inputs = BlockInputs(mask, memory=memory, memory_mask=_memory_mask(memory_mask, x, memory), tap=tap)
        return self.run_blocks(x, positions, positions, inputs)

    def run_blocks(
        self,
        x: Tensor,
        positions: Tensor,
        key_positions: Tensor,
        inputs: BlockInputs,
        state: TransformerState | None = None,
    ) -> Tensor:
        """`x` (B, T, D) through every block and the final norm; `positions` of queries, `key_positions` of keys.

        `inputs` have a mask without windows; rotary angles and bias are added here.
        """
        tap = inputs.tap
        n_keys = key_positions.shape[-1]
        inputs = replace(
            inputs,
            rotary=None if self.rotary is None else self.rotary(positions),
            bias=None if self.score_bias is None else self.score_bias(positions, key_positions),
        )
        by_window = {}  # blocks that share a window share a mask, which is worked out once
        for window in set(self.windows):
            mask = replace(inputs.mask, window=window)
            mask = mask.worked_out(x.shape[1], n_keys, x.device, always=inputs.bias is not None)
            by_window[window] = replace(inputs, mask=mask)
        x = x if tap is None else tap("embeddings", x)
        for i, block in enumerate(self.blocks):
            of_block = by_window[self.windows[i]]
            if state is not None:
                memory_kv = None if state.memory is None else state.memory[i]
                of_block = replace(of_block, cache=state.layers[i], memory_kv=memory_kv)
            if tap is not None:
                of_block = replace(of_block, tap=tap.scope(f"blocks.{i}"))
            if self.activation_checkpointing and self.training:
                x = checkpoint(block, x, of_block, use_reentrant=False)
            else:
                x = block(x, of_block)
        x = x if self.final_norm is None else self.final_norm(x)
        return x if tap is None else tap("final", x)

    def token_positions(self, token_ids: Tensor, attention_mask: Tensor | None, positions: Tensor | None) -> Tensor:
        """Positions as given, or counted over the real tokens of each row, or 0 … T-1."""
        if positions is not None:
            return positions
        self.check_length(token_ids.shape[1])
        if attention_mask is not None:
            return positions_from_mask(attention_mask)
        return torch.arange(token_ids.shape[1], device=token_ids.device)

    def check_length(self, n_tokens: int) -> None:
        """Learned positions end somewhere; a clear error, where a lookup's own would be obscure."""
        table = self.embeddings.positions
        if isinstance(table, LearnedPositions) and n_tokens > table.max_len:
            raise ValueError(f"{n_tokens} tokens, and this model has learned positions for {table.max_len}")


class Encoder(_BlockStack):
    """Every token sees every real token."""

    causal = False


class Decoder(_BlockStack):
    """A token sees itself and what came before; with cross-attention it also reads a memory."""

    causal = True

    def step(
        self, token_ids: Tensor, state: TransformerState, attention_mask: Tensor | None = None, tap: Tap | None = None
    ) -> tuple[Tensor, TransformerState]:
        """Adds (B, T) tokens to a cached prefix; padding (False in `attention_mask`) leaves no trace in it."""
        if state.branches is not None:
            return self._step_branches(token_ids, state, state.branches.grown(state.lengths), tap)
        n_new = token_ids.shape[1]
        if state.uniform and (attention_mask is None or bool(attention_mask.all())):
            positions = torch.arange(state.longest, state.longest + n_new, device=token_ids.device)
            slots = Slots(state.longest, state.longest + n_new)
            lengths = state.lengths + n_new
        else:
            real = torch.ones_like(token_ids, dtype=torch.bool) if attention_mask is None else attention_mask
            # A padding token stands where the last real one does: inside the table, and with a key to see.
            positions = (state.lengths[:, None] + real.cumsum(dim=1) - 1).clamp(min=0)  # (B, T)
            lengths = state.lengths + real.sum(dim=1)
            slots = Slots(None, int(lengths.max()), positions.masked_fill(~real, -1))
        if slots.n_filled > state.max_len:
            raise ValueError(f"{slots.n_filled} tokens do not fit a state made for {state.max_len}")
        self.check_length(slots.n_filled)
        state.make_room(slots.n_filled)
        # Slots are positions: the causal rule alone hides both the future and what other rows have beyond this one.
        key_positions = torch.arange(slots.n_filled, device=token_ids.device)
        mask = Mask(causal=True, query_index=None if slots.start == 0 else positions)
        if slots.start is not None and n_new == 1 and not any(self.windows):
            mask = Mask()  # one query that sees all that is filled
        x = self.embeddings(token_ids, positions)
        inputs = BlockInputs(mask, slots=slots, memory_mask=_memory_mask(state.memory_mask, x, None), tap=tap)
        x = self.run_blocks(x, positions, key_positions, inputs, state)
        return x, replace(state, lengths=lengths, longest=slots.n_filled, uniform=slots.start is not None)

    def _step_branches(
        self, token_ids: Tensor, state: TransformerState, branches: Branches, tap: Tap | None
    ) -> tuple[Tensor, TransformerState]:
        """One token for each row of a state that has branched: `branches` hold the new slots."""
        if token_ids.shape[1] != 1:
            raise ValueError("a state that has branched takes one token a row")
        positions, grid = state.lengths[:, None], branches.grid
        self.check_length(state.longest + 1)
        in_groups = grid.fold(positions)  # (groups, width)
        mask = Mask(query_index=in_groups, key_index=branches.positions, pairs=grid.fold(branches.seen[:, None]))
        x = self.embeddings(token_ids, positions)
        slots = Slots(branches.n_slots - grid.width, branches.n_slots)
        state.make_room(slots.n_filled)
        memory_mask = _memory_mask(state.memory_mask, x, None)
        inputs = BlockInputs(mask, slots=slots, grid=grid, memory_mask=memory_mask, tap=tap)
        x = self.run_blocks(x, in_groups, branches.positions, inputs, state)
        return x, replace(state, lengths=state.lengths + 1, longest=state.longest + 1, branches=branches)


def _memory_mask(memory_mask: Tensor | None, x: Tensor, memory: Tensor | None) -> Mask | None:
    """The cross-attention's mask, by the source's length and never the target's."""
    if memory_mask is None:
        return None
    n_keys = memory_mask.shape[1] if memory is None else memory.shape[1]
    return Mask(keys=memory_mask).worked_out(x.shape[1], n_keys, x.device)
