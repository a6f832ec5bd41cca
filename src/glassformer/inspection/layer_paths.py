"""Paths of the modules of a network, also of those that are a part of several layers."""

from torch import nn


def layer_paths(network: nn.Module) -> dict[nn.Module, list[str]]:
    """Return the path of each module; for the parts of a shared block the paths of all layers, in their order.

    A forward pass calls such a part once per layer, so that its n-th call is that of layer n.
    """
    paths: dict[nn.Module, list[str]] = {}
    for path, module in network.named_modules(remove_duplicate=False):
        known = paths.setdefault(module, [])
        if not known or ".blocks." in path:
            known.append(path)
    return paths
