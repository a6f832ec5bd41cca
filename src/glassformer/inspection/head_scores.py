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
earlier token, and are NaN without one. A score of 1 means that the head always attends there. Measure `induction` on
random tokens that repeat (`induction_ids`), because in real text other heads attend to the same places by chance.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassformer.errors import UserError
from glassformer.inference.decode import causal_frame, never_written
from glassformer.inspection.attention_maps import Kind, attention_layers
from glassformer.inspection.capture import Trace
from glassformer.tasks.task import TrainedModel

NAMES = {
    "previous": "attends to the previous token",
    "induction": "attends to the token after the previous occurrence of the same token",
    "duplicate": "attends to earlier occurrences of the same token",
    "first": "attends to the first token",
    "entropy": "entropy of the weights in nats",
    "sharpness": "mean of the largest weight",
}
"""Descriptions of the scores."""


class BestHead(NamedTuple):
    """Head with the largest value of a score."""

    kind: Kind
    layer: int
    head: int
    score: float


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
    """Return all scores of weights (…, T, S) by name, (…) each.

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
    """Return the scores of every attention of a trace, (L, H) each; cross-attention has entropy and sharpness only.

    The trace needs `*.weights`, which `capture` stores by default.
    """
    found: dict[Kind, dict[str, Tensor]] = {}
    for kind in _kinds(trace):
        weights = torch.stack([x[0] for x in attention_layers(trace, kind)])  # (L, H, T, S)
        found[kind] = head_scores(weights, _ids(trace, kind))
    return found


def best_heads(trace: Trace) -> dict[str, BestHead]:
    """Return the head with the largest value of each score, over all attentions of a trace.

    Entropy is left out: a head of large entropy attends to nothing in particular. A score that is NaN for all heads is
    left out too.
    """
    best: dict[str, BestHead] = {}
    for kind, scores in trace_scores(trace).items():
        for name, values in scores.items():
            if name == "entropy" or bool(values.isnan().all()):
                continue
            place = int(values.nan_to_num(nan=-1.0).argmax())
            layer, head = divmod(place, values.shape[1])
            score = float(values[layer, head])
            if name not in best or score > best[name].score:
                best[name] = BestHead(kind, layer, head, score)
    return best


def induction_ids(
    vocab: int | Sequence[int], n: int, seed: int = 0, *, start: Sequence[int] = (), without: Collection[int] = ()
) -> list[int]:
    """Return n distinct random ids twice, after the ids of `start` (Olsson 2022, "repeated random tokens").

    In the second half, an induction head attends to the token after the first occurrence. `vocab` is the size of the
    vocabulary or the ids to draw from; ids in `without` are not drawn.

    >>> induction_ids(10, 3, start=[1], without=[0, 1])
    [1, 6, 9, 7, 6, 9, 7]

    Raises `UserError` if there are fewer than n ids.
    """
    left_out = set(without)
    ids = [i for i in (range(vocab) if isinstance(vocab, int) else vocab) if i not in left_out]
    if not 1 <= n <= len(ids):
        raise UserError(f"n is {n} and must be from 1 to {len(ids)}, the number of ids to draw from")
    drawn = np.random.default_rng(seed).choice(ids, size=n, replace=False).tolist()
    return [*start, *drawn, *drawn]


def induction_ids_of(model: TrainedModel, n: int = 25, seed: int = 0) -> list[int]:
    """Return `induction_ids` without special tokens, after the start tokens of a causal model, for `capture`.

    ```python
    trace = capture(model, induction_ids_of(model))
    best_heads(trace)["induction"]
    ```
    """
    config = model.network.config
    start = causal_frame(model.tokenizer, config).before if model.is_causal_lm else ()
    special = never_written(model.tokenizer, config.vocab_size)
    special += [] if model.tokenizer.eos_id is None else [model.tokenizer.eos_id]
    return induction_ids(config.vocab_size, n, seed, start=start, without=special)


class _Repeats(NamedTuple):
    """Places of a text (T,) where a token occurs again."""

    row: Tensor
    column: Tensor
    """All (t, j) with equal tokens and j < t."""
    n_rows: Tensor
    """Number of different t among them."""
    at: Tensor
    """Each position t with an earlier equal token j, j + 1 < t."""
    after: Tensor
    """j + 1 for the last such j."""


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


def _kinds(trace: Mapping[str, Tensor]) -> list[Kind]:
    """Return the attentions whose weights are in the trace."""
    names = [name for name in trace if name.endswith(".weights")]
    found: dict[Kind, bool] = {
        "encoder": any(name.startswith("encoder.") for name in names),
        "decoder": any(name.startswith("decoder.") and name.endswith("self_attn.weights") for name in names),
        "cross": any(name.endswith("cross_attn.weights") for name in names),
    }
    return [kind for kind, is_present in found.items() if is_present]


def _ids(trace: Trace, kind: Kind) -> Tensor | None:
    """Return the ids (T,) of rows and columns; None for cross-attention."""
    if kind == "cross":
        return None
    has_source = kind == "encoder" and "source_ids" in trace.inputs
    return trace.inputs["source_ids" if has_source else "token_ids"][0].cpu()
