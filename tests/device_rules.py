"""The rules of Apple's device (`mps`), emulated on a CPU: no double precision, and no operation of a list.

A tensor is on the device if a `torch.device` made it or moved it there (`x.to(device)`, `torch.zeros(2,
device=device)`), or if an operation made it from such a tensor. `x.cpu()`, `x.to("cpu")`, `x.tolist()` and numpy return
to the host, where everything is allowed. Storages are marked, so that views belong to the device as well.

- No float64 and no complex128: https://docs.pytorch.org/docs/stable/notes/mps.html, "Double-precision types".
- No operation of `MISSING`: `torch/testing/_internal/common_mps.py` of torch 2.13, UNIMPLEMENTED_XFAILLIST.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MISSING = {
    *("logspace", "linalg_eig", "linalg_eigvals", "linalg_eigh", "_linalg_eigh", "linalg_ldl_factor_ex"),
    *("linalg_lstsq", "matrix_exp", "linalg_matrix_exp", "geqrf", "ormqr", "put", "put_", "take", "frexp", "heaviside"),
    *("mode", "_ctc_loss", "multi_margin_loss", "segment_reduce", "_pdist_forward", "float_power"),
    *("special_log_ndtr", "special_ndtri"),
}
WIDE = (torch.float64, torch.complex128)


class _Operations(TorchDispatchMode):
    """Marks what an operation makes from a tensor on the device, and refuses what the device does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, Any] = {}  # alive until the end, so that no address is used twice
        self.is_host = False

    def has(self, x: Tensor) -> bool:
        return x.untyped_storage().data_ptr() in self.storages

    def place(self, x: Tensor) -> Tensor:
        """Mark a tensor as one on the device; raise `TypeError` if the device cannot have it."""
        if x.dtype in WIDE:
            raise TypeError(f"Cannot convert a MPS Tensor to {x.dtype} as the MPS framework does not support it")
        if x.numel() and x.device.type == "cpu":
            self.storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        is_here = not self.is_host and any(map(self.has, given))
        if is_here and name in MISSING:
            raise NotImplementedError(f"The operator aten::{name} is not implemented for the MPS device")
        made = func(*args, **kwargs)
        if is_here and name != "copy_":
            for x in tree_leaves(made):
                if isinstance(x, Tensor):
                    self.place(x)
        return made


class _Moves(TorchFunctionMode):
    """Follows tensors to the device and back to the host, which are one device here."""

    def __init__(self, operations: _Operations) -> None:
        super().__init__()
        self.operations = operations

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        where = kwargs.get("device")
        if name == "to":
            where = next((x for x in (*args[1:], where) if isinstance(x, (str, torch.device))), None)
        if name in ("cpu", "numpy", "tolist") or (name == "to" and where == "cpu" and isinstance(where, str)):
            self.operations.is_host, before = True, self.operations.is_host
            try:
                made = func(*args, **kwargs)
                is_same = isinstance(made, Tensor) and self.operations.has(made)
                return made.clone() if is_same else made
            finally:
                self.operations.is_host = before
        made = func(*args, **kwargs)
        if isinstance(where, torch.device) and where.type == "cpu" and isinstance(made, Tensor):
            return made if self.operations.has(made) else self.operations.place(made.clone() if name == "to" else made)
        return made


@contextmanager
def apple_rules() -> Iterator[None]:
    """Raise the errors of Apple's device inside the block."""
    operations = _Operations()
    with ExitStack() as stack:
        stack.enter_context(operations)
        stack.enter_context(_Moves(operations))
        yield
