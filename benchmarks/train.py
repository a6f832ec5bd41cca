"""Training steps of glassformer and of its peers, on the same batches.

Every model of a table has the same sizes, fused AdamW and gradient clipping. Glassformer takes the step of its trainer,
the peers a loop written by hand.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bahdanau_peers
import bert_peers
import gpt_peers
import translation_peers
from glassformer.config.train import AdamWConfig, TrainConfig
from glassformer.data.batching import Batch
from glassformer.nn.kernels import flex_attention
from glassformer.objectives.causal import CausalObjective
from glassformer.objectives.loss import Objective
from glassformer.training.host import Host
from glassformer.training.optimizers.build import build_optimizer
from glassformer.training.step import TrainStep
from rates import choose_device, wait_for
from task import Precision, Task

OURS = "glassformer"
Sizes = Mapping[str, int]
Logits = Callable[[nn.Module, Batch], Tensor]
"""(network, batch) → logits of all positions."""


@dataclass(frozen=True)
class How:
    """Settings of a step that a candidate has."""

    precision: Precision = "fp32"
    compiled: bool = False
    calls: int = 1
    device: str = "auto"

    @property
    def autocast(self) -> torch.dtype | None:
        return torch.bfloat16 if self.precision == "bf16" else None


def gpt(model: str, sizes: Sizes, **how: Any) -> Task:
    """Train a decoder of GPT-2's shape."""
    torch.manual_seed(0)
    shape = gpt_peers.Decoder(**sizes)
    (token_ids,), labels = shape.inputs(torch.device("cpu"))
    batch = Batch(token_ids=token_ids, labels=labels, n_targets=labels.numel())
    if model == OURS:
        return own_step(gpt_peers.ours(shape), CausalObjective(), [batch], shape.step_flops, How(**how))
    network = gpt_peers.MODELS[model](shape)
    return plain_step(network, _of_tokens, [batch], shape.step_flops, How(**how))


def packed(sizes: Sizes, mean_length: int, n_batches: int, flex: bool = True, **how: Any) -> Task:
    """Train a decoder of GPT-2's shape on rows of documents: with FlexAttention where it is preferred, or never."""
    torch.manual_seed(0)
    if not flex:
        flex_attention.DEVICES = ()
    shape = gpt_peers.Decoder(**sizes)
    batches = []
    for _ in range(n_batches):
        (token_ids,), labels = shape.inputs(torch.device("cpu"))
        documents = (torch.rand(token_ids.shape) < 1 / mean_length).cumsum(1)
        batches.append(Batch(token_ids=token_ids, labels=labels, n_targets=labels.numel(), document_ids=documents))
    return own_step(gpt_peers.ours(shape), CausalObjective(), batches, 0.0, How(**how))


def translation(model: str, sizes: Sizes, **how: Any) -> Task:
    """Train an encoder-decoder Transformer without padding."""
    torch.manual_seed(0)
    shape = translation_peers.EncoderDecoder(**sizes)
    return of_pairs(translation_peers, model, shape, [_pairs(shape)], How(**how))


def bahdanau(model: str, sizes: Sizes, **how: Any) -> Task:
    """Train a recurrent encoder-decoder with additive attention."""
    torch.manual_seed(0)
    shape = bahdanau_peers.Recurrent(**sizes)
    return of_pairs(bahdanau_peers, model, shape, [_pairs(shape)], How(**how))


def bert(model: str, sizes: Sizes, **how: Any) -> Task:
    """Train a BERT on masked tokens; glassformer computes logits for these only."""
    torch.manual_seed(0)
    shape = bert_peers.Bert(**sizes)
    batch = shape.batch()
    if model == OURS:
        return own_step(bert_peers.ours(shape), bert_peers.objective(), [batch], shape.step_flops, How(**how))
    return plain_step(bert_peers.transformers_bert(shape), _of_tokens, [batch], shape.step_flops, How(**how))


def of_pairs(peers: Any, model: str, shape: Any, batches: Sequence[Batch], how: How) -> Task:
    """Train an encoder-decoder of the module `peers` on given batches."""
    if model == OURS:
        return own_step(peers.ours(shape), CausalObjective(), batches, shape.step_flops, how)
    return plain_step(peers.MODELS[model](shape), _of_pairs, batches, shape.step_flops, how)


def _pairs(shape: Any) -> Batch:
    (source_ids, token_ids), labels = shape.inputs(torch.device("cpu"))
    return Batch(token_ids=token_ids, source_ids=source_ids, labels=labels, n_targets=labels.numel())


def _of_tokens(network: nn.Module, batch: Batch) -> Tensor:
    return network(batch.token_ids)


def _of_pairs(network: nn.Module, batch: Batch) -> Tensor:
    masks = (batch.source_attention_mask, batch.attention_mask)
    return network(batch.source_ids, batch.token_ids, *(masks if any(mask is not None for mask in masks) else ()))


def own_step(network: nn.Module, objective: Objective, batches: Sequence[Batch], flops: float, how: How) -> Task:
    """Make the step of glassformer's trainer; each call takes the next batch."""
    device = choose_device(how.device)
    network.to(device)
    config = TrainConfig(precision=how.precision, compile=how.compiled, activation_checkpointing=False)
    optimizer = build_optimizer(network, AdamWConfig(learning_rate=1e-4))
    step = TrainStep(
        network,
        objective,
        optimizer,
        config,
        Host(device),
        has_one_shape=len({batch.token_ids.shape for batch in batches}) == 1,
    )
    following = cycle(batch.to(device) for batch in batches)

    def take() -> None:
        step.backward([next(following)])
        step.update()

    return _task(take, network, batches, flops, how)


def plain_step(network: nn.Module, logits_of: Logits, batches: Sequence[Batch], flops: float, how: How) -> Task:
    """Make a step as one writes it by hand; each call takes the next batch."""
    device = choose_device(how.device)
    network.to(device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    parameters = list(network.parameters())
    following = cycle(batch.to(device) for batch in batches)

    def loss_of(batch: Batch) -> Tensor:
        return F.cross_entropy(logits_of(network, batch).flatten(0, 1).float(), batch.labels.flatten())

    compiled: Any = torch.compile(loss_of) if how.compiled else loss_of

    def step() -> None:
        batch = next(following)
        with torch.autocast(device.type, dtype=how.autocast, enabled=how.autocast is not None):
            loss = compiled(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return _task(step, network, batches, flops, how)


def _task(call: Callable[[], object], network: nn.Module, batches: Sequence[Batch], flops: float, how: How) -> Task:
    device = choose_device(how.device)
    return Task(
        call,
        amount=sum(batch.n_targets for batch in batches) / len(batches),
        flops=flops,
        parameters=sum(p.numel() for p in network.parameters() if p.requires_grad),
        calls=how.calls * len(batches),
        first_calls=len(batches) if device.type == "cuda" else 0,
        wait=lambda: wait_for(device),
    )
