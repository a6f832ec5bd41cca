"""Adapter between the doctor and any module: rows of ids in, logits and loss out.

Letters: B rows, T target length, S source length, V vocabulary.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.common.errors import UserError

Kind = Literal["decoder", "encoder", "encoder-decoder"]
Forward = Callable[..., Tensor]
"""Function of (module, token_ids, attention_mask[, source_ids, source_attention_mask]): returns logits (B, T, V)."""
Loss = Callable[..., tuple[Tensor, int]]
"""Function with the arguments of a `Forward`: returns the summed loss of all targets in nats, and their number."""
MaskUse = Literal["none", "optional", "required"]
"""Use of masks by a `Forward`: it takes no masks, optional ones (they may be None), or requires them."""


@dataclass(frozen=True, kw_only=True)
class Interface:
    """Arguments and sizes of a module that turns token ids into logits."""

    vocab_size: int
    kind: Kind = "decoder"
    forward: Forward | None = None
    """Function of (module, token_ids, attention_mask) that returns logits (B, T, V). A mask is (B, T) bool with True =
    a real token. A model without a mask gets (module, token_ids). For an encoder-decoder, `source_ids` and
    `source_attention_mask` follow. The function must use the module that it receives. By default, the module is called
    with `token_ids` and with each other argument that its signature has."""
    loss: Loss | None = None
    """Function with the arguments of `forward` that returns the training loss of whole rows, including the shift: (sum
    of nats, number of targets). If your training loop averages over micro-batches, return (mean, 1)."""
    fresh: Callable[[], nn.Module] | None = None
    """Function that builds a new module, for `loss-at-start`."""
    max_len: int = 16
    """Length of the test rows in tokens."""
    pad_id: int | None = None
    """Id that is never drawn as a real token."""
    source_vocab_size: int | None = None
    """Vocabulary size of the sources, if it differs from `vocab_size`."""

    def resolved_forward(self, module: nn.Module) -> tuple[Forward, "MaskUse"]:
        """Return `forward`, or a default for the module's signature, and whether the function takes masks."""
        if self.forward is None:
            return default_forward(module, self.kind)
        if n_tensors(self.forward) >= 2:
            return self.forward, "required"
        return self.forward, "none"

    def usual_loss(self, forward: Forward) -> Loss:
        """Return the default loss, for an interface without `loss`."""
        if self.kind == "encoder":
            return blanks_loss(forward, blank_id=int(self.pad_id == 0))
        return next_token_loss(forward)


@dataclass(frozen=True)
class Rows:
    """Token rows as model input; masks are bool, True = a real token."""

    token_ids: Tensor
    """(B, T)"""
    attention_mask: Tensor | None
    """(B, T), or None for a model without a mask."""
    source_ids: Tensor | None = None
    """(B, S), for an encoder-decoder."""
    source_attention_mask: Tensor | None = None

    @property
    def real(self) -> Tensor:
        """(B, T) bool, True where a token is not padding."""
        if self.attention_mask is None:
            return torch.ones_like(self.token_ids, dtype=torch.bool)
        return self.attention_mask

    def tensors(self) -> tuple[Tensor | None, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def take(self, rows: slice) -> "Rows":
        """Return the rows of a slice."""
        return Rows(*(None if tensor is None else tensor[rows] for tensor in self.tensors()))  # type: ignore[arg-type]


def call(function: Callable[..., Any], module: nn.Module, rows: Rows) -> Any:
    """Call `function(module, token_ids, …)` with as many tensors of the rows as it has parameters for."""
    return function(module, *rows.tensors()[: n_tensors(function)])


def n_tensors(function: Callable[..., Any]) -> int:
    """Return the number of tensors that a `Forward` or `Loss` takes after the module; 4 if it takes any number.

    >>> n_tensors(lambda module, token_ids: None)
    1
    """
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 4
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) - 1


def default_forward(module: nn.Module, kind: Kind) -> tuple[Forward, MaskUse]:
    """Build a `Forward` from the module's signature, and return it with its `MaskUse`.

    It calls `module(token_ids, …)`, and passes `attention_mask`, `source_ids` and `source_attention_mask` by name if
    the signature has them. Logits are the output, its `.logits`, or the first element of a tuple.
    """
    parameters = inspect.signature(module.forward).parameters
    names = ["attention_mask"]
    if kind == "encoder-decoder":
        names = ["attention_mask", "source_ids", "source_attention_mask"]
        if "source_ids" not in parameters:
            raise UserError(
                f"{type(module).__name__}.forward has no source_ids: pass forward=lambda module, token_ids, "
                "attention_mask, source_ids, source_attention_mask: … that returns logits"
            )
    masks = [parameters[name] for name in names if name in parameters and name != "source_ids"]

    def forward(module: nn.Module, token_ids: Tensor, *others: Tensor | None) -> Tensor:
        named = {name: x for name, x in zip(names, others, strict=False) if name in parameters}
        return logits_of(module(token_ids, **named))

    if not masks:
        return forward, "none"
    if all(mask.default is None for mask in masks):
        return forward, "optional"
    return forward, "required"


def logits_of(output: Any) -> Tensor:
    """Return the logits of a module's output: the tensor, its `.logits`, or the first element of a tuple."""
    if isinstance(output, tuple | list):
        output = output[0]
    output = getattr(output, "logits", output)
    if not isinstance(output, Tensor):
        raise UserError(
            f"the module returned {type(output).__name__} without logits: "
            "pass forward=lambda module, token_ids, attention_mask: … that returns the logits"
        )
    return output


def next_token_loss(forward: Forward) -> Loss:
    """Build a loss: cross-entropy of every token given the previous ones, over pairs of real tokens."""

    def loss(module: nn.Module, *tensors: Any) -> tuple[Tensor, int]:
        rows = Rows(*tensors)
        logits = call(forward, module, rows)
        scored = rows.real[:, 1:] & rows.real[:, :-1]
        total = F.cross_entropy(logits[:, :-1][scored], rows.token_ids[:, 1:][scored], reduction="sum")
        return total, int(scored.sum())

    return loss


def blanks_loss(forward: Forward, blank_id: int) -> Loss:
    """Build a loss for encoders: cross-entropy of every third token, which is `blank_id` in the input."""

    def loss(module: nn.Module, *tensors: Any) -> tuple[Tensor, int]:
        rows = Rows(*tensors)
        blank = torch.arange(rows.token_ids.shape[1], device=rows.token_ids.device) % 3 == 1
        seen = Rows(rows.token_ids.masked_fill(blank, blank_id), *rows.tensors()[1:])
        scored = rows.real & blank
        total = F.cross_entropy(call(forward, module, seen)[scored], rows.token_ids[scored], reduction="sum")
        return total, int(scored.sum())

    return loss
