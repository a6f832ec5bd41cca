"""A wrong argument of a public layer is an error of its constructor, or has no effect on the forward pass."""

import inspect
import re
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from glassformer import models
from glassformer import nn as layers
from glassformer.nn.layers import RMSNorm

X = torch.zeros(2, 5, 8)
IDS = torch.zeros(2, 5, dtype=torch.long)
AT = torch.arange(5)

LAYERS: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[Any, ...]]] = {
    "FeedForward": (layers.FeedForward, {"d_model": 8, "d_ff": 4}, (X,)),
    "Router": (layers.Router, {"d_model": 8, "n_experts": 3, "n_active": 2}, (X,)),
    "Experts": (layers.Experts, {"router": layers.Router(8, 3, 2), "d_ff": 4}, (X,)),
    "MultiHeadAttention": (layers.MultiHeadAttention, {"d_model": 8, "n_heads": 2}, (X,)),
    "Projections": (lambda **k: layers.MultiHeadAttention(8, 2, projections=layers.Projections(**k)), {}, (X,)),
    "SingleHeadAttention": (
        layers.SingleHeadAttention,
        {"d_query": 8, "d_memory": 8, "score": "additive"},
        (X, X),
    ),
    "LayerNorm": (layers.LayerNorm, {"width": 8}, (X,)),
    "RMSNorm": (layers.RMSNorm, {"width": 8}, (X,)),
    "SinusoidalPositions": (layers.SinusoidalPositions, {"d_model": 8}, (AT,)),
    "LearnedPositions": (layers.LearnedPositions, {"max_len": 8, "d_model": 8}, (AT,)),
    "AlibiBias": (layers.AlibiBias, {"n_heads": 2}, (AT, AT)),
    "RelativeBias": (
        layers.RelativeBias,
        {"n_heads": 2, "n_buckets": 8, "max_distance": 12, "bidirectional": True},
        (AT, AT),
    ),
    "Embeddings": (
        layers.Embeddings,
        {"tables": layers.EmbeddingTables(nn.Embedding(4, 8)), "d_model": 8},
        (IDS, AT),
    ),
    "TokenTransform": (
        models.TokenTransform,
        {"dense": nn.Linear(8, 8), "activation": F.gelu, "norm": nn.LayerNorm(8)},
        (X,),
    ),
    "TokenLogits": (models.TokenLogits, {"d_model": 8, "proj": nn.Linear(8, 4)}, (X,)),
    "SequenceVector": (
        models.SequenceVector,
        {"pooling": "mean", "pooler": models.Pooler(nn.Linear(8, 8), torch.tanh, None)},
        (X,),
    ),
    "SequenceLogits": (
        models.SequenceLogits,
        {"pooling": "last", "pooler": None, "proj": nn.Linear(8, 3)},
        (X,),
    ),
    "Pooler": (
        lambda **k: models.SequenceVector("mean", models.Pooler(**k)),
        {"dense": nn.Linear(8, 8), "activation": torch.tanh, "norm": None},
        (X,),
    ),
    "Residual": (
        lambda **k: models.PreNormBlock(8, layers.MultiHeadAttention(8, 2), None, None, models.Residual(**k)),
        {"norm": RMSNorm},
        (X, models.Inputs()),
    ),
}
NAMES = {
    "Projections": layers.Projections,
    "Pooler": models.Pooler,
    "Residual": models.Residual,
    "MultiHeadAttention": layers.MultiHeadAttention,
}
MODULES = {
    "Embeddings": {"tables", "norm"},
    "TokenTransform": {"dense", "norm"},
    "TokenLogits": {"proj", "transform"},
    "SequenceLogits": {"pooler", "proj", "unit"},
    "Pooler": {"dense", "norm"},
}
"""Arguments that are modules or tuples, not plain values or functions: a program passes no name or number there."""
WRONG = ("nothing", -3, 2.5)


@pytest.mark.parametrize("name", LAYERS)
def test_a_wrong_argument_fails_in_the_constructor_or_has_no_effect(name: str) -> None:
    make, good, inputs = LAYERS[name]
    make(**good).train()(*inputs)
    failures = []
    arguments = inspect.signature(NAMES.get(name, make)).parameters
    for argument, wrong in product(sorted(arguments.keys() - MODULES.get(name, set())), WRONG):
        try:
            layer = make(**(good | {argument: wrong}))
        except Exception as error:
            failures += [f"{argument}={wrong!r}: {error}"] if len(str(error)) > 400 else []
            continue
        try:
            layer.train()(*inputs)
        except Exception as error:  # all failures in one message
            failures.append(f"{argument}={wrong!r}: {type(error).__name__}: {error}"[:200])
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: layers.FeedForward(4, 8, "swish"),
            "activation: expected one of relu, gelu, gelu_tanh, silu,",
        ),
        (lambda: layers.FeedForward(4, 8, 3), "activation: expected a function, got 3"),  # type: ignore[arg-type]
        (lambda: layers.FeedForward(4, 8, dropout=1.5), "dropout: expected a number from 0 to 1, got 1.5"),
        (lambda: layers.SinusoidalPositions(8, "half"), "layout: expected one of interleaved, halves, got 'half'"),
        (
            lambda: models.SequenceVector("median", None),
            "pooling: expected one of first, last, mean, max,",
        ),
        (lambda: models.TokenLogits(8, nn.Linear(8, 4), bias="yes"), "bias: expected one of none, learned, constant"),
        (lambda: layers.Router(8, 2, 3), "n_active: expected a number from 1 to 2, got 3"),
    ],
)
def test_the_message_names_the_argument_and_what_is_expected(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message)}"):
        make()


def test_an_activation_may_be_given_by_its_name() -> None:
    x = torch.randn(3, 8)
    layer = layers.FeedForward(8, 4, "silu")
    assert torch.equal(layer(x), layer.down_proj(F.silu(layer.up_proj(x))))  # the same operations
