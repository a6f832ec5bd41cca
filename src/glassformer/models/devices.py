"""Device, numerics and memory of a network: choices for a device, determinism, and batches that fit in memory.

`train.compile` traces a Transformer once. For this, no default of a block's argument is an instance of a class of
glassformer. A batch of variable shape always has masks, so padded and unpadded batches share the graph. Recurrent
models cannot be traced. Experts cannot, because the number of tokens of an expert is data, which breaks the graph.
Recurrent cells run outside autocast, in fp32, except on a CPU with bf16 products. cuDNN would compute in fp16, and
other CPUs have no LSTM in bf16.
"""

import ctypes
import gc
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.utils._triton import has_triton

from glassformer.common.errors import UserError, first_line, is_out_of_memory, warn
from glassformer.config.recurrent import ModelConfig
from glassformer.config.train import TrainConfig
from glassformer.nn.kernels import processor
from glassformer.nn.kernels.flex_attention import has_c_compiler

_AUTOCAST = {"auto": None, "fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
COMPILE_SECONDS, LEAST_RATIO = 60.0, 5.0
"""`COMPILE_SECONDS`: time that torch.compile takes for a step on two CPU cores (`docs/log/2026-speed.md`).
`LEAST_RATIO`: `train.compile` = "auto" compiles if the steps of a run take at least this many times as long."""
WORKSPACE, DETERMINISTIC_WORKSPACES = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")
"""`WORKSPACE`: the environment variable for the workspace size of cuBLAS. `DETERMINISTIC_WORKSPACES`: its values that
make results deterministic."""


def choose_device(name: str) -> torch.device:
    """Return the named device, which must be available; `auto` is the accelerator of this machine, or the CPU.

    `trial.choice.earned_device` also tries an accelerator before `auto` uses it.
    """
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if accelerator is None else torch.device(accelerator.type)
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {name!r:.60} is not available ({first_line(error)}); use auto or cpu") from error
    return device


def emulation_note(dtype: str | None, device: torch.device) -> str | None:
    """Return a note with the measured cost if products in `dtype` have no clear gain on the CPU, else None.

    >>> emulation_note("fp32", torch.device("cpu")), emulation_note("bf16", torch.device("cuda"))
    (None, None)
    """
    if dtype != "bf16" or device.type != "cpu" or processor.this.multiplies_bfloat16:
        return None
    return (
        f"{dtype} has no gain on this CPU: a large product takes {1 / processor.this.gains.bfloat16:.1f} times as long "
        "as in fp32, and attention longer; use fp32, in a new run train.precision auto"
    )


def choose_compile(
    setting: Literal["auto"] | bool, model: ModelConfig, device: torch.device, has_one_shape: bool, seconds: float
) -> tuple[bool, str]:
    """Return whether the steps of a run are compiled, and the reason if `train.compile` is auto (else an empty text).

    A compiled step differs from an eager step in the last bits. So the choice must not depend on a measured time:
    `seconds` is a computed lower bound of the time of all steps on a GPU. `has_one_shape` is True if all rows are full
    windows of a text.

    >>> from glassformer.config.transformer import Stack, TransformerConfig
    >>> model = TransformerConfig(decoder=Stack())
    >>> choose_compile(True, model, torch.device("cpu"), True, 0.0)
    (True, '')
    >>> choose_compile("auto", model, torch.device("cpu"), True, 1e6)
    (False, 'no gain on a CPU')
    """
    if setting != "auto":
        return setting, ""
    if model.uncompilable:
        return False, f"{model.uncompilable} cannot be compiled"
    if device.type == "cpu":
        return False, "no gain on a CPU"
    if device.type != "cuda":
        return False, "no gain on this device"
    if not has_one_shape:
        return False, "the rows are not windows of a text"
    if seconds < LEAST_RATIO * COMPILE_SECONDS:
        return False, "the run is too short for the compiler"
    if not has_triton() or not has_c_compiler():
        return False, "Triton or a C compiler is missing"
    return True, "the run takes much longer than the compiler"


def autocast_dtype(precision: str) -> torch.dtype | None:
    """Return the dtype of matrix products under autocast for a precision; None if autocast is off.

    A run replaces `auto` before its first step. A model that no run has trained, such as an imported model, may have
    `auto`, and runs without autocast.

    >>> autocast_dtype("bf16"), autocast_dtype("fp32")
    (torch.bfloat16, None)
    """
    return _AUTOCAST[precision]


def repeats_bits(config: TrainConfig, device: torch.device) -> bool:
    """Return True if repeated steps give the same bits on one machine: CPU, or CUDA with `train.deterministic`.

    >>> repeats_bits(TrainConfig(), torch.device("cpu")), repeats_bits(TrainConfig(), torch.device("cuda"))
    (True, False)
    """
    return device.type == "cpu" or (device.type == "cuda" and config.deterministic)


def runs_ahead(device: torch.device) -> bool:
    """Return True if the program continues while the device computes, so that waiting for a result costs time.

    >>> runs_ahead(torch.device("cuda")), runs_ahead(torch.device("cpu"))
    (True, False)
    """
    return device.type == "cuda"


@contextmanager
def numerics(config: TrainConfig) -> Iterator[None]:
    """Apply the precision tf32 and `train.deterministic` inside the block, then restore the old settings.

    Raises `UserError` for an operation without a deterministic implementation if the run requires determinism.
    """
    with ExitStack() as stack:
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
        if config.deterministic:
            stack.enter_context(_deterministic())
        yield


@contextmanager
def _deterministic() -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    flags, workspace = (cudnn.deterministic, cudnn.benchmark), os.environ.get(WORKSPACE)
    if workspace not in DETERMINISTIC_WORKSPACES:
        os.environ[WORKSPACE] = DETERMINISTIC_WORKSPACES[0]
    cudnn.deterministic, cudnn.benchmark = True, False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if (reason := _not_deterministic(error)) is None:
            raise
        raise UserError(reason) from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.deterministic, cudnn.benchmark = flags
        if workspace is None:
            del os.environ[WORKSPACE]
        else:
            os.environ[WORKSPACE] = workspace


def _not_deterministic(error: RuntimeError) -> str | None:
    """Explain torch's determinism error in one sentence; return None for any other error."""
    if WORKSPACE in str(error):
        return (
            f"train.deterministic: this process multiplied matrices on the GPU before the run began; set {WORKSPACE}="
            f"{DETERMINISTIC_WORKSPACES[0]} in the environment before the process starts"
        )
    if "does not have a deterministic implementation" in str(error):
        operation = str(error).split(" does not have")[0]
        return f"train.deterministic: {operation} has no deterministic implementation on this device; set it to false"
    return None


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
"""Parameters of glibc's `mallopt`. After the first call, glibc no longer adapts the thresholds by itself."""
_keeps_memory = False
"""True inside a block of `freed_memory_kept`."""


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory of the CPU in the process inside the block; return it to the system at the end.

    Each step allocates tensors of the same sizes again. By default, glibc gets memory for large tensors from the system
    every time, and the system fills the pages with zeros. At 124 M parameters, that took a fifth of a step
    (`docs/log/2026-speed.md`). The block has no effect with another C library.
    """
    global _keeps_memory
    if _keeps_memory or platform.libc_ver()[0] != "glibc":  # inside another block, such as the evaluation of a run
        yield
        return
    libc = ctypes.CDLL(None)
    _keeps_memory = True
    libc.mallopt(_M_MMAP_MAX, 0)
    libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
    try:
        yield
    finally:
        _keeps_memory = False
        libc.mallopt(_M_MMAP_MAX, 1 << 16)  # the default; the thresholds are the largest to which glibc adapts
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)
        libc.malloc_trim(0)


def give_back_memory() -> None:
    """Return all freed memory to the system: of the CPU (with glibc) and of an accelerator."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Disable dropout inside the block; restore the previous mode after it."""
    was_training, in_training = network.training, any(module.training for module in network.modules())
    if in_training:  # a change of the mode of all modules takes a fifth of a forward pass of a short text
        network.eval()
    try:
        yield
    finally:
        if in_training:
            network.train(was_training)


# Computation of a batch in a way that fits in memory: in parts, and with recomputed blocks

R = TypeVar("R")
W = TypeVar("W")


@dataclass(frozen=True)
class Fit:
    """A way to compute the micro-batches of a run so that they fit in memory."""

    n_parts: int = 1
    """Number of parts of each micro-batch."""
    recomputes: bool = False
    """True if activation checkpointing was switched on because not even the smallest parts fit without it."""

    def joined(self, other: "Fit") -> "Fit":
        """Return the way that combines both: the larger number of parts, and recomputation if one of the two has it.

        >>> Fit(4, False).joined(Fit(2, True))
        Fit(n_parts=4, recomputes=True)
        """
        return Fit(max(self.n_parts, other.n_parts), self.recomputes or other.recomputes)

    def __str__(self) -> str:
        """Describe the computation for a message."""
        found = []
        if self.recomputes:
            found.append("activation checkpointing is on")
        if self.n_parts > 1:
            found.append(f"each micro-batch is computed in {self.n_parts:,} parts")
        return f"{' and '.join(found)}; the result is the same, up to rounding and the masks of dropout"


WHOLE = Fit()
"""Whole micro-batches, without activation checkpointing."""


def split(items: Sequence[Any], n: int) -> list[Any]:
    """Divide a sequence into `n` parts of nearly equal length, or into single items if there are fewer than `n` items.

    >>> split(range(5), 2), split([7, 8], 4)
    ([range(0, 3), range(3, 5)], [[7], [8]])
    """
    n = max(1, min(n, len(items)))
    boundaries = [-(-len(items) * i // n) for i in range(n + 1)]
    return [items[begin:end] for begin, end in pairwise(boundaries)]


def doubled(n: int, most: int) -> Iterator[int]:
    """Yield numbers of parts: n, 2n, 4n, … below `most`, then `most`.

    >>> list(doubled(1, 6)), list(doubled(8, 6))
    ([1, 2, 4, 6], [6])
    """
    while n < most:
        yield n
        n *= 2
    yield most


def fitted(work: Callable[[W], R], ways: Iterable[W]) -> tuple[R, W]:
    """Return `work(way)` and `way` for the first way that fits in memory.

    The memory of a failed attempt is freed before the next one, so `work` must store no tensor outside of its own call.
    """
    *others, last = ways
    for way in others:
        try:
            return work(way), way
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        # Here the error is gone, and so are the references to tensors in its traceback.
        give_back_memory()
    return work(last), last


class InParts:
    """Computation of the batches of one measurement; after a batch that does not fit in memory, all are in parts.

    The result of an item must not depend on the other items of its part.
    """

    def __init__(self, *, may_split: bool = True) -> None:
        """Set `may_split` to False if all processes must run the same number of forward passes."""
        self.n, self.may_split = 1, may_split

    def __call__(self, items: Sequence[Any], work: Callable[[Any], R]) -> list[R]:
        """Return the results of `work` for consecutive parts of `items`: one part if memory suffices.

        `work` may run again for the same items, so it must change nothing outside of its own call.

        >>> InParts()(["a", "b"], "".join)
        ['ab']
        """
        most = len(items) if self.may_split else 1
        found, n = fitted(lambda n: [work(part) for part in split(items, n)], doubled(self.n, most))
        if n > self.n:
            warn(f"a batch did not fit in memory: batches are now computed in {n:,} parts, with the same results")
            self.n = n
        return found

    def each(self, batches: Iterable[Sequence[int]], work: Callable[[Any], Iterable[R]]) -> Iterator[tuple[int, R]]:
        """Yield each number in `batches` with its result; `work` returns one result for each number of a part."""
        for batch in batches:
            yield from zip(batch, (result for part in self(batch, work) for result in part), strict=True)
