"""Scores of attention heads: attention to the previous, first, an equal or the next repeated token, and entropy.

| score | mean over t of | source |
|---|---|---|
| `previous` | weight from t to t − 1 | Olsson 2022, "previous token heads" |
| `induction` | weight from t to j + 1, j the previous position with the token of t | Olsson 2022, "prefix matching" |
| `duplicate` | total weight from t to earlier positions with the same token as t | Wang 2022, "duplicate token heads" |
| `first` | weight from t to position 0 | Xiao 2024, "attention sinks" |
| `entropy` | −Σ w ln w of row t, in nats | Clark 2019, "focused vs broad attention" |
| `sharpness` | largest weight of row t | |

Position 0 is left out of `previous` and `first`. `induction` and `duplicate` use only positions that have such an
earlier token, and are NaN if no position has one. The first four scores are 1 for a head that always attends to the
position in the table.

A score needs a baseline. Uniform attention (equal weights on all keys that the mask allows) has a score u on the same
tokens, and u is large on a short text. `excess` = (score − u) / (1 − u) is 0 for uniform attention and 1 for a head
with the score 1. On one text, a head may attend to a place by chance. So `ranked_heads` calls a head found only if its
excess is at least `MARGIN` on the text and on repeated random tokens (`random_scores`). An induction head reads the
output of an earlier block, so layer 0 has no induction head.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassformer.common.errors import UserError
from glassformer.inference.text import causal_frame
from glassformer.inspection.attention_maps import Kind, attention_layers, head_weights, kind_of
from glassformer.inspection.capture import Trace, capture_tensors, encoded
from glassformer.models.transformer import Transformer
from glassformer.tasks.trained_model import TrainedModel
from glassformer.tokenization.tokenizer import Tokenizer

NAMES = {
    "previous": "attends to the previous token",
    "induction": "attends to the token after the previous occurrence of the same token",
    "duplicate": "attends to earlier occurrences of the same token",
    "first": "attends to the first token",
    "entropy": "entropy of the weights in nats",
    "sharpness": "mean of the largest weight",
}
"""Descriptions of the scores."""


PATTERNS = ("previous", "induction", "duplicate", "first")
"""Scores for which `ranked_heads` looks for heads. Each is the weight on one kind of position."""
MARGIN = 0.2
"""Smallest excess of a head that is found. Models with random initial weights stay below 0.13."""
N_RANDOM = 4
"""Number of sequences of random tokens."""
MAX_RANDOM = 25
"""Largest number of different tokens in a sequence of random tokens."""


@dataclass(frozen=True)
class LayerScores:
    """Scores of the heads of one attention, by name, and scores of uniform attention on the same tokens."""

    heads: list[dict[str, float]]
    uniform: dict[str, float]

    def excess(self, head: int, name: str) -> float:
        """Return the excess of a score of a head; NaN if the tokens do not define the score."""
        return excess(self.heads[head].get(name, math.nan), self.uniform.get(name, math.nan))


Scores = Mapping[Kind, Sequence[LayerScores]]
"""Scores of all heads, by kind of attention and layer."""


class RankedHead(NamedTuple):
    """A head and one of its scores; a number is NaN where it was not measured."""

    kind: Kind
    layer: int
    head: int
    score: float
    """Score on the text."""
    uniform: float
    """Score of uniform attention on the text."""
    random: float
    """Mean score on repeated random tokens."""
    random_uniform: float
    """Mean score of uniform attention on repeated random tokens."""
    is_found: bool
    """True if both excesses are at least `MARGIN`."""

    @property
    def is_on_one(self) -> bool:
        """True if at least one excess is at least `MARGIN`, on the text or on random tokens."""
        return excess(self.score, self.uniform) >= MARGIN or excess(self.random, self.random_uniform) >= MARGIN


def uniform_attention(allowed: Tensor) -> Tensor:
    """Return weights (T, S) that are equal on the `allowed` keys of each query; a row without allowed keys is 0.

    >>> uniform_attention(torch.ones(3, 3).tril() > 0)
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    """
    return allowed / allowed.sum(dim=-1, keepdim=True).clamp(min=1)


def excess(score: float, uniform: float) -> float:
    """Return (score − uniform) / (1 − uniform): 0 for the score of uniform attention, 1 for a score of 1.

    The result is NaN if the score of uniform attention is 1.

    >>> excess(0.75, uniform=0.5)
    0.5
    """
    return (score - uniform) / (1 - uniform) if uniform < 1 else math.nan


def previous_score(weights: Tensor) -> Tensor:
    """Return the mean weight from position t to t − 1, t ≥ 1: (…, T, T) → (…).

    >>> previous_score(torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]))
    tensor(0.7500)
    """
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1)


def first_score(weights: Tensor) -> Tensor:
    """Return the mean weight from position t to position 0, t ≥ 1: (…, T, T) → (…).

    >>> first_score(torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]))
    tensor(0.7500)
    """
    return weights[..., 1:, 0].mean(dim=-1)


def duplicate_score(weights: Tensor, ids: Sequence[int] | Tensor) -> Tensor:
    """Return the mean total weight on earlier positions with the same token: (…, T, T) and ids (T,) → (…).

    >>> duplicate_score(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.7, 0.2, 0.1]]), [5, 6, 5])
    tensor(0.7000)
    """
    repeats = _repeats(tuple(torch.as_tensor(ids).tolist()))
    row, column = repeats.row.to(weights.device), repeats.column.to(weights.device)
    return weights[..., row, column].sum(dim=-1) / repeats.n_rows


def induction_score(weights: Tensor, ids: Sequence[int] | Tensor) -> Tensor:
    """Return the mean weight on the token after the previous occurrence of the same token: (…, T, T), (T,) → (…).

    For each t, j is the largest position with id_j = id_t and j + 1 < t; the score is the mean of the weights from t to
    j + 1 over all t with such a j.

    >>> weights = torch.eye(5)
    >>> weights[3:] = torch.tensor([[0.0, 0.9, 0.0, 0.1, 0.0], [0.0, 0.0, 0.7, 0.0, 0.3]])
    >>> induction_score(weights, [5, 6, 7, 5, 6])
    tensor(0.8000)
    """
    repeats = _repeats(tuple(torch.as_tensor(ids).tolist()))
    return weights[..., repeats.at.to(weights.device), repeats.after.to(weights.device)].mean(dim=-1)


def entropy(weights: Tensor) -> Tensor:
    """Return the mean entropy −Σ w ln w of the rows, without rows of zeros: (…, T, S) → (…), in nats.

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]]))  # mean of ln 2 and 0
    tensor(0.3466)
    """
    return _mean_of_rows(-torch.xlogy(weights, weights).sum(dim=-1), weights)


def sharpness(weights: Tensor) -> Tensor:
    """Return the mean of the largest weight of the rows, without rows of zeros: (…, T, S) → (…).

    >>> sharpness(torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]]))
    tensor(0.7500)
    """
    return _mean_of_rows(weights.amax(dim=-1), weights)


def head_scores(weights: Tensor, ids: Sequence[int] | Tensor | None = None) -> dict[str, Tensor]:
    """Return all scores of weights (…, T, S) by name, as tensors (…).

    `ids` (T,) are the tokens of rows and columns. Without them, as for cross-attention, the result has entropy and
    sharpness only.

    >>> scores = head_scores(torch.full((2, 4, 3, 3), 1 / 3), ids=[5, 6, 5])  # 2 layers, 4 heads
    >>> scores["previous"].shape, list(scores)
    (torch.Size([2, 4]), ['previous', 'induction', 'duplicate', 'first', 'entropy', 'sharpness'])
    """
    with_ids: dict[str, Tensor] = {}
    if ids is not None:
        if not weights.shape[-2] == weights.shape[-1] == len(ids):
            raise ValueError(f"ids: expected {weights.shape[-2]} × {weights.shape[-1]} weights to match {len(ids)} ids")
        with_ids = {
            "previous": previous_score(weights),
            "induction": induction_score(weights, ids),
            "duplicate": duplicate_score(weights, ids),
            "first": first_score(weights),
        }
    return {**with_ids, "entropy": entropy(weights), "sharpness": sharpness(weights)}


def trace_scores(trace: Trace) -> dict[Kind, dict[str, Tensor]]:
    """Return the scores of the `*.weights` of a trace, (L, H) each; cross-attention has entropy and sharpness only."""
    scores: dict[Kind, dict[str, Tensor]] = {}
    for kind in dict.fromkeys(kind_of(name) for name in trace if name.endswith(".weights")):
        weights = torch.stack([x[0] for x in attention_layers(trace, kind)])  # (L, H, T, S)
        scores[kind] = head_scores(weights, ids_of(trace.inputs, kind))
    return scores


def score_numbers(weights: Tensor, ids: Sequence[int] | Tensor | None) -> dict[str, float]:
    """Return the `head_scores` of the weights (T, S) of one head as numbers."""
    return {name: float(value) for name, value in head_scores(weights, ids).items()}


def network_scores(network: Transformer, inputs: Mapping[str, Tensor]) -> Scores:
    """Run a Transformer on the inputs of a trace and return the scores of all heads."""
    with head_weights(network) as attention:
        capture_tensors(network, inputs, ["logits"])
    scores: dict[Kind, list[LayerScores]] = {}
    for path, weights in attention.items():
        kind = kind_of(f"{path}.")
        ids, uniform = ids_of(inputs, kind), uniform_attention(weights.allowed())
        of_layer = LayerScores([score_numbers(head, ids) for head in weights], score_numbers(uniform, ids))
        scores.setdefault(kind, []).append(of_layer)
    return scores


def random_scores(model: TrainedModel) -> Scores:
    """Return the scores of all heads on repeated random tokens: means over `N_RANDOM` sequences."""
    network = transformer_of(model)
    return mean_scores([network_scores(network, random_trace(model, seed).inputs) for seed in range(N_RANDOM)])


def random_trace(model: TrainedModel, seed: int = 0) -> Trace:
    """Return the inputs of repeated random tokens, as a text or a pair; raise `UserError` for a recurrent model."""
    transformer_of(model)
    n = random_length(model)
    ids = induction_ids_of(model, n, seed)
    if not model.network.config.is_encoder_decoder:
        return encoded(model, ids)
    source = induction_ids(_ordinary(model.source_tokenizer), n, seed)
    return encoded(model, source=source, target=[model.translator.start_id, *ids])


def mean_scores(runs: Sequence[Scores]) -> Scores:
    """Return the means of the scores of several runs of one model."""

    def mean(numbers: Sequence[dict[str, float]]) -> dict[str, float]:
        return {name: sum(x[name] for x in numbers) / len(numbers) for name in numbers[0]}

    def of_layer(layers: Sequence[LayerScores]) -> LayerScores:
        heads = zip(*(layer.heads for layer in layers), strict=True)
        return LayerScores([mean(head) for head in heads], mean([layer.uniform for layer in layers]))

    return {kind: [of_layer(layers) for layers in zip(*(run[kind] for run in runs), strict=True)] for kind in runs[0]}


def ranked_heads(text: Scores, random: Scores) -> dict[str, list[RankedHead]]:
    """Return all heads for each score in `PATTERNS`, that with the largest excess first, and whether each is found.

    `random` has the `random_scores` of the same heads. A head counts with its smaller excess, on the text or on random
    tokens. If the text does not define a score, only its excess on random tokens counts.
    """
    ranked: dict[str, list[tuple[float, RankedHead]]] = {}
    places = [(kind, layer) for kind, layers in text.items() for layer in range(len(layers))]
    for name, (kind, layer) in itertools.product(PATTERNS, places):
        scores, other = text[kind][layer], random[kind][layer]
        for head, own in enumerate(scores.heads):
            if name not in own or (name == "induction" and layer == 0):
                continue
            both = [x for x in (scores.excess(head, name), other.excess(head, name)) if not math.isnan(x)]
            value = min(both, default=-math.inf)
            numbers = own[name], scores.uniform[name], other.heads[head][name], other.uniform[name]
            found = RankedHead(kind, layer, head, *numbers, value >= MARGIN)
            ranked.setdefault(name, []).append((value, found))
    return {
        name: [head for _, head in sorted(heads, key=lambda one: one[0], reverse=True)]
        for name, heads in ranked.items()
    }


def find_heads(model: TrainedModel, text: str | Sequence[int]) -> dict[str, list[RankedHead]]:
    """Return `ranked_heads` of a Transformer with one stack for a text; raise `UserError` for a recurrent model.

    ```python
    [head for head in find_heads(model, "blacksmith|blacksmith")["induction"] if head.is_found]
    ```
    """
    return ranked_heads(network_scores(transformer_of(model), encoded(model, text).inputs), random_scores(model))


def transformer_of(model: TrainedModel) -> Transformer:
    """Return the network of a model; raise `UserError` for a recurrent one."""
    if not isinstance(model.network, Transformer):
        raise UserError(f"{model.name} is recurrent, and this needs the heads of a Transformer")
    return model.network


def induction_ids(vocab: int | Sequence[int], n: int, seed: int = 0, *, start: Sequence[int] = ()) -> list[int]:
    """Return n distinct random ids twice, after the ids of `start` (Olsson 2022, "repeated random tokens").

    In the second half, an induction head attends to the token after the first occurrence. `vocab` is the size of the
    vocabulary or the ids to draw from. Raises `UserError` if there are fewer than n ids.

    >>> induction_ids(range(2, 10), 3, start=[1])
    [1, 6, 9, 7, 6, 9, 7]
    """
    if isinstance(vocab, int):
        vocab = range(vocab)
    if not 1 <= n <= len(vocab):
        raise UserError(f"n is {n} and must be from 1 to {len(vocab)}, the number of ids to draw from")
    drawn = np.random.default_rng(seed).choice(vocab, size=n, replace=False).tolist()
    return [*start, *drawn, *drawn]


def random_length(model: TrainedModel) -> int:
    """Return how many different tokens fit twice in the context of a model, at most `MAX_RANDOM`."""
    context = min(model.network.config.max_len, model.network.config.encoder_max_len)
    tokenizers = model.tokenizer, model.source_tokenizer
    return max(1, min(MAX_RANDOM, context // 2 - 1, *(len(_ordinary(tokenizer)) for tokenizer in tokenizers)))


def n_random(model: TrainedModel) -> tuple[int, int]:
    """Return the number of sequences of random tokens, with the seeds 0, 1, …, and of tokens, each written twice."""
    return N_RANDOM, random_length(model)


def induction_ids_of(model: TrainedModel, n: int = MAX_RANDOM, seed: int = 0) -> list[int]:
    """Return `induction_ids` of ordinary tokens for `capture`, after the start tokens of a causal model.

    ```python
    trace_scores(capture(model, induction_ids_of(model)))["decoder"]["induction"]  # (L, H)
    ```
    """
    start: Sequence[int] = ()
    if model.is_causal_lm:
        start = causal_frame(model.tokenizer, model.network.config).before
    return induction_ids(_ordinary(model.tokenizer), n, seed, start=start)


def _ordinary(tokenizer: Tokenizer) -> list[int]:
    special = tokenizer.special_ids | {tokenizer.eos_id}
    return [i for i in range(tokenizer.vocab_size) if i not in special]


class _Repeats(NamedTuple):
    """Places of a text (T,) where a token occurs again."""

    row: Tensor
    column: Tensor
    """All (t, j) with equal tokens and j < t."""
    n_rows: Tensor
    """Number of different t among these pairs."""
    at: Tensor
    """Each position t whose token also occurs at a position j with j + 1 < t."""
    after: Tensor
    """For each t in `at`, j + 1 of the last such j."""


@functools.lru_cache(maxsize=2)  # the scores of many heads of one text, computed one by one
def _repeats(ids: tuple[int, ...]) -> _Repeats:
    x = torch.tensor(ids)
    equal = (x[:, None] == x[None, :]).tril(-1)
    after = (equal.tril(-2) * torch.arange(1, len(ids) + 1)).amax(dim=1)  # 0 without such a j
    at = after.nonzero().flatten()
    row, column = equal.nonzero(as_tuple=True)
    return _Repeats(row, column, equal.any(dim=1).sum(), at, after[at])


def _mean_of_rows(values: Tensor, weights: Tensor) -> Tensor:
    """Return the mean of `values` (…, T) over rows of `weights` (…, T, S) that are not zero."""
    is_row = weights.amax(dim=-1) != 0  # weights are never negative; much faster than `any`
    return torch.where(is_row, values, 0.0).sum(dim=-1) / is_row.sum(dim=-1)


def ids_of(inputs: Mapping[str, Tensor], kind: Kind) -> Tensor | None:
    """Return the ids (T,) of the rows and columns of an attention; None for cross-attention."""
    if kind == "cross":
        return None
    if kind == "encoder" and "source_ids" in inputs:
        return inputs["source_ids"][0].cpu()
    return inputs["token_ids"][0].cpu()
