"""The optimizer of a run: how its settings build it, its groups of parameters, and its state in a checkpoint.

The loop calls `build_optimizer(model, settings)` once and `set_learning_rates(optimizer, factor)` before each step.
To add an optimizer, write its settings and `OptimizerTraits` in `config/train.py`, and a file with a function `build`,
as the one here for Adam and AdamW.
"""

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.common.errors import UserError
from glassformer.config.train import COUNTER, AdamConfig, AdamWConfig, OptimizerConfig
from glassformer.training.distributed.parts import local_part, part_of

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


def build(model: nn.Module, config: AdamConfig | AdamWConfig) -> torch.optim.Optimizer:
    """Return PyTorch's Adam or AdamW, with a fused kernel if the device has one."""
    fused = can_fuse(parameter for _, parameter in trained_parameters(model))
    groups = parameter_groups(model, config)
    if isinstance(config, AdamWConfig):
        return torch.optim.AdamW(groups, betas=config.betas, eps=config.eps, fused=fused)
    return torch.optim.Adam(groups, betas=config.betas, eps=config.eps, fused=fused)


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
    """Return a group of parameters; `state` = names of the tensors that the optimizer keeps for each parameter."""
    rates = {"lr": learning_rate, "initial_lr": learning_rate, "weight_decay": weight_decay}
    return {"params": named, "state": state} | rates | options


def parameter_groups(
    model: nn.Module, config: AdamConfig | AdamWConfig, named: NamedParameters | None = None
) -> list[Group]:
    """Return the parameters (default: all trainable ones) in two groups, with and without decay; drop empty groups.

    With the decay `matrices`, weights of two or more dimensions decay, except embeddings. A table counts as an
    embedding if its module is an `nn.Embedding`, and so does a head that is tied to the table; names do not matter.
    Norms and biases have one dimension. With `matrices_and_embeddings`, all parameters decay except norms and biases,
    as in nanoGPT.
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
    """Return the `id` of the weight of each `nn.Embedding`."""
    return {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}


def can_fuse(parameters: Iterable[Tensor]) -> bool:
    """Return True if a fused kernel can update the parameters.

    The kernels ignore strides. If a parameter is a view with gaps, they would update the numbers in the gaps.
    """
    parts = [local_part(parameter) for parameter in parameters]
    are_dense = all(torch.empty_like(x, device="meta").stride() == x.stride() for x in parts)  # in some order, no gaps
    return are_dense and all(x.device.type in _FUSED_DEVICES and x.is_floating_point() for x in parts)


# The state in a checkpoint: tensors by name, which any process can read again


def state_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer state by names `<parameter>/<what>`; learning rates and options are in the config.

    Raises `ValueError` for tensors that the optimizer's traits do not name, because they could not be restored.

    >>> from torch import nn
    >>> from glassformer.config.train import AdamWConfig
    >>> from glassformer.training.optimizers.build import build_optimizer
    >>> model = nn.Linear(2, 2)
    >>> optimizer = build_optimizer(model, AdamWConfig())
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    >>> sorted(state_tensors(optimizer))[:3]
    ['bias/exp_avg', 'bias/exp_avg_sq', 'bias/step']
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter, keys in _parameters(optimizer):
        state = optimizer.state.get(parameter, {})
        if state and state.keys() != set(keys):
            raise ValueError(f"{type(optimizer).__name__} stores {sorted(state)} for {name}; its traits name {keys}")
        tensors |= {f"{name}/{key}": value for key, value in state.items()}
    return tensors


def load_state_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the state in a new optimizer; its next steps are bit for bit equal to those of the stored optimizer.

    Raises `UserError` if the tensors belong to another model or to another kind of optimizer.
    """
    unused = dict(tensors)
    state: dict[int, dict[str, Tensor]] = {}  # by torch's parameter index: group after group
    for number, (name, parameter, keys) in enumerate(_parameters(optimizer)):
        stored = {key: unused.pop(f"{name}/{key}") for key in keys if f"{name}/{key}" in unused}
        if not stored:  # the parameter never had a gradient
            continue
        if stored.keys() != set(keys):
            raise _misfit(name)
        state[number] = {key: _restored(f"{name}/{key}", x, parameter) for key, x in stored.items()}
    if unused:
        raise _misfit(next(iter(unused)))
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _restored(name: str, tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return a stored tensor as the optimizer keeps it; raise `UserError` if it does not fit the parameter."""
    is_counter = name.endswith(f"/{COUNTER}")
    shape, dtypes = parameter.shape, {parameter.dtype}
    if is_counter:
        shape, dtypes = torch.Size(), {torch.float32, torch.get_default_dtype()}
    if tensor.shape != shape:
        raise _misfit(name.rpartition("/")[0])
    if tensor.dtype not in dtypes:
        raise _misfit(f"{name}, of dtype {tensor.dtype},".replace("torch.", ""))
    if is_counter:
        return tensor.clone()
    return laid_out_as(parameter, part_of(tensor, parameter))


def laid_out_as(parameter: Tensor, tensor: Tensor) -> Tensor:
    """Return a copy in the memory format of the parameter, because fused kernels ignore strides."""
    return torch.empty_like(parameter).copy_(tensor)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor, tuple[str, ...]]]:
    """Yield each parameter with its name and the names of its state tensors."""
    for group in optimizer.param_groups:
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            yield name, parameter, group["state"]


def _misfit(name: str) -> UserError:
    return UserError(
        f"the optimizer state of {name} in the checkpoint does not fit this model and optimizer: "
        "resume with the configuration of the checkpoint"
    )
