"""Attention weights among captured tensors: layers, heads, and the alignment of a target with its source."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from glassformer.common.errors import UserError
from glassformer.inspection.head_weights import HeadWeights

Heads = HeadWeights | Tensor
"""Weights of the H heads of a layer, (T, S) each."""
Kind = Literal["encoder", "decoder", "cross"]
"""Kind of attention: self-attention of the encoder or decoder, or cross-attention to the source."""
MISSING = {
    "cross": "attention from a target to a source, so it has no alignment",
    "encoder": "self-attention in an encoder",
    "decoder": "self-attention in a decoder",
}
"""Names of an absent attention in messages."""


def kind_of(name: str) -> Kind:
    """Return the kind of attention that a tensor belongs to.

    >>> kind_of("decoder.blocks.0.cross_attn.weights"), kind_of("encoder.blocks.1.self_attn.scores")
    ('cross', 'encoder')
    """
    if ".cross_attn." in name:
        return "cross"
    return "encoder" if name.startswith("encoder.") else "decoder"


def attention_layers(attention: Mapping[str, Tensor], kind: Kind) -> list[Tensor]:
    """Return the weights of every layer of this kind, in order, (B, H, T, S) each.

    Raises `UserError` if the model has no such attention.
    """
    layers = [x for name, x in attention.items() if name.endswith(".weights") and kind_of(name) == kind]
    if not layers:
        raise UserError(f"this model has no {MISSING[kind]}")
    return layers


def default_layer(n_layers: int) -> int:
    """Return the last layer, or the second to last of four or more: it agrees best with manual alignments in the six
    layers of Garg (2019). Of two layers, only the last one aligns.

    >>> default_layer(6), default_layer(2)
    (4, 1)
    """
    from_the_end = 2 if n_layers >= 4 else 1
    return n_layers - from_the_end


def layer_or_default(layer: int | None, n_layers: int) -> int:
    """Return the number of a layer that exists; without one, `default_layer`."""
    if layer is None:
        return default_layer(n_layers)
    return checked("layer", layer, n_layers)


def alignment(attention: Mapping[str, Tensor], layer: int | None = None, head: int | None = None) -> Tensor:
    """Return the attention weights from target to source of the first pair of a batch, (T, S).

    Row t holds the weights of the step that predicted target token t. A recurrent decoder has one set of weights
    (Bahdanau 2015, figure 3). For a Transformer, the result is the mean over the heads of one cross-attention layer
    (`default_layer` by default), or a single `head`; both count from 0.

    >>> weights = torch.tensor([[[[1.0, 0.0]], [[0.5, 0.5]]]])  # one pair, two heads, one target token
    >>> alignment({"decoder.blocks.0.cross_attn.weights": weights})
    tensor([[0.7500, 0.2500]])
    """
    return aligned([x[0] for x in attention_layers(attention, "cross")], layer, head)


def aligned(layers: Sequence[Heads], layer: int | None, head: int | None) -> Tensor:
    """Return `alignment` of the weights of one pair: those of H heads, (T, S) each, for each layer."""
    heads = layers[layer_or_default(layer, len(layers))]
    if head is None:
        return torch.stack(list(heads)).mean(dim=0)
    return heads[checked("head", head, len(heads))]


def checked(what: str, number: int, n: int) -> int:
    """Return the number of a layer or head; raise `UserError` if it does not exist."""
    if not 0 <= number < n:
        raise UserError(f"there is no {what} {number}: the model has {n}, counted from 0")
    return number
