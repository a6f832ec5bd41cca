"""Random arguments of the exercises; a seed gives the same numbers each time."""

import torch
from torch import Tensor


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Draw numbers of the standard normal distribution."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights(first_seed: int, **shapes: tuple[int, ...]) -> dict[str, Tensor]:
    """Draw a weight of each shape, with seeds that count up from the first one."""
    return {name: normal(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items(), first_seed)}


def mask(*shape: int, seed: int = 0) -> Tensor:
    """Draw a mask that is True in about two thirds of its places."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.67
