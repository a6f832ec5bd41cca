"""The Transformer with an encoder, a decoder or both."""

from dataclasses import fields, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from glassformer.common.arguments import takes_other_names
from glassformer.config.transformer import TransformerConfig
from glassformer.models.blocks import Inputs
from glassformer.models.heads import NetworkBase, SequenceVector
from glassformer.models.stacks import Decoder, Encoder
from glassformer.models.state import TransformerState
from glassformer.nn.attention import Probe, Tap, scoped
from glassformer.nn.boundary import is_ids, real_tokens, require_rows
from glassformer.nn.kv_cache import cache_dtype


class Transformer(NetworkBase):
    """Transformer with an encoder (as BERT), a decoder (as GPT), or both with cross-attention (the original).

    `token_ids` is the input of the stack before the head: of the decoder if there is one, otherwise of the encoder.
    `forward` is `head(hidden(…))`.
    """

    def __init__(
        self, config: TransformerConfig, encoder: Encoder | None, decoder: Decoder | None, output: nn.Module
    ) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        self.decoder = decoder
        self.output = output

    @partial(takes_other_names, also=[field.name for field in fields(Inputs) if field.name != "mask"])
    def forward(
        self,
        token_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        source_ids: Tensor | None = None,
        source_attention_mask: Tensor | None = None,
        target_attention_mask: Tensor | None = None,
        loss_positions: Tensor | None = None,
        tap: Tap | None = None,
        **others: Any,
    ) -> Tensor:
        """Return logits: (B, T, V) over tokens, (B, T, n_labels) per position or (B, n_labels); or vectors (B, D).

        `token_ids` (B, T), `source_ids` (B, S); masks have True or 1 at a real token. Other fields of `Inputs` are
        given by name. With `loss_positions` (N,), each b · T + t, return only the logits (N, V) of these positions.
        `model(source_ids, token_ids)` is the order of `torch.nn.Transformer`, with `target_attention_mask`.
        """
        if source_ids is None and self.config.needs_source and is_ids(attention_mask, token_ids):
            token_ids, source_ids, attention_mask = cast(Any, attention_mask), token_ids, target_attention_mask
        others |= {"source_ids": source_ids, "source_attention_mask": source_attention_mask}
        hidden = self.hidden(token_ids, attention_mask, tap=tap, **others)
        if loss_positions is not None:
            return self.head(hidden.flatten(0, 1)[loss_positions])
        return self.head(hidden, attention_mask)

    def hidden(
        self, token_ids: Tensor, attention_mask: Tensor | None = None, *, tap: Tap | None = None, **others: Any
    ) -> Tensor:
        """Return the hidden states (B, T, D) that the head reads, for the arguments of `forward`.

        If the model reads a text twice, `token_ids` is the text: the encoder reads it, and the decoder reads it one
        position later, after its start token.
        """
        name = self.config.head_stack_name
        stack = getattr(self, name)
        require_rows("token_ids", token_ids, stack.embeddings.tokens)
        real = real_tokens("attention_mask", attention_mask, token_ids, self.config.decoder is not None)
        inputs = Inputs(real, **others)
        if self.config.reads_text_twice and inputs.source_ids is None:
            start = self.config.decoder_start_id
            if start is None:
                raise ValueError("config.decoder_start_id is missing: the decoder needs a first token")
            inputs = replace(inputs, source_ids=token_ids, source_attention_mask=inputs.attention_mask)
            token_ids = torch.cat([torch.full_like(token_ids[:, :1], start), token_ids[:, :-1]], dim=1)
        memory = self.encode(inputs.source_ids, inputs.source_attention_mask, tap=tap)
        of_source = real_tokens("source_attention_mask", inputs.source_attention_mask, inputs.source_ids)
        inputs = replace(inputs, memory=memory, source_attention_mask=of_source, tap=scoped(tap, name))
        return stack(token_ids, inputs)

    def head(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map hidden states to logits; only pooling over a sequence needs the mask."""
        head = self.output
        if isinstance(head, SequenceVector):
            if attention_mask is not None:
                attention_mask = real_tokens("attention_mask", attention_mask, hidden[:, :, 0], is_causal=True)
            return head(hidden, attention_mask)
        return head(hidden)

    @takes_other_names
    def encode(
        self, source_ids: Tensor | None, source_attention_mask: Tensor | None = None, *, tap: Tap | None = None
    ) -> Tensor | None:
        """Return the memory (B, S, D) for cross-attention; `None` if the model has one stack only."""
        if self.encoder is None or self.decoder is None:
            if source_ids is not None:
                one = "because this model has one stack only: model(token_ids), or model.hidden(token_ids)"
                raise ValueError(f"source_ids: expected None, {one}")
            return None
        if source_ids is None:
            raise ValueError("a model with an encoder and a decoder needs source_ids: model(target_ids, source_ids=…)")
        require_rows("source_ids", source_ids, self.encoder.embeddings.tokens)
        real = real_tokens("source_attention_mask", source_attention_mask, source_ids)
        return self.encoder(source_ids, Inputs(real, tap=scoped(tap, "encoder")))

    @takes_other_names
    def decode(
        self,
        memory: Tensor,
        token_ids: Tensor,
        source_attention_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the decoder's hidden states (B, T, D) of `token_ids` (B, T); `memory` is the result of `encode`."""
        if self.encoder is None or self.decoder is None:
            raise ValueError("decode needs a model with an encoder and a decoder: use model.hidden(token_ids)")
        require_rows("token_ids", token_ids, self.decoder.embeddings.tokens)
        real = real_tokens("attention_mask", attention_mask, token_ids, is_causal=True)
        of_source = real_tokens("source_attention_mask", source_attention_mask, memory[:, :, 0])
        return self.decoder(token_ids, Inputs(real, memory=memory, source_attention_mask=of_source))

    def start(
        self, n_rows: int, max_len: int, source_ids: Tensor | None = None, source_attention_mask: Tensor | None = None
    ) -> TransformerState:
        """Return an empty state for `n_rows` rows of at most `max_len` tokens; encode the source once."""
        if self.decoder is None:
            raise ValueError("an encoder alone cannot generate; use a model with a decoder")
        blocks: Any = self.decoder.blocks
        weight = next(blocks.parameters())
        encoded, memory = self.encode(source_ids, source_attention_mask), None
        if encoded is not None:
            projected = (block.cross_attn.project_memory(encoded) for block in blocks)
            memory = [tuple(x.to(cache_dtype(x)) for x in of_block) for of_block in projected]
        return TransformerState(
            layers=[block.self_attn.new_cache(n_rows, max_len, weight) for block in blocks],
            max_len=max_len,
            lengths=torch.zeros(n_rows, dtype=torch.long, device=weight.device),
            longest=0,
            memory=memory,
            memory_mask=source_attention_mask,
        )

    def step(
        self, token_ids: Tensor, state: TransformerState, attention_mask: Tensor | None = None, tap: Tap | None = None
    ) -> tuple[Tensor, TransformerState]:
        """Return logits (B, T, V) for T more tokens per row (prefill, or T = 1) and the new state."""
        decoder = self.decoder
        assert decoder is not None
        hidden, state = decoder.step(token_ids, state, attention_mask, None if tap is None else tap.scope("decoder"))
        return self.head(hidden, attention_mask), state

    def step_attending(
        self, token_ids: Tensor, state: TransformerState, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, TransformerState, Tensor | None]:
        """Return the results of `step`, and the last block's weights (B, T, S) to the source, averaged over the heads.

        The weights are None for a model without cross-attention. Only this cross-attention runs `attention_reference`.
        """
        assert self.decoder is not None
        probe = Probe(f"decoder.blocks.{len(self.decoder.blocks) - 1}.cross_attn.weights", [])
        logits, state = self.step(token_ids, state, attention_mask, probe)
        if not probe.found:
            return logits, state, None
        weights = probe.found[0].mean(dim=1)  # (B, T, S), or (groups, width, S) of branched rows
        return logits, state, weights if state.branches is None else state.branches.unfold(weights)

    def read_at(
        self, token_ids: Tensor, state: TransformerState, attention_mask: Tensor | None, at: Tensor
    ) -> tuple[Tensor, TransformerState]:
        """Read tokens as `step`; return the logits (B, V) of token number `at[i]` of each row i, and the new state."""
        assert self.decoder is not None
        hidden, state = self.decoder.step(token_ids, state, attention_mask)
        return self.head(hidden[torch.arange(len(at), device=at.device), at]), state
