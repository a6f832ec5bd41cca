"""Measures of a prediction, one value per row: the loss, or the distance to the prediction of an unchanged pass.

| model | `name` | value |
|---|---|---|
| causal language model | `loss` | mean −log p(next token), in nats |
| encoder-decoder | `loss` | mean −log p(target token), including the end token, in nats |
| encoder with a token head | `kl` | mean KL(unchanged ‖ changed) over the masks, or over all positions without a mask |
| classifier, tagger | `kl` | KL(unchanged ‖ changed) of the labels, mean over positions of a tagger |
| classifier with label sets | `kl` | Σ over the labels of KL(unchanged ‖ changed), each present or absent |
| regression, vectors, a network without its task | `change` | mean absolute change of the output |
| each of them except vectors (`logit_measure`) | `logit` | logit(token), or logit(token) − logit(another token) |

The task of the model gives the probabilities of labels (`TrainedModel.predictor`): the weights do not determine
whether labels exclude each other. A `Network` alone has no task.

KL(p ‖ q) = Σ p (log p − log q) is the increase of the expected loss if p is the true distribution. So it is comparable
with a change of the loss. The pseudo-log-likelihood of a masked model needs one pass per token and is not used.

Over a set of texts, a number of a part has a `Spread`. The baseline is the mean of this number over the other parts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from glassformer.common.errors import UserError, did_you_mean, quoted
from glassformer.config.recurrent import ModelConfig, RecurrentConfig
from glassformer.config.transformer import TokenHead
from glassformer.data.batching import NOT_SCORED
from glassformer.models.build import Network
from glassformer.models.devices import evaluation_mode
from glassformer.nn.attention import at_least_fp32
from glassformer.tasks.trained_model import TrainedModel

N_ERRORS = 3.0
"""A number is beyond its baseline if the mean difference is larger than this many standard errors."""
MIN_TEXTS = 5
"""With fewer texts, the standard error itself is too uncertain, and nothing is beyond a baseline."""
Name = TypeVar("Name")


def one_choice(logits: Tensor) -> Tensor:
    """Return logits (…, V) as one choice among V outcomes, (…, 1, V)."""
    return logits[..., None, :]


@dataclass(frozen=True)
class Measure:
    """Measure of outputs (R, …), one value per row: it compares them with labels, or with the unchanged outputs."""

    name: Literal["loss", "kl", "change", "logit"]
    reference: Tensor
    """`loss`: labels (T,), -100 = not scored. `logit`: the id of the token, then that of the token whose logit is
    subtracted, if any. Otherwise the outputs of the unchanged pass, (1, …)."""
    positions: Tensor | None = None
    """`kl`: scored positions (T,), bool; None for all. `logit`: the only position; None for outputs of a whole text."""
    choices: Callable[[Tensor], Tensor] = one_choice
    """`kl`: function that returns logits of independent choices, (R, …, choices, outcomes), from outputs (R, …)."""

    def __call__(self, outputs: Tensor) -> Tensor:
        """Return the values (R,) of the rows of `outputs` (R, …); outputs of a token head are logits (R, T, V)."""
        outputs = at_least_fp32(outputs)
        if self.name == "loss":
            return label_loss(outputs, self.reference)
        if self.name == "logit":
            if self.positions is not None:
                outputs = outputs[:, self.positions][:, 0]
            return outputs[:, self.reference[0]] - outputs[:, self.reference[1:]].sum(dim=1)  # of (R, V)
        reference = self.reference.to(outputs)
        if self.name == "change":
            return (outputs - reference).abs().flatten(1).mean(dim=1)
        divergence = kl_divergence(self.choices(reference), self.choices(outputs)).sum(dim=-1)  # (R,) or (R, T)
        if self.positions is not None:
            divergence = divergence[:, self.positions]
        return divergence.reshape(len(divergence), -1).mean(dim=1)


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean −log softmax(logits)[label] over the scored positions of each row.

    The result (R,) for `logits` (R, T, V) is in nats. In `labels` (T,), -100 is a position that is not scored.

    >>> label_loss(torch.zeros(1, 3, 4), torch.tensor([2, 0, -100]))  # ln 4
    tensor([1.3863])
    """
    at = (labels != NOT_SCORED).nonzero().flatten()
    log_probs = logits[:, at].log_softmax(dim=-1)  # (R, scored, V)
    return -log_probs.gather(2, labels[at].expand(len(logits), -1)[:, :, None]).squeeze(2).mean(dim=1)


