"""A checkpoint of any module and its optimizer, for a training loop of your own: safetensors and JSON, never a pickle.

A folder has the weights, the tensors of the optimizer by `<parameter>/<name>`, its other values as JSON, and a manifest
with the step and the SHA-256 of each file.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from glassformer.common import files
from glassformer.common.errors import UserError, require_integer
from glassformer.config.schema import from_dict
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import WEIGHTS, load_weights, read_manifest, weights_of
from glassformer.store.tensors import DTYPES, read_tensors, repeated_dims, save_tensors
from glassformer.training.optimizers.build import laid_out_as

TENSORS, OPTIONS = "optimizer.safetensors", "optimizer.json"


@dataclass(frozen=True)
class _Options:
    """The state of an optimizer without its tensors: class, groups, and other values by `<parameter>/<name>`."""

    kind: str
    groups: list[dict[str, Any]]
    values: dict[str, Any]


def save_checkpoint(module: nn.Module, optimizer: torch.optim.Optimizer, step: int, out: str | Path) -> Path:
    """Write a module, its optimizer and the number of steps to a folder, completely or not at all; return the folder.

    An earlier checkpoint of this name is replaced. Raises `UserError` for another folder that is not empty, and for a
    module or an optimizer whose state cannot be restored exactly.
    """
    require_integer("step", step, 0, "the number of optimizer steps")
    folder = files.as_path(out, "out")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / OPTIONS).is_file()):
        raise UserError(f"{folder} exists and is not a checkpoint of save_checkpoint: give the name of a new folder")
    _require_storable(module)
    names, state = _parameters(module, optimizer), optimizer.state_dict()
    parts = {f"{names[i][0]}/{key}": x for i, memory in state["state"].items() for key, x in memory.items()}
    tensors = {name: x for name, x in parts.items() if isinstance(x, Tensor)}
    _require_fit(parts, dict(names))
    groups = [group | {"params": [names[i][0] for i in group["params"]]} for group in state["param_groups"]]
    options = _Options(type(optimizer).__name__, groups, {name: x for name, x in parts.items() if name not in tensors})
    with files.new_folder(folder) as temporary:
        save_tensors(weights_of(module), temporary / WEIGHTS)
        save_tensors(tensors, temporary / TENSORS)
        try:
            files.write_json(temporary / OPTIONS, asdict(options))
        except (TypeError, ValueError) as error:
            raise UserError(f"the optimizer has an option that JSON cannot store: {error}") from error
        Manifest.of(temporary, "checkpoint", step, [WEIGHTS, TENSORS, OPTIONS]).write(temporary)
    return folder


def load_checkpoint(src: str | Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Restore a module and its optimizer, options such as the learning rate included; return the number of steps.

    The next steps are bit for bit equal to those without the interruption. Raises `UserError`, before anything changes,
    for a damaged folder and for tensors of other names, shapes or dtypes.
    """
    folder = files.as_path(src, "src")
    manifest = read_manifest(folder)
    manifest.require(folder, [WEIGHTS, TENSORS, OPTIONS])
    options = from_dict(_Options, files.read_json(folder / OPTIONS), str(folder / OPTIONS))
    state = _state(options, read_tensors(folder / TENSORS), module, optimizer)
    load_weights(module, folder / WEIGHTS)
    optimizer.load_state_dict(state)
    return manifest.step


def _require_storable(module: nn.Module) -> None:
    """Raise `UserError` for a tensor of the module that a file cannot hold, or that a module cannot restore."""
    parameters = {id(p) for p in module.parameters()}
    buffers = {id(x) for x in module.buffers()}
    for name, x in module.state_dict(keep_vars=True).items():
        if id(x) not in parameters | buffers:
            raise UserError(
                f"{name} in state_dict() is not a parameter or buffer, so resume cannot restore it: make it one"
            )
        if is_lazy(x) or x.is_meta:
            raise UserError(
                f"{name} has no values yet: run the module on one batch, or load its weights, before training"
            )
        if x.layout != torch.strided or x.dtype not in DTYPES.values():
            kind = x.dtype if x.layout == torch.strided else x.layout
            raise UserError(
                f"{name} is a tensor of {kind}, which safetensors cannot store: convert it, or register the buffer "
                "with persistent=False"
            )
        if id(x) in parameters and repeated_dims(x):
            raise UserError(f"the parameter {name} is an expanded view, which cannot be updated: clone it")


def _state(
    options: _Options, tensors: Mapping[str, Tensor], module: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Return the state for `load_state_dict`; raise `UserError` if the checkpoint is of another optimizer."""
    if options.kind != type(optimizer).__name__:
        raise UserError(f"the checkpoint is of the optimizer {options.kind}, not {type(optimizer).__name__}")
    names, new_groups = _parameters(module, optimizer), optimizer.state_dict()["param_groups"]
    if [group.get("params") for group in options.groups] != [[names[i][0] for i in x["params"]] for x in new_groups]:
        raise UserError("the optimizer of the checkpoint has other parameters or groups: build it in the same way")
    parts, parameters = {**options.values, **tensors}, dict(names)
    _require_fit(parts, parameters)
    indices = {name: index for index, name in enumerate(parameters)}
    state: dict[int, dict[str, Any]] = {}
    for name, value in parts.items():
        of, _, key = name.rpartition("/")
        if isinstance(value, Tensor) and value.dim():
            value = laid_out_as(parameters[of], value)
        state.setdefault(indices[of], {})[key] = value
    for group, stored in zip(new_groups, options.groups, strict=True):
        for key, x in stored.items():
            if isinstance(group.get(key), tuple):
                group[key] = tuple(x)  # JSON has only lists
            elif key != "params":
                group[key] = x
    return {"state": state, "param_groups": new_groups}


def _parameters(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, Tensor]]:
    """Return the parameters of the optimizer, in the order of its groups, with their names in the module."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not all(id(parameter) in names for parameter in parameters):
        raise UserError("the optimizer has a parameter that is not of this module: give the module that it trains")
    return [(names[id(parameter)], parameter) for parameter in parameters]


def _require_fit(parts: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> None:
    """Raise `UserError` for state of an unknown parameter, or with another shape or dtype than its parameter."""
    for name, x in parts.items():
        parameter = parameters.get(name.rpartition("/")[0])
        if parameter is None:
            raise UserError(f"the optimizer state {name} is of no parameter of this optimizer")
        if isinstance(x, Tensor) and x.dim() and (x.shape, x.dtype) != (parameter.shape, parameter.dtype):
            has, needs = (f"{tuple(y.shape)} of {y.dtype}".replace("torch.", "") for y in (x, parameter))
            raise UserError(f"the optimizer state {name} has the shape {has}, and its parameter {needs}")
