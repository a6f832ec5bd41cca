"""Paths of the modules of a network, by layer."""

import itertools
from collections.abc import Callable, Sequence

from torch import nn


def paths_of_modules(network: nn.Module) -> dict[nn.Module, list[str]]:
    """Return the path of each module; those of a block that is several layers have one path per layer."""
    paths: dict[nn.Module, list[str]] = {}
    for path, module in network.named_modules(remove_duplicate=False):
        if module not in paths or ".blocks." in path:
            paths.setdefault(module, []).append(path)
    return paths


def in_turn(paths: Sequence[str]) -> Callable[[], str]:
    """Return a function that returns the path of each call of a module: its layers run in their order."""
    return itertools.cycle(paths).__next__
