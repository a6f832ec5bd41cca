"""Cost of the position scheme of a stack, measured on its modules, so that a new scheme needs no formula."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from glassformer.config.transformer import TransformerConfig
from glassformer.cost.widths import StackShape
from glassformer.models.build import build_positions


@dataclass(frozen=True)
class PositionCost:
    """The effect of the positions of one stack on the memory of its activations."""

    n_bytes: int
    """Bytes that autograd saves once per stack: inside of the modules, and the rotation of queries and keys."""
    rotates: bool
    """True if queries and keys are rotated."""
    has_bias: bool
    """True if a bias is added to the scores."""
    learns_bias: bool
    """True if that bias needs a gradient."""


@functools.lru_cache(maxsize=64)
def position_cost(config: TransformerConfig, side: StackShape, n_tokens: int) -> PositionCost:
    """Run the position modules of a stack on `n_tokens` positions of the meta device, which stores no values.

    >>> from glassformer.config.transformer import RotaryPositions, Stack
    >>> side = StackShape(Stack(2, 2), is_decoder=True, has_memory=False, n_positions=5)
    >>> position_cost(TransformerConfig(decoder=side.stack, d_model=8, positions=RotaryPositions()), side, 5)
    PositionCost(n_bytes=160, rotates=True, has_bias=False, learns_bias=False)
    """
    storages: dict[int, torch.UntypedStorage] = {}  # kept alive, so that no other storage gets its address

    def keep(x: Tensor) -> Tensor:
        storages[x.untyped_storage()._cdata] = x.untyped_storage()
        return x

    with torch.device("meta"), torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        added, rotaries, bias = build_positions(config, side.stack, side.n_positions, causal=side.is_decoder)
        positions = torch.arange(n_tokens)
        if added is not None:
            added(positions)
        for rotary in rotaries.values():
            for x in rotary(positions):
                keep(x)  # every block saves it
        scores = None if bias is None else bias(positions, positions)
    modules = [module for module in (added, *rotaries.values(), bias) if isinstance(module, nn.Module)]
    own = {x.untyped_storage()._cdata for module in modules for x in (*module.parameters(), *module.buffers())}
    n_bytes = sum(storage.nbytes() for number, storage in storages.items() if number not in own)
    learns_bias = scores is not None and scores.requires_grad
    return PositionCost(n_bytes, bool(rotaries), bias is not None, learns_bias)