def kl_divergence(logits: Tensor, changed: Tensor) -> Tensor:
    """Return KL(softmax(logits) ‖ softmax(changed)), (…), over the last dimension of both (…, V), in nats.

    >>> kl_divergence(torch.tensor([0.0, -torch.inf]), torch.tensor([0.0, 0.0]))  # certain, then two equal tokens
    tensor(0.6931)
    """
    log_p, log_q = logits.log_softmax(dim=-1), changed.log_softmax(dim=-1)
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(dim=-1)


def next_labels(config: ModelConfig, token_ids: Sequence[int]) -> list[int]:
    """Return the label of each decoder position: the next token; at the last position, a target's end token or -100."""
    last = config.eos_id if config.is_encoder_decoder else None
    if last is None:
        last = NOT_SCORED
    return [*token_ids[1:], last]


def predicts_next_token(config: ModelConfig) -> bool:
    """Return True if the network is a decoder, with or without an encoder, that predicts tokens."""
    if isinstance(config, RecurrentConfig):
        return True
    return config.decoder is not None and isinstance(config.head, TokenHead)


def measure_of(model: TrainedModel | Network, inputs: Mapping[str, Tensor]) -> Measure:
    """Return the measure of a model on the inputs of a trace (one row); see the table of this module.

    Raises `UserError` if no position of the text has a label.
    """
    network = model if isinstance(model, nn.Module) else model.network
    config, token_ids = network.config, inputs["token_ids"][0]
    if predicts_next_token(config):
        labels = next_labels(config, token_ids.tolist())
        if set(labels) == {NOT_SCORED}:
            raise UserError("the text has one token, and the first token is not scored: give a longer text")
        return Measure("loss", torch.tensor(labels, device=token_ids.device))
    with torch.no_grad(), evaluation_mode(network):
        outputs = network(**inputs)
    assert not isinstance(config, RecurrentConfig)
    if isinstance(config.head, TokenHead):
        if config.mask_id is None or config.mask_id not in token_ids:
            return Measure("kl", outputs)
        return Measure("kl", outputs, token_ids == config.mask_id)
    if isinstance(model, nn.Module) or model.predictor is None or model.is_regression:
        return Measure("change", outputs)
    return Measure("kl", outputs, choices=model.predictor.choices)


def logit_measure(
    model: TrainedModel,
    inputs: Mapping[str, Tensor],
    token: str | None = None,
    against: str | None = None,
    position: int | None = None,
) -> Measure:
    """Return the measure logit(token), or logit(token) − logit(against), at a position of the output.

    `token` and `against` are one token each, such as " Paris", or labels; by default, `token` is the prediction. The
    default position is the last one, or the first mask. The number of a regression model is its only logit.

    ```python
    measure = logit_measure(model, trace.inputs, " he", " she")
    effects(model.network, trace.inputs, measure).changes[Part("decoder", 0, head=3)]
    ```

    Raises `UserError` for a text of several tokens, an unknown label, equal tokens, a wrong position, and a model of
    vectors.
    """
    with torch.no_grad(), evaluation_mode(model.network):
        outputs = model.network(**inputs)
    best, where = outputs[0], None  # (T, V), or (V,) of a whole text
    if best.ndim > 1:
        at = answer_position(model, inputs, position)
        where = torch.zeros(len(best), dtype=torch.bool, device=best.device)
        where[at] = True
        best = best[at]
    elif position is not None:
        raise UserError(f"the output of {model.name} is of the whole text: leave out the position")
    elif not model.classes and (not model.is_regression or token is not None or against is not None):
        raise UserError(f"{model.name} has no logits of tokens or labels: use a model that predicts them")
    ids = [answer_id(model, text) for text in (token, against) if text is not None]
    if token is None:
        ids.insert(0, int(best.argmax()))
    if len(set(ids)) < len(ids):
        raise UserError(f"both tokens are token {ids[0]}: give two different tokens")
    return Measure("logit", torch.tensor(ids, device=best.device), where)


