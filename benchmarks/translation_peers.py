"""Encoder-decoders for the benchmarks, all of the same size: glassformer, transformers' Marian and torch.nn."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.config.transformer import SinusoidalPositions, Stack, TokenHead, TransformerConfig
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer

PAD, END = 0, 1


@dataclass(frozen=True)
class EncoderDecoder:
    """Sizes of an encoder-decoder and its batch; no dropout, one table for source, target and output."""

    n_layers: int = 6
    n_heads: int = 8
    d_model: int = 512
    d_ff: int = 2048
    vocab_size: int = 8000
    batch: int = 64
    n_source: int = 24
    n_target: int = 24

    @property
    def n_tokens(self) -> int:
        """Target tokens of a batch."""
        return self.batch * self.n_target

    @property
    def step_flops(self) -> float:
        """6 · weights · tokens for forward and backward; attention, less than 2 % at these lengths, is not counted."""
        square, ff = self.d_model**2, 2 * self.d_model * self.d_ff
        encoder = self.n_layers * (4 * square + ff) + self.n_layers * 2 * square  # and keys and values for the decoder
        decoder = self.n_layers * (6 * square + ff) + self.vocab_size * self.d_model
        return 6 * self.batch * (encoder * self.n_source + decoder * self.n_target)

    def inputs(self, device: torch.device) -> tuple[tuple[Tensor, ...], Tensor]:
        """Draw source ids, shifted target ids and labels."""
        source = torch.randint(2, self.vocab_size, (self.batch, self.n_source), device=device)
        target = torch.randint(2, self.vocab_size, (self.batch, self.n_target + 1), device=device)
        return (source, target[:, :-1]), target[:, 1:]


def ours(shape: EncoderDecoder) -> Transformer:
    """Build glassformer's model of Marian's shape: post-norm, SiLU, scaled embeddings, one table."""
    stack = Stack(shape.n_layers, shape.n_heads, d_ff=shape.d_ff)
    config = TransformerConfig(
        encoder=stack,
        decoder=stack,
        d_model=shape.d_model,
        vocab_size=shape.vocab_size,
        max_len=512,
        share_embeddings=True,
        positions=SinusoidalPositions("halves"),
        norm_order="post",
        final_norm=False,
        activation="silu",
        embedding_scale=0.0,
        head=TokenHead(bias="constant"),
    )
    return build_model(config)


def marian(shape: EncoderDecoder) -> Any:
    """Build transformers' Marian with its fused attention."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=shape.vocab_size,
        d_model=shape.d_model,
        encoder_layers=shape.n_layers,
        decoder_layers=shape.n_layers,
        encoder_attention_heads=shape.n_heads,
        decoder_attention_heads=shape.n_heads,
        encoder_ffn_dim=shape.d_ff,
        decoder_ffn_dim=shape.d_ff,
        activation_function="silu",
        max_position_embeddings=512,
        scale_embedding=True,
        dropout=0.0,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
    )
    config._attn_implementation = "sdpa"
    return MarianMTModel(config)


class TorchTranslator(nn.Module):
    """Encoder and decoder of torch.nn with the same table and positions."""

    def __init__(self, shape: EncoderDecoder) -> None:
        super().__init__()
        self.shape = shape
        self.table = nn.Embedding(shape.vocab_size, shape.d_model)
        self.positions = nn.Embedding(512, shape.d_model).requires_grad_(False)  # fixed; any values
        sizes = (shape.d_model, shape.n_heads, shape.d_ff, 0.0, nn.functional.silu)
        encoder = nn.TransformerEncoderLayer(*sizes, batch_first=True)
        decoder = nn.TransformerDecoderLayer(*sizes, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder, shape.n_layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, shape.n_layers)

    def forward(
        self, source_ids: Tensor, token_ids: Tensor, source_real: Tensor | None = None, real: Tensor | None = None
    ) -> Tensor:
        # Booleans like the masks of padding; torch.nn warns about other types.
        n_tokens = token_ids.shape[1]
        mask = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=token_ids.device).triu(1)
        source_padding, padding = (None if m is None else ~m for m in (source_real, real))
        read = self.encoder(self.embed(source_ids), src_key_padding_mask=source_padding)
        x = self.decoder(
            self.embed(token_ids),
            read,
            tgt_mask=mask,
            tgt_is_causal=True,
            tgt_key_padding_mask=padding,
            memory_key_padding_mask=source_padding,
        )
        return x @ self.table.weight.T

    def embed(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.table(ids) * math.sqrt(self.shape.d_model) + self.positions(places)


class Logits(nn.Module):
    """A model of transformers as a function from source and target ids to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, source_ids: Tensor, token_ids: Tensor, source_real: Tensor | None = None, real: Tensor | None = None
    ) -> Tensor:
        return self.model(
            input_ids=source_ids,
            attention_mask=source_real,
            decoder_input_ids=token_ids,
            decoder_attention_mask=real,
            use_cache=False,
        ).logits


MODELS = {
    "transformers Marian": lambda shape: Logits(marian(shape)),
    "torch.nn": TorchTranslator,
}
