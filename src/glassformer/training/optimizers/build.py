"""The optimizer of a run, from its settings, and its groups of parameters.

The loop calls `build_optimizer(model, settings)` once and `set_learning_rates(optimizer, factor)` before each step.
To add an optimizer, write its settings and `OptimizerTraits` in `config/train.py`, and a file with a function `build`.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.config.train import AdamConfig, AdamWConfig, OptimizerConfig
from glassformer.training.distributed.parts import local_part

Group = dict[str, Any]
NamedParameters = list[tuple[str, nn.Parameter]]
_FUSED_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu"})


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimizer that `config` describes, for all trainable parameters of `model`.

    Each group (`new_group`) keeps its peak learning rate as `initial_lr`.
    """
    optimizer: torch.optim.Optimizer = import_module(config.traits.module).build(model, config)
    for group in optimizer.param_groups:
        if not {"param_names", "initial_lr", "state"} <= group.keys():
            raise ValueError(f"{config.traits.module}.build must make its groups with `new_group`")
    return optimizer


def set_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the learning rate of each group to `factor` × its peak learning rate.

    >>> optimizer = build_optimizer(nn.Linear(2, 2), AdamWConfig(learning_rate=0.5))
    >>> set_learning_rates(optimizer, 0.25)
    >>> [group["lr"] for group in optimizer.param_groups]
    [0.125, 0.125]
    """
    for group in optimizer.param_groups:
        group["lr"] = factor * group["initial_lr"]


def new_group(
    named: NamedParameters, state: tuple[str, ...], learning_rate: float, weight_decay: float, **options: Any
) -> Group:
    """Return a group of parameters; `state` names the tensors that the optimizer keeps for each (`OptimizerTraits`)."""
    rates = {"lr": learning_rate, "initial_lr": learning_rate, "weight_decay": weight_decay}
    return {"params": named, "state": state} | rates | options


def parameter_groups(
    model: nn.Module, config: AdamConfig | AdamWConfig, named: NamedParameters | None = None
) -> list[Group]:
    """Return the parameters (default: all trainable ones) in two groups, with and without decay; drop empty groups.

    `matrices` decays weights of two or more dimensions except embeddings. A table is an embedding if its module is an
    `nn.Embedding`, independent of its name, and so is a head tied to it. Norms and biases have one dimension.
    `matrices_and_embeddings` decays all parameters except norms and biases, as nanoGPT does.
    """
    if named is None:
        named = trained_parameters(model)
    spared = embedding_tables(model) if config.decay == "matrices" else set()
    decayed = [(name, p) for name, p in named if p.ndim >= 2 and id(p) not in spared]
    others = [(name, p) for name, p in named if p.ndim < 2 or id(p) in spared]
    groups = [
        new_group(members, config.traits.state, config.learning_rate, weight_decay)
        for members, weight_decay in ((decayed, config.weight_decay), (others, 0.0))
    ]
    return [group for group in groups if group["params"]]


def trained_parameters(model: nn.Module) -> NamedParameters:
    """Return the trainable parameters; a tied parameter appears once, under its first name."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def embedding_tables(model: nn.Module) -> set[int]:
    """Return the ids of the tables."""
    return {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}


def can_fuse(parameters: Iterable[Tensor]) -> bool:
    """Return True if a fused kernel can update the parameters.

    The kernels ignore strides: they would update other numbers of the memory of which a parameter is a sparse view.
    """
    return all(
        p.device.type in _FUSED_DEVICES and p.is_floating_point() and _is_dense(local_part(p)) for p in parameters
    )


def _is_dense(x: Tensor) -> bool:
    """Return True if the elements of a tensor, in some order, fill a block of memory without gaps."""
    return torch.empty_like(x, device="meta").stride() == x.stride()
