"""The examination of this package's own models, which know what they are."""

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.config import TokenHead
from glassformer.data.batching import Example
from glassformer.doctor.adapter import Kind
from glassformer.doctor.examine import check
from glassformer.doctor.report import Report
from glassformer.errors import UserError
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer
from glassformer.objectives.causal import CausalObjective

PROBED_LEN = 16


def check_transformer(network: Transformer, *, seed: int = 0) -> Report:
    """`check` with everything that the network's configuration says; `UserError` if its head is not over tokens."""
    config = network.config
    if not isinstance(config.head, TokenHead):
        raise UserError(f"the doctor reads logits over tokens, and this model's head is over {config.head.kind}")
    kind: Kind = "decoder"
    if config.encoder is not None:
        kind = "encoder" if config.decoder is None else "encoder-decoder"
    return check(
        network,
        vocab_size=config.vocab_size,
        source_vocab_size=config.source_vocab_size or None,
        kind=kind,
        fresh=lambda: build_model(config),
        max_len=min(config.max_len, config.source_max_len or config.max_len, PROBED_LEN),
        pad_id=config.pad_id,
        loss=causal_loss if kind == "decoder" else None,
        seed=seed,
    )


def causal_loss(network: nn.Module, token_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, int]:
    """The loss that a decoder is trained with, on whole rows: `CausalObjective`, its shift and padding included."""
    real = torch.ones_like(token_ids, dtype=torch.bool) if attention_mask is None else attention_mask
    examples = [Example(row[mask].cpu().numpy()) for row, mask in zip(token_ids, real, strict=True)]
    objective = CausalObjective()
    sums = objective.loss(network, objective.collate(examples, np.random.default_rng(0)).to(token_ids.device))
    return sums.total, sums.n_targets
