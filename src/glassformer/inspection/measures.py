"""Measures of a prediction, one value per row: the loss, or the distance to the prediction of an unchanged pass.

| model | `name` | value |
|---|---|---|
| causal language model | `loss` | mean −log p(next token), in nats |
| encoder-decoder | `loss` | mean −log p(target token), including the end token, in nats |
| encoder with a token head, and a reference text | `loss` | mean −log p(reference token) at the masks, in nats |
| encoder with a token head | `kl` | mean KL(unchanged ‖ changed) over the masks, or over all positions without a mask |
| classifier, tagger | `kl` | KL(unchanged ‖ changed) of the labels, mean over positions of a tagger |
| classifier with label sets | `kl` | Σ over the labels of KL(unchanged ‖ changed), each present or absent |
| regression, vectors, a network without its task | `change` | mean absolute change of the output |

The task of the model gives the probabilities of labels (`TrainedModel.predictor`): the weights do not determine
whether labels exclude each other. A `Network` alone has no task.

KL(p ‖ q) = Σ p (log p − log q) is the increase of the expected loss if p is the true distribution. So it is comparable
with a change of the loss. The pseudo-log-likelihood of a masked model needs one pass per token and is not used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from glassformer.common.errors import UserError
from glassformer.config.recurrent import ModelConfig, RecurrentConfig
from glassformer.config.transformer import TokenHead
from glassformer.data.batching import NOT_SCORED
from glassformer.models.build import Network
from glassformer.models.devices import evaluation_mode
from glassformer.nn.attention_functions import at_least_fp32
from glassformer.tasks.trained_model import TrainedModel


def one_choice(logits: Tensor) -> Tensor:
    """Return logits (…, V) as those of one choice, (…, 1, V)."""
    return logits[..., None, :]


@dataclass(frozen=True)
class Measure:
    """Measure of outputs (R, …), one value per row, with the labels or the unchanged outputs that it compares with."""

    name: Literal["loss", "kl", "change"]
    reference: Tensor
    """`loss`: labels (T,), -100 = not scored. Otherwise the outputs of the unchanged pass, (1, …)."""
    positions: Tensor | None = None
    """`kl`: scored positions (T,), bool; None for all."""
    choices: Callable[[Tensor], Tensor] = one_choice
    """`kl`: function that returns logits of independent choices, (R, …, choices, outcomes), from outputs (R, …)."""

    def __call__(self, outputs: Tensor) -> Tensor:
        """Return the value of each row of `outputs` (R, …), (R,); outputs of a token head are logits (R, T, V)."""
        outputs = at_least_fp32(outputs)
        if self.name == "loss":
            return label_loss(outputs, self.reference)
        reference = self.reference.to(outputs)
        if self.name == "change":
            return (outputs - reference).abs().flatten(1).mean(dim=1)
        divergence = kl_divergence(self.choices(reference), self.choices(outputs)).sum(dim=-1)  # (R,) or (R, T)
        if self.positions is not None:
            divergence = divergence[:, self.positions]
        return divergence.reshape(len(divergence), -1).mean(dim=1)


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean −log softmax(logits)[label] over the scored positions of each row.

    `logits` (R, T, V), `labels` (T,) with -100 = not scored → (R,), in nats.

    >>> label_loss(torch.zeros(1, 3, 4), torch.tensor([2, 0, -100]))  # ln 4
    tensor([1.3863])
    """
    at = (labels != NOT_SCORED).nonzero().flatten()
    log_probs = logits[:, at].log_softmax(dim=-1)
    return -log_probs.gather(2, labels[at].expand(len(logits), -1)[:, :, None]).squeeze(2).mean(dim=1)


