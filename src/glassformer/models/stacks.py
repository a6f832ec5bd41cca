"""Encoder and decoder stacks: embeddings, blocks, final norm. What the blocks share is computed here once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from glassformer.models.blocks import Block, Inputs
from glassformer.models.branches import Branches
from glassformer.models.state import TransformerState
from glassformer.nn.attention import Tap, tapped
from glassformer.nn.experts import Experts
from glassformer.nn.kv_cache import Slots
from glassformer.nn.layers import Embeddings
from glassformer.nn.masks import Mask, positions_from_mask
from glassformer.nn.positions import LearnedPositions

NO_RULE = Mask(is_prepared=True)
"""The mask of a query that sees all keys."""


@dataclass(frozen=True)
class StackParts:
    """The modules of an encoder or decoder stack."""

    embeddings: Embeddings
    blocks: Sequence[Block]
    windows: Sequence[int]
    """Window of the self-attention of each block; 0 = no limit."""
    final_norm: nn.Module | None
    rotaries: Sequence[nn.Module]
    """Modules for the rotary angles of queries and keys, one for each base."""
    rotary_of: Sequence[int]
    """Index of the module in `rotaries` for the self-attention of each block; -1 = none."""
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

    def forward(self, token_ids: Tensor, inputs: Inputs | None = None) -> Tensor:
        """Return the hidden states (B, T, D) of `token_ids` (B, T)."""
        inputs = inputs or Inputs()
        tap, state, positions = inputs.tap, inputs.state, inputs.positions
        # 1. The first hidden states.
        if positions is None:
            positions = self.token_positions(token_ids, inputs.attention_mask)  # (T,) or (B, T)
        x = self.embeddings(token_ids, positions, inputs.token_types)  # (B, T, D)
        # 2. What blocks of one kind share.
        of_kind = self._by_kind(x, inputs, positions)
        # 3. The blocks. A cache, a projected source and a tap belong to one block.
        if tap is not None:
            x = tap("embeddings", x)
        every = self.activation_checkpointing
        if state is not None or not self.training:
            every = 0
        for i, block in enumerate(self.blocks):
            block_inputs = of_kind[self.windows[i], self.rotary_of[i]]
            if state is not None:
                block_inputs.cache = state.layers[i]
                if state.memory is not None:
                    block_inputs.memory = state.memory[i]
            if tap is not None:
                block_inputs = replace(block_inputs, tap=tap.scope(f"blocks.{i}"))
            if every and i % every == 0:
                x = checkpoint(block, x, block_inputs, use_reentrant=False)
            else:
                x = block(x, block_inputs)
            if tap is not None:
                x = tapped(block_inputs.tap, "residual", x)
        # 4. The final norm.
        if self.final_norm is not None:
            x = self.final_norm(x)
        if tap is not None:
            x = tap("final", x)
        return x

    def _by_kind(self, x: Tensor, inputs: Inputs, positions: Tensor) -> dict[tuple[int, int], Inputs]:
        """Return the inputs for each kind of block, (window, rotary module): blocks of a kind share mask and angles."""
        # 1. The rules of attention. Experts count only tokens that are not padding.
        mask, real = inputs.mask, inputs.attention_mask
        if mask is None:
            documents = None
            if inputs.document_ids is not None:
                documents, real = (inputs.document_ids, inputs.document_ids), inputs.document_ids >= 0
            mask = Mask(causal=self.causal, keys=inputs.attention_mask, documents=documents)
        if not (self.has_experts and self.training):
            real = None
        memory_mask, source_keys, n_keys = None, inputs.source_attention_mask, x.shape[1]
        if inputs.state is not None:
            source_keys, n_keys = inputs.state.memory_mask, inputs.state.layers[0].slots.n_filled
        if source_keys is not None:
            memory_mask = Mask(keys=source_keys).materialized(x.shape[1], source_keys.shape[1], x.device)
        # 2. Positions act on queries and keys, or on the scores.
        key_positions = inputs.key_positions
        if key_positions is None:
            key_positions = positions
        bias = None if self.score_bias is None else self.score_bias(positions, key_positions)
        angles: list[tuple[Tensor, Tensor] | None] = []
        for rotary in self.rotaries:
            angles.append(rotary(positions))
        angles.append(None)
        # 3. One mask for each window.
        masks: dict[int, Mask] = {}
        kinds: dict[tuple[int, int], Inputs] = {}
        block: Any
        for window, number, block in zip(self.windows, self.rotary_of, self.blocks, strict=False):
            if (window, number) in kinds:
                continue
            if window not in masks:
                rules = mask
                if window or bias is not None:
                    rules = replace(mask, bias=bias, window=window)
                if inputs.tap is None:
                    masks[window] = block.self_attn.prepare_mask(rules, x, n_keys)
                else:
                    masks[window] = rules.materialized(x.shape[1], n_keys, x.device)  # for the readable formulas
            shared = {"mask": masks[window], "memory_mask": memory_mask, "rotary": angles[number], "real": real}
            kinds[window, number] = Inputs(**vars(inputs) | shared)
        return kinds

    def token_positions(self, token_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return the positions of the tokens among the real tokens of each row, (B, T) or (T,)."""
        n_tokens = token_ids.shape[1]
        self.check_length(n_tokens)
        if attention_mask is not None:
            return positions_from_mask(attention_mask)
        return torch.arange(n_tokens, device=token_ids.device)

    def check_length(self, n_tokens: int) -> None:
        """Raise `ValueError` if there are fewer learned positions than `n_tokens`, before a lookup fails."""
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
        # 1. Positions of the new tokens, and their slots.
        if state.uniform and (attention_mask is None or bool(attention_mask.all())):
            positions = state.lengths[:1]  # (T,)
            if n_new > 1:
                positions = torch.arange(state.longest, state.longest + n_new, device=token_ids.device)
            slots = Slots(state.longest, state.longest + n_new)
            lengths = state.lengths + n_new
        else:
            real = torch.ones_like(token_ids, dtype=torch.bool) if attention_mask is None else attention_mask
            # A padding token gets the position of the last real token. So it is in the table, and there is a key to
            # see.
            positions = (state.lengths[:, None] + real.cumsum(dim=1) - 1).clamp(min=0)  # (B, T)
            lengths = state.lengths + real.sum(dim=1)
            slots = Slots(None, int(lengths.max()), positions.masked_fill(~real, -1))
        if slots.n_filled > state.max_len:
            raise ValueError(f"expected at most {state.max_len} tokens in this state, got {slots.n_filled}")
        # 2. Slots are positions, so the causal rule alone hides later tokens, and slots that only longer rows filled.
        if slots.start is not None and n_new == 1 and not any(self.windows):
            mask = NO_RULE
        elif slots.start == 0:
            mask = Mask(causal=True)
        else:
            mask = Mask(causal=True, query_index=positions)
        # 3. The blocks, which write to the slots.
        self.check_length(slots.n_filled)
        state.make_room(slots)
        inputs = Inputs(tap=tap, positions=positions, mask=mask, state=state)
        if self.score_bias is not None:
            inputs.key_positions = torch.arange(slots.n_filled, device=token_ids.device)
        x = self.forward(token_ids, inputs)
        return x, replace(state, lengths=lengths, longest=slots.n_filled, uniform=slots.start is not None)

    def _step_branches(
        self, token_ids: Tensor, state: TransformerState, branches: Branches, tap: Tap | None
    ) -> tuple[Tensor, TransformerState]:
        """Add one token per row to a state that has branched; `branches` contains the new slots.

        The blocks read one row per group, in which the rows of the group are queries: (R, 1) tokens become (groups,
        width).
        """
        if token_ids.shape[1] != 1:
            raise ValueError("token_ids: expected one token per row, because this state has branched")
        self.check_length(state.longest + 1)
        state.make_room(Slots(branches.n_slots - branches.width, branches.n_slots))
        positions = branches.fold(state.lengths[:, None])  # (groups, width)
        mask = Mask(query_index=positions, key_index=branches.positions, pairs=branches.fold(branches.seen[:, None]))
        inputs = Inputs(tap=tap, positions=positions, key_positions=branches.positions, mask=mask, state=state)
        x = self.forward(branches.fold(token_ids), inputs)
        state = replace(state, lengths=state.lengths + 1, longest=state.longest + 1, branches=branches)
        return branches.unfold(x), state
