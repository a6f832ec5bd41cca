"""The first operation that a device computes wrongly: each one runs again on the CPU, from the same inputs."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from glassformer.trial.step import Example, generated, largest, loss_of, placed, roundoff

N_CHANGES = 2
"""Number of times that an operation is repeated with changed inputs, for the bound of its error."""
SKIPPED = ("empty", "new_empty", "empty_like", "empty_strided", "as_strided", "_copy_from", "set_", "resize_")
"""Operations whose result has no values of its own, or that need the memory of the tensor itself."""


class Beside(TorchDispatchMode):
    """Repeats each operation of a device on the CPU, and keeps the first one that differs in `found`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.found, self.not_compared = device, "", set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func.overloadpacket.__name__)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if self.found or name in SKIPPED or is_random or not self._is_here(args, kwargs):
            return func(*args, **kwargs)
        before = tree_map(_on_cpu, (args, kwargs))  # copies, because an operation may write into its inputs
        made = func(*args, **kwargs)
        try:
            error = compared(func, before, tree_map(_on_cpu, _values_of(func, args, kwargs, made)))
        except (NotImplementedError, RuntimeError):  # the CPU lacks it, such as a fused attention of a GPU
            self.not_compared.add(name)
            return made
        if error:
            shapes = " and ".join(str(tuple(x.shape)) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor))
            self.found = f"aten.{name} of {shapes or 'numbers'} {error}"
        return made

    def _is_here(self, args: Any, kwargs: Any) -> bool:
        return any(
            x.device.type == self.device.type if isinstance(x, Tensor) else _is_device(x, self.device.type)
            for x in tree_leaves((args, kwargs))
        )


def _is_device(x: Any, kind: str) -> bool:
    return isinstance(x, torch.device) and x.type == kind


def _on_cpu(x: Any) -> Any:
    """Return a copy of a tensor on the CPU, and the CPU for a device."""
    if isinstance(x, Tensor):
        return x.detach().cpu().clone()
    return torch.device("cpu") if isinstance(x, torch.device) else x


def _values_of(func: Any, args: Any, kwargs: Any, made: Any) -> list[Tensor]:
    """Return the tensors that an operation returned, and those that it wrote into."""
    written = [
        given
        for argument, given in zip(func._schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    written += [kwargs[a.name] for a in func._schema.arguments if a.name in kwargs and a.alias_info and a.is_out]
    return [x for x in tree_leaves((made, written)) if isinstance(x, Tensor)]


def compared(func: Callable[..., Any], inputs: tuple[Any, Any], found: list[Tensor]) -> str:
    """Return how results differ from those of the CPU for the same inputs, in words; an empty text if they agree."""
    true = _run(func, inputs)
    others = [_run(func, _changed(inputs, true, seed)) for seed in range(N_CHANGES)]
    if len(found) != len(true):
        return f"returned {len(found)} tensors, and the CPU {len(true)}"
    for i, (x, y) in enumerate(zip(found, true, strict=True)):
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"returned {x.dtype} {tuple(x.shape)}, and the CPU {y.dtype} {tuple(y.shape)}"
        if not y.is_floating_point():
            steady = [other[i] == y for other in others if other[i].shape == y.shape]
            if bool(((x != y) & torch.stack(steady).all(dim=0)).any()):
                return f"differs in {int((x != y).sum())} of {x.numel()} numbers"
            continue
        special = ~y.isfinite()
        if not torch.equal(x[special].nan_to_num(nan=0.5), y[special].nan_to_num(nan=0.5)):
            return "has other infinite or missing numbers"
        x, y, others_i = x[~special].double(), y[~special].double(), [other[i][~special].double() for other in others]
        bound = max((largest(other - y) for other in others_i), default=0.0) + _relative(inputs, true) * largest(y)
        if (error := largest(x - y)) > N_CHANGES * bound:
            return f"is off by {error:.2g}, and rounding explains {N_CHANGES * bound:.1g}"
    return ""


def _run(func: Callable[..., Any], inputs: tuple[Any, Any]) -> list[Tensor]:
    """Run an operation on copies of its inputs; return its tensors, and those that it wrote into."""
    leaves, spec = tree_flatten(inputs)
    args, kwargs = tree_unflatten([x.clone() if isinstance(x, Tensor) else x for x in leaves], spec)
    return _values_of(func, args, kwargs, func(*args, **kwargs))


def _relative(inputs: tuple[Any, Any], outputs: list[Tensor]) -> float:
    """Return the probable relative error of an operation: from the largest number of terms of a sum, and the type."""
    tensors = [x for x in (*tree_leaves(inputs), *outputs) if isinstance(x, Tensor) and x.is_floating_point()]
    if not tensors:
        return 0.0
    n_terms = max(
        1, *(size for x in tensors for size in x.shape), max(x.numel() for x in tensors) // _smallest(outputs)
    )
    return max(roundoff(x.dtype, n_terms) for x in tensors)


def _smallest(outputs: list[Tensor]) -> int:
    return max(1, min((x.numel() for x in outputs if x.numel()), default=1))


def _changed(inputs: tuple[Any, Any], outputs: list[Tensor], seed: int) -> tuple[Any, Any]:
    """Return inputs whose floating-point numbers are changed by the relative error of the operation, at random."""
    relative, generator = _relative(inputs, outputs), torch.Generator().manual_seed(seed)

    def change(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        signs = torch.randint(2, x.shape, generator=generator) * 2 - 1
        return x * (1 + relative * signs).to(x.dtype)

    changed: tuple[Any, Any] = tree_map(change, inputs)
    return changed


def wrong_copy(device: torch.device) -> str:
    """Return which copy of a tensor to a device and back changes it; an empty text if none does.

    The other comparisons rely on these copies.
    """
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float16):
        numbers = (torch.arange(24).view(2, 3, 4) % 7 - 3).to(dtype)
        there = numbers.to(device)
        for name, change in _COPIES.items():
            if not torch.equal(change(there).cpu(), change(numbers)):
                return f"a copy of {name} in {dtype} is wrong"
    return ""


_COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "a tensor": lambda x: x,
    "a transposed tensor": lambda x: x.transpose(0, 2),
    "every second element": lambda x: x[:, ::2],
    "an expanded tensor": lambda x: x[:1].expand(5, 3, 4),
    "a contiguous tensor": lambda x: x.transpose(0, 2).contiguous(),
}


def first_wrong(example: Example, device: torch.device) -> str:
    """Return the first operation of a step that a device computes wrongly, in words; an empty text without one."""
    if found := wrong_copy(device):
        return found
    network, inputs, labels = placed(example, device, torch.float32)
    with Beside(device) as mode, suppress(RuntimeError, NotImplementedError, TypeError, IndexError):
        loss_of(network, inputs, labels).backward()
        with torch.no_grad():
            list(generated(network, inputs))
    if not mode.found and mode.not_compared:
        return f"one of the operations that only {device.type} has: {', '.join(_sorted(mode.not_compared))}"
    return mode.found


def _sorted(names: set[str]) -> Iterator[str]:
    return (f"aten.{name}" for name in sorted(names))