def answer_id(model: TrainedModel, text: str) -> int:
    """Return the id of an answer, one token or a label; raise `UserError` for several tokens or an unknown label."""
    if model.classes:
        if text not in model.classes:
            raise UserError(f"there is no label {quoted(text)}: {did_you_mean(text, model.classes, 'labels are')}")
        return model.classes.index(text)
    ids = model.tokenizer.encode(text)
    if len(ids) != 1:
        hint = "give one token, with its leading space if it begins a word"
        raise UserError(f"the answer {quoted(text)} has {len(ids)} tokens: {hint}")
    return ids[0]


def answer_position(model: TrainedModel, inputs: Mapping[str, Tensor], position: int | None = None) -> int:
    """Return a position of the output, by default the last one, or the first mask of a masked model.

    Raises `UserError` for a position outside the input, and if no position is given and a masked model has no mask.
    """
    token_ids = inputs["token_ids"][0].tolist()
    if position is not None:
        if not -len(token_ids) <= position < len(token_ids):
            raise UserError(f"the position is {position} and the input has {len(token_ids)} tokens, counted from 0")
        return position
    if predicts_next_token(model.network.config) or model.classes:
        return -1
    if model.tokenizer.mask_id not in token_ids:
        raise UserError("the text has no [MASK]: add one, or give a position")
    return int(token_ids.index(model.tokenizer.mask_id))


def loss_of(network: nn.Module, inputs: Mapping[str, Tensor], measure: Measure) -> float:
    """Run the network once, and return the measure of its outputs (inside `ablate`, the changed outputs)."""
    with torch.no_grad(), evaluation_mode(network):
        return float(measure(network(**inputs))[0])


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation and quartiles of a number over n texts.

    >>> spread([1.0, 2.0, 6.0]).mean
    3.0
    """

    n: int
    mean: float
    deviation: float
    """Standard deviation of a sample, divided by n − 1; NaN for one text."""
    quartiles: tuple[float, float, float]
    """25 %, 50 % and 75 % of the texts have at most this number, which is interpolated linearly between two texts."""


@dataclass(frozen=True)
class Beside:
    """A number of a part over a set of texts, and its baseline: the mean of the same number over the other parts.

    >>> beside_others({"a": [3.0] * 5, "b": [1.0] * 5, "c": [2.0] * 5})["a"].baseline
    1.5
    """

    own: Spread
    baseline: float
    """Mean over texts and over the other parts; NaN without another part."""
    is_beyond: bool
    """True if the mean difference to the baseline of the same text is larger than `N_ERRORS` standard errors."""


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of one number per text.

    >>> spread([1.0, 2.0, 3.0, 6.0])
    Spread(n=4, mean=3.0, deviation=2.160246899469287, quartiles=(1.75, 2.5, 3.75))
    """
    x = torch.tensor(values, dtype=torch.float64)
    deviation = float(x.std()) if len(x) > 1 else math.nan
    low, middle, high = torch.quantile(x, torch.tensor([0.25, 0.5, 0.75], dtype=x.dtype)).tolist()
    return Spread(len(x), float(x.mean()), deviation, (low, middle, high))


def beside_others(values: Mapping[Name, Sequence[float]]) -> dict[Name, Beside]:
    """Compare each part with the mean of the other parts; `values` has one number per text for each part.

    The difference (own number − mean of the others) is computed for each text, so a change that a text makes to all
    parts cancels. A part is beyond its baseline if there are at least `MIN_TEXTS` texts, and the mean difference is
    larger than `N_ERRORS` standard errors (deviation / √n).

    >>> found = beside_others({"a": [1.0, 1.1, 1.2, 1.0, 1.1], "b": [0.0, 0.2, 0.1, 0.0, 0.3], "c": [0.1] * 5})
    >>> [(name, one.is_beyond) for name, one in found.items()]
    [('a', True), ('b', False), ('c', False)]
    """
    x = torch.tensor(list(values.values()), dtype=torch.float64)  # (parts, texts)
    others = (x.sum(dim=0) - x) / (len(x) - 1)  # NaN for a single part
    differences = x - others
    found: dict[Name, Beside] = {}
    for name, own, baseline, difference in zip(values, x, others, differences, strict=True):
        error = float(difference.std()) / math.sqrt(len(difference)) if len(difference) >= MIN_TEXTS else math.inf
        is_beyond = float(difference.mean()) > N_ERRORS * error
        found[name] = Beside(spread(own.tolist()), float(baseline.mean()), is_beyond)
    return found
