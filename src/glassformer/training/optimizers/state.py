"""The state of an optimizer in a checkpoint: tensors by name, which any process can read again."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from glassformer.common.errors import UserError
from glassformer.config.train import COUNTER
from glassformer.training.distributed.parts import part_of


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
    """Restore the state in a new optimizer; the next steps are then bit for bit equal.

    Raises `UserError` if the tensors belong to another model or to another kind of optimizer.
    """
    unused = dict(tensors)
    state: dict[int, dict[str, Tensor]] = {}  # by torch's parameter index: group after group
    for number, (name, parameter, keys) in enumerate(_parameters(optimizer)):
        stored = {key: unused.pop(f"{name}/{key}") for key in keys if f"{name}/{key}" in unused}
        if not stored:  # it never had a gradient
            continue
        if stored.keys() != set(keys):
            raise _misfit(name)
        state[number] = {key: _restored(f"{name}/{key}", x, parameter) for key, x in stored.items()}
    if unused:
        raise _misfit(next(iter(unused)))
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _restored(name: str, tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return a stored tensor as the optimizer keeps it; raise `UserError` if it is not of this parameter."""
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
