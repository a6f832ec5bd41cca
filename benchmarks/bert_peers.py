"""BERT for the benchmarks: glassformer and transformers, of equal size, with masked tokens as targets."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.config.presets import preset
from glassformer.config.transformer import Stack, TransformerConfig
from glassformer.cost.flops import Shape, training_flops
from glassformer.data.batching import NOT_SCORED, Batch
from glassformer.models.build import build_model
from glassformer.objectives.noise import MaskedObjective
from glassformer.tokenization.vocabulary import WordBoundaries

MASK_ID = 103


@dataclass(frozen=True)
class Bert:
    """Sizes of a BERT and its batch; no dropout."""

    n_layers: int = 12
    n_heads: int = 12
    d_model: int = 768
    vocab_size: int = 30522
    batch_size: int = 8
    n_tokens: int = 128
    n_masked: int = 19
    """Masked tokens per row: 15 %."""

    @property
    def config(self) -> TransformerConfig:
        return replace(
            preset("bert-base"),
            encoder=Stack(self.n_layers, self.n_heads, d_ff=4 * self.d_model),
            d_model=self.d_model,
            vocab_size=self.vocab_size,
            embedding_dropout=0.0,
            residual_dropout=0.0,
            attention_dropout=0.0,
        )

    @property
    def step_flops(self) -> float:
        """Matrix products of forward and backward, with logits for the masked tokens only."""
        return training_flops(self.config, Shape(self.batch_size, self.n_tokens, n_scored=self.n_masked))

    def batch(self) -> Batch:
        """Draw rows with masked tokens, and their labels."""
        shape = (self.batch_size, self.n_tokens)
        token_ids = torch.randint(MASK_ID + 1, self.vocab_size, shape)
        chosen = torch.rand(shape).argsort(dim=1)[:, : self.n_masked]
        labels = torch.full(shape, NOT_SCORED).scatter(1, chosen, token_ids.gather(1, chosen))
        positions = (labels.flatten() != NOT_SCORED).nonzero().squeeze(1)
        return Batch(
            token_ids=token_ids.scatter(1, chosen, MASK_ID),
            labels=labels,
            n_targets=len(positions),
            loss_positions=positions,
        )


def objective() -> MaskedObjective:
    """Return glassformer's masked language modelling; the batch is already masked, so it needs no word boundaries."""
    none = np.zeros(0, dtype=np.bool_)
    return MaskedObjective(MASK_ID, WordBoundaries(none, none, none, none))


def ours(shape: Bert) -> nn.Module:
    """Build glassformer's BERT."""
    return build_model(shape.config)


def transformers_bert(shape: Bert) -> nn.Module:
    """Build BertForMaskedLM with its fused attention."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.d_model,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        intermediate_size=4 * shape.d_model,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config._attn_implementation = "sdpa"

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = BertForMaskedLM(config)

        def forward(self, token_ids: Tensor) -> Tensor:
            return self.model(token_ids).logits

    return Logits()
