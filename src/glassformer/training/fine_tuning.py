"""What of a network learns, and how fast: freezing by name, and rates that fall with the depth."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from glassformer.errors import UserError
from glassformer.models.transforms import similar

_LAYER = re.compile(r"(?:(?P<stack>.*)\.)?(?:blocks\.(?P<block>\d+)\.|cells\.\w+?_l(?P<cells>\d+))")
_INPUT = re.compile(r"(?:(?P<stack>.*?)\.)?(?:embeddings|tokens|attn_bias)\.")


def freeze(network: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Parameters that do not learn from now on: those whose names match, or that stand in a module whose name does.

    Patterns are those of a shell: `encoder.embeddings`, `encoder.blocks.0.*`, `*.bias`. A tied table answers to each
    of its names. Raises `UserError`, with the network as it was, for a pattern that matches nothing, and when nothing
    would be left to learn.
    """
    by_name = dict(network.named_parameters(remove_duplicate=False))
    frozen = set()
    for pattern in patterns:
        found = {p for name, p in by_name.items() if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")}
        if not found:
            modules = [name for name, m in network.named_modules() if name and any(True for _ in m.parameters())]
            raise UserError(f"init.freeze: no parameter is in {pattern}; there are {similar(pattern, modules)}")
        frozen |= found
    if all(p in frozen or not p.requires_grad for p in by_name.values()):
        raise UserError(f"init.freeze {' '.join(patterns)} leaves nothing that learns")
    for parameter in frozen:
        parameter.requires_grad_(False)
    return [name for name, parameter in network.named_parameters() if parameter in frozen]


def layer_scales(network: nn.Module, decay: float) -> dict[str, float]:
    """The factor of the learning rate of each parameter: `decay` for each layer below the head.

    Howard 2018, section 3.2; Clark 2020, appendix B. The factors are `decay` to the power of `depth_of`.

    >>> stack = nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(2)])})
    >>> layer_scales(nn.ModuleDict({"encoder": stack, "output": nn.Linear(1, 1, bias=False)}), 0.5)
    {'encoder.blocks.0.weight': 0.25, 'encoder.blocks.1.weight': 0.5, 'output.weight': 1.0}
    """
    names = [name for name, _ in network.named_parameters()]
    n_layers = _layers_of_stacks(names)
    return {name: decay ** _depth(name, n_layers) for name in names}


def depth_of(name: str, network: nn.Module) -> int:
    """How many layers a parameter stands below the head.

    In each stack the last layer has 1, the one before it 2, and what feeds the first (the tables, the biases by
    distance) one more than that. All else has 0: the head, final norms, what joins encoder and decoder.
    """
    return _depth(name, _layers_of_stacks([name for name, _ in network.named_parameters()]))


def _layers_of_stacks(names: Sequence[str]) -> dict[str, int]:
    n_layers: dict[str, int] = {}
    for name in names:
        stack, number = _layer(name)
        if number is not None:
            n_layers[stack] = max(n_layers.get(stack, 0), number + 1)
    return n_layers


def _depth(name: str, n_layers: dict[str, int]) -> int:
    stack, number = _layer(name)
    if number is not None:
        return n_layers[stack] - number
    found = _INPUT.match(name)
    return 0 if found is None else n_layers.get(found["stack"] or "", 0) + 1


def _layer(name: str) -> tuple[str, int | None]:
    """`encoder.blocks.3.ff.up_proj.weight` → ("encoder", 3); `decoder.cells.weight_hh_l0` → ("decoder", 0)."""
    found = _LAYER.match(name)
    if found is None:
        return "", None
    return found["stack"] or "", int(found["block"] or found["cells"])
