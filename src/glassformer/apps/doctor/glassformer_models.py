"""Property checks of glassformer's own models, with all arguments from their configuration."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.api import load
from glassformer.apps.doctor.adapter import Interface, Kind, Loss
from glassformer.apps.doctor.chat_mask import chat_mask
from glassformer.apps.doctor.runner import Report, check
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.config.recurrent import ModelConfig
from glassformer.config.transformer import TokenHead, TransformerConfig
from glassformer.data.batching import Example
from glassformer.model import Model
from glassformer.models.build import Network, build_model
from glassformer.models.heads import TokenLogits
from glassformer.models.transformer import Transformer
from glassformer.objectives.causal import CausalObjective
from glassformer.objectives.loss import Objective
from glassformer.objectives.seq2seq import Seq2SeqObjective
from glassformer.tokenization.special_tokens_template import Frame

PROBED_LEN = 16


def check_model(model: Model | nn.Module | str | Path, *, seed: int = 0, **given: Any) -> Report:
    """Run the checks with the interface that the configuration of a model describes.

    `model` is a model directory, a loaded model, or a network of this package. If its head predicts labels, the checks
    read the hidden states below it through a token head. For any other module, the keyword arguments are those of
    `Interface`, at least `vocab_size`, and `checks`, the names of the checks to run. A model with a chat template is
    also checked by `chat_mask`. Raises `UserError` for an
    ensemble, and if another module lacks `vocab_size`.
    """
    # The network of a folder or a model
    if not isinstance(model, (Model, nn.Module)):
        model = load(files.as_path(model, "model"))
    if isinstance(model, Model):
        if model.others:
            raise UserError("an ensemble cannot be checked as a whole: check each of its models")
        report = check_model(model.network, seed=seed, **given)
        return report if model.tokenizer.chat_template is None else Report((*report.results, chat_mask(model)))
    # Modules of other packages
    if not isinstance(model, Network):
        if "vocab_size" not in given:
            raise UserError(
                f"{type(model).__name__} is not a model of this package, so its vocabulary size is unknown: call "
                "check_model(module, vocab_size=…), with kind=… if it is not a decoder"
            )
        checks = given.pop("checks", None)
        return check(model, Interface(**given), checks, seed)
    if given:
        raise UserError(f"{min(given)} applies only to modules of other packages: leave it out")
    # The interface of a network of this package
    network = _with_token_head(model)
    config = network.config
    kind: Kind = "encoder-decoder"
    if isinstance(config, TransformerConfig) and not config.is_encoder_decoder:
        kind = "encoder" if config.decoder is None else "decoder"
    losses: dict[Kind, Loss | None] = {"decoder": causal_loss, "encoder": None, "encoder-decoder": seq2seq_loss}
    interface = Interface(
        vocab_size=config.vocab_size,
        source_vocab_size=config.source_vocab_size or None,
        kind=kind,
        fresh=lambda: build_model(config),
        max_len=min(config.max_len - (kind == "encoder-decoder"), config.encoder_max_len, PROBED_LEN),
        pad_id=config.pad_id,
        loss=losses[kind],
    )
    return check(network, interface, seed=seed)


def _with_token_head(network: Network) -> Network:
    if not isinstance(network, Transformer) or isinstance(network.config.head, TokenHead):
        return network
    twin = build_model(replace(network.config, head=TokenHead()))
    twin.encoder, twin.decoder = network.encoder, network.decoder
    stack = network.decoder or network.encoder
    assert stack is not None and isinstance(twin.output, TokenLogits)
    if network.config.tie_output:
        twin.output.proj.weight = stack.embeddings.tokens.weight
    return twin.to(stack.embeddings.tokens.weight.device)


def causal_loss(network: nn.Module, token_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, int]:
    """Compute the training loss of a decoder on whole rows: `CausalObjective` with its shift and padding."""
    return _loss(CausalObjective(), network, [Example(row) for row in _real_rows(token_ids, attention_mask)])


def seq2seq_loss(
    network: nn.Module,
    token_ids: Tensor,
    attention_mask: Tensor | None = None,
    source_ids: Tensor | None = None,
    source_attention_mask: Tensor | None = None,
) -> tuple[Tensor, int]:
    """Compute the training loss of an encoder-decoder: `Seq2SeqObjective` with its shift, end tokens and padding."""
    assert source_ids is not None
    config: ModelConfig = network.config  # type: ignore[assignment]
    objective = Seq2SeqObjective(config.decoder_start_id or 0, Frame(), Frame(after=(config.eos_id or 0,)))
    rows = zip(_real_rows(token_ids, attention_mask), _real_rows(source_ids, source_attention_mask), strict=True)
    return _loss(objective, network, [Example(row, source_ids=source) for row, source in rows])


def _loss(objective: Objective, network: nn.Module, examples: list[Example]) -> tuple[Tensor, int]:
    batch = objective.collate(examples, np.random.default_rng(0))
    sums = objective.loss(network, batch.to(next(network.parameters()).device))
    return sums.total, sums.n_targets


def _real_rows(ids: Tensor, mask: Tensor | None) -> Iterator[np.ndarray]:
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    return (row[kept].cpu().numpy() for row, kept in zip(ids, real, strict=True))
