"""A device of its own, `emulated`, that computes on the CPU: a tensor on it mixes with no other, as on a real one.

It refuses what Apple's device refuses (`device_rules.WIDE` and `MISSING`). An operation can be made wrong: with
`Fault(operation, kind)` in `device.fault`, its result is off by a hundredth ("scaled") or wrong in its last element
("last"). With `device.wraps`, numbers of int64 results wrap at 32 bits, as sums did on that device. The backend of
Python is experimental in PyTorch, so this module needs release 2.13, and a process of its own.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from device_rules import MISSING, WIDE

NAME = "emulated"
MIXED = ("copy_", "_to_copy", "_pack_padded_sequence")
"""Operations with tensors on the device and on the CPU."""


class Fault(NamedTuple):
    operation: str
    kind: str


class Device:
    """The state of the device: its fault, and the operations that it computed."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.wraps = False
        self.used: set[str] = set()


device = Device()


class Emulated(torch.Tensor):
    """A tensor on the device; `raw` holds its numbers."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> "Emulated":
        if raw.dtype in WIDE:
            raise TypeError(f"Cannot convert a {NAME} Tensor to {raw.dtype}")
        made: Emulated = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, raw.stride(), raw.storage_offset(), dtype=raw.dtype, device=torch.device(NAME, 0)
        )
        made.raw = raw
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, *args, **(kwargs or {}))

    def tolist(self) -> Any:
        return self.raw.tolist()


def compute(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute an operation of the device on the CPU."""
    name = func._schema.name.split("::")[1]
    device.used.add(name)
    here = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Emulated)]
    if name in MISSING:
        raise NotImplementedError(f"The operator aten::{name} is not implemented for the device {NAME}")
    if name == "_copy_from":
        source, target = args[:2]
        raw(target).copy_(raw(source))
        return target
    to = kwargs.get("device")
    if (
        name not in ("copy_", "_to_copy", "_pack_padded_sequence")
        and here
        and any(is_elsewhere(x) for x in tree_leaves((args, kwargs)))
    ):
        raise RuntimeError(f"Expected all tensors to be on the same device: aten::{name} has tensors on cpu, too")
    args, kwargs = tree_map(raw, (args, kwargs))
    made = func(*args, **kwargs)
    if device.fault is not None and device.fault.operation == name:
        tree_map(lambda x: spoiled(x, device.fault.kind), made)
    if device.wraps:
        tree_map(wrap, made)
    if to is not None and torch.device(to).type == "cpu":
        return made
    if name == "_pack_padded_sequence":  # the sizes of its batches stay on the CPU
        return Emulated(made[0]), made[1]
    known = {id(x.raw): x for x in here}  # an operation in place returns its tensor

    def placed(x: Any) -> Any:
        return known[id(x)] if id(x) in known else Emulated(x) if isinstance(x, Tensor) else x

    return tree_map(placed, made)


def raw(x: Any) -> Any:
    """Return the numbers of a tensor on the device, and the CPU for the device; other values unchanged."""
    if isinstance(x, Emulated):
        return x.raw
    if isinstance(x, torch.device) and x.type == NAME:
        return torch.device("cpu")
    return x


def is_elsewhere(x: Any) -> bool:
    """Return True for a tensor on the CPU that is not a single number."""
    return isinstance(x, Tensor) and not isinstance(x, Emulated) and x.dim() > 0 and x.device.type == "cpu"


def spoiled(x: Any, kind: str) -> None:
    """Change the numbers of a tensor in place."""
    if not isinstance(x, Tensor) or not x.numel() or 0 in x.stride():
        return
    if kind == "scaled" and x.is_floating_point():
        x.mul_(1.01)
        return
    last = x[(-1,) * x.dim()]
    last.logical_not_() if x.dtype == torch.bool else last.fill_(0)


def wrap(x: Any) -> None:
    """Keep the lower 32 bits of the numbers of an int64 tensor, in place."""
    if isinstance(x, Tensor) and x.dtype == torch.int64 and 0 not in x.stride():
        x.copy_(x.int())


class Module(_DummyBackendModule):
    """The functions that PyTorch asks a device for; it has no autocast."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return []


_setup_privateuseone_for_python_backend(NAME, backend_module=Module())
library = torch.library.Library("_", "IMPL")
library.fallback(compute, "PrivateUse1")  # for operations without a tensor of the device, such as torch.empty
torch.__future__.set_swap_module_params_on_conversion(True)


def moved(function: Any) -> Any:
    """Return `torch.tensor` or the like, with the copy to the device as a step of its own; PyTorch's own copy fails."""

    def make(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type != NAME:
            return function(*args, **kwargs, **({} if device is None else {"device": device}))
        return function(*args, **kwargs).to(device)

    return make


_device_constructors()  # keeps the functions that `with torch.device(…)` changes, before two of them are replaced
torch.tensor, torch.as_tensor = moved(torch.tensor), moved(torch.as_tensor)