def kl_divergence(logits: Tensor, changed: Tensor) -> Tensor:
    """Return KL(softmax(logits) ‖ softmax(changed)) over the last dimension, in nats; both (…, V) → (…).

    >>> kl_divergence(torch.tensor([0.0, -torch.inf]), torch.tensor([0.0, 0.0]))  # certain, then two equal tokens
    tensor(0.6931)
    """
    log_p, log_q = logits.log_softmax(dim=-1), changed.log_softmax(dim=-1)
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(dim=-1)


def next_labels(config: ModelConfig, token_ids: Sequence[int]) -> list[int]:
    """Return the label of each position of a decoder: the next token, and the end token of a target at the last one."""
    last = config.eos_id if config.is_encoder_decoder else None
    if last is None:
        last = NOT_SCORED
    return [*token_ids[1:], last]


def masked_labels(token_ids: Sequence[int], reference_ids: Sequence[int], mask_id: int) -> list[int]:
    """Return the reference token at each mask, and -100 at all other positions.

    >>> masked_labels([7, 4, 9], [7, 8, 9], mask_id=4)
    [-100, 8, -100]

    Raises `UserError` if the texts have different numbers of tokens, or if there is no mask.
    """
    if len(token_ids) != len(reference_ids):
        raise UserError(
            f"the text has {len(token_ids)} tokens and the reference {len(reference_ids)}: write one [MASK] per token"
        )
    if mask_id not in token_ids:
        raise UserError("the text has no [MASK]: add one, or give no reference")
    is_mask = torch.tensor(token_ids) == mask_id
    labels: list[int] = torch.tensor(reference_ids).masked_fill(~is_mask, NOT_SCORED).tolist()
    return labels


def predicts_next_token(config: ModelConfig) -> bool:
    """Return True if the network is a decoder, with or without an encoder, that predicts tokens."""
    if isinstance(config, RecurrentConfig):
        return True
    return config.decoder is not None and isinstance(config.head, TokenHead)


def measure_of(
    model: TrainedModel | Network, inputs: Mapping[str, Tensor], reference_ids: Sequence[int] | None = None
) -> Measure:
    """Return the measure of a model on the inputs of a trace (one row); see the table of this module.

    `reference_ids` is the text without masks, for an encoder with a token head. Raises `UserError` if no position of
    the text has a label.
    """
    network = model if isinstance(model, nn.Module) else model.network
    config, token_ids = network.config, inputs["token_ids"][0]
    labels: list[int] | None = None
    if reference_ids is not None:
        if config.mask_id is None or predicts_next_token(config):
            raise UserError("a reference text needs a masked language model: give none for this model")
        labels = masked_labels(token_ids.tolist(), reference_ids, config.mask_id)
    elif predicts_next_token(config):
        labels = next_labels(config, token_ids.tolist())
        if set(labels) == {NOT_SCORED}:
            raise UserError("the text has one token, and the first token is not scored: give a longer text")
    if labels is not None:
        return Measure("loss", torch.tensor(labels, device=token_ids.device))
    with torch.no_grad(), evaluation_mode(network):
        outputs = network(**inputs)
    assert not isinstance(config, RecurrentConfig)
    if isinstance(config.head, TokenHead):
        if config.mask_id is None or config.mask_id not in token_ids:
            return Measure("kl", outputs)
        return Measure("kl", outputs, token_ids == config.mask_id)
    choices = None if isinstance(model, nn.Module) else _choices(model)
    if choices is None:
        return Measure("change", outputs)
    return Measure("kl", outputs, choices=choices)


def _choices(model: TrainedModel) -> Callable[[Tensor], Tensor] | None:
    """Return the function `Measure.choices` of a model; None if its outputs are no logits."""
    predictor = model.predictor
    return None if predictor is None or model.is_regression else predictor.choices


def loss_of(network: nn.Module, inputs: Mapping[str, Tensor], measure: Measure) -> float:
    """Run the network once and return the measure of its outputs; inside `ablate`, of the changed outputs."""
    with torch.no_grad(), evaluation_mode(network):
        return float(measure(network(**inputs))[0])
