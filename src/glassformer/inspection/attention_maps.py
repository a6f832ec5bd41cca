"""Attention weights: weights of a trace by layer and head, alignments, and weights computed head by head."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from glassformer.common.errors import UserError
from glassformer.nn.attention import Memory, at_least_fp32, capped
from glassformer.nn.masks import Mask

Kind = Literal["encoder", "decoder", "cross"]
"""Kind of attention: self-attention of the encoder or decoder, or cross-attention to the source."""
MISSING = {
    "cross": "attention from a target to a source, so it has no alignment",
    "encoder": "self-attention in an encoder",
    "decoder": "self-attention in a decoder",
}
"""Name in messages of each kind of attention that a model does not have."""


@dataclass(frozen=True)
class HeadWeights:
    """Weights (T, S) of each of the H heads of one attention, by index or by iteration, in fp32 on the CPU.

    Only queries and keys are stored: (T + S) · K numbers per head in place of T · S. An index or an iteration computes
    the weights with the formula of `attention_reference`.
    """

    query: Tensor
    """Queries (H, T, K)."""
    key: Tensor
    """Keys (G, S, K); each key head serves H / G adjacent query heads."""
    mask: Mask
    scale: float
    bias: Tensor | None = None
    """Bias (H, T, S) that is added to the scores."""
    cap: float = 0.0
    """Bound of the scores before the bias; 0 = none."""

    def __len__(self) -> int:
        return len(self.query)

    def __getitem__(self, head: int) -> Tensor:
        return self._weights(range(len(self))[head], self._hidden())

    def __iter__(self) -> Iterator[Tensor]:
        hidden = self._hidden()
        return (self._weights(head, hidden) for head in range(len(self)))

    def allowed(self) -> Tensor:
        """Return (T, S) on the CPU: True where a query may attend to a key."""
        n_queries, n_keys = self.query.shape[1], self.key.shape[1]
        hidden = self._hidden()
        if hidden is None:
            return torch.ones(n_queries, n_keys, dtype=torch.bool)
        return ~hidden.cpu()

    def _hidden(self) -> Tensor | None:
        """Return (T, S): True where a query may not see a key; None if every query sees every key."""
        if self.mask.is_trivial:
            return None
        return ~self.mask.dense(self.query.shape[1], self.key.shape[1], self.query.device)[0, 0]

    @torch.no_grad()
    def _weights(self, head: int, hidden: Tensor | None) -> Tensor:
        query, key = self.query[head], self.key[head * len(self.key) // len(self.query)]  # (T, K), (S, K)
        scores = at_least_fp32(query) @ at_least_fp32(key).T  # (T, S)
        scores *= self.scale  # in place, here and below: a new (T, S) matrix takes longer than its arithmetic
        scores = capped(scores, self.cap)
        if self.bias is not None:
            scores = scores + self.bias[head]
        if hidden is None:
            return scores.softmax(dim=-1).to("cpu", torch.float32)
        weights = scores.masked_fill_(hidden, -torch.inf).softmax(dim=-1)
        if self.mask.may_leave_a_row_empty:
            weights.masked_fill_(hidden.all(dim=-1, keepdim=True), 0.0)
        return weights.to("cpu", torch.float32)


@contextlib.contextmanager
def head_weights(network: nn.Module) -> Iterator[dict[str, HeadWeights]]:
    """Store queries and keys of each multi-head attention inside the `with` block, by path.

    The forward pass keeps its fused kernel. Only the first row of a batch is stored. A pass replaces earlier passes.

    ```python
    with head_weights(model.network) as weights:
        model.network(token_ids)
    weights["decoder.blocks.0.self_attn"][3]  # (T, T): head 3
    ```
    """
    weights: dict[str, HeadWeights] = {}

    def store(path: str, attention: Any, x: Tensor, memory: Memory | None = None, **named: Any) -> None:
        query, key, _ = attention.project(x, memory, named.get("rotary"))
        mask, bias = named.get("mask") or Mask(), None
        if mask.bias is not None:
            bias = mask.bias[0].detach()
        weights[path] = HeadWeights(
            query[0].detach(), key[0].detach(), mask, attention.scale, bias, getattr(attention, "cap", 0.0)
        )

    def hook(path: str) -> Any:
        return lambda attention, args, named: store(path, attention, *args, **named)

    with contextlib.ExitStack() as stack:
        for path, module in network.named_modules():
            if hasattr(module, "project") and hasattr(module, "scale"):  # weights are softmax(scale · q kᵀ)
                stack.callback(module.register_forward_pre_hook(hook(path), with_kwargs=True).remove)
        yield weights


Heads = HeadWeights | Tensor
"""Weights of the H heads of a layer, (T, S) each."""


def kind_of(name: str) -> Kind:
    """Return the kind of attention that a tensor belongs to.

    >>> kind_of("decoder.blocks.0.cross_attn.weights"), kind_of("encoder.blocks.1.self_attn.scores")
    ('cross', 'encoder')
    """
    if ".cross_attn." in name:
        return "cross"
    return "encoder" if name.startswith("encoder.") else "decoder"


def attention_layers(attention: Mapping[str, Tensor], kind: Kind) -> list[Tensor]:
    """Return the weights of every layer of this kind, in order, (B, H, T, S) each; raise `UserError` without any."""
    layers = [x for name, x in attention.items() if name.endswith(".weights") and kind_of(name) == kind]
    if not layers:
        raise UserError(f"this model has no {MISSING[kind]}")
    return layers


def default_layer(n_layers: int) -> int:
    """Return the number of the last layer or, if there are four or more, of the second to last layer.

    In the six layers of Garg (2019), the second to last agrees best with manual alignments. Of two layers, only the
    last one aligns.

    >>> default_layer(6), default_layer(2)
    (4, 1)
    """
    from_the_end = 2 if n_layers >= 4 else 1
    return n_layers - from_the_end


def layer_or_default(layer: int | None, n_layers: int) -> int:
    """Return `layer` if it exists, and `default_layer` if it is None; raise `UserError` for another layer."""
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
    """Return `alignment` for the weights of one pair; an item of `layers` has the weights (T, S) of H heads."""
    heads = layers[layer_or_default(layer, len(layers))]
    if head is None:
        return torch.stack(list(heads)).mean(dim=0)
    return heads[checked("head", head, len(heads))]


def checked(what: str, number: int, n: int) -> int:
    """Return the number of a layer or head; raise `UserError` if it does not exist."""
    if not 0 <= number < n:
        raise UserError(f"there is no {what} {number}: the model has {n}, counted from 0")
    return number
