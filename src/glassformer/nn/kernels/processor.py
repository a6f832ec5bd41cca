"""The processor of this machine, and the rule that chooses the libraries for its matrix products.

The rule is over two measured numbers, `Gains`, and no name of a processor. Where oneDNN's products are not slower, it
computes products of packed weights and of wide layers. If bfloat16 is also faster than fp32, oneDNN computes all large
products, and everything that is faster in bfloat16. Otherwise, plain PyTorch is used. The first product that asks
measures the numbers, in about 0.2 s; then they are kept in the user's cache. All code reads `processor.this` at the
time of use, so that a test can replace this one object. `benchmarks/kernels.py` measures the rule on a machine.
"""

import os
import platform
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.common import files

VARIABLE = "GLASSFORMER_KERNELS"
"""Name of the environment variable: `auto`, or no value, means the rule. Other values choose without a measurement:
`plain` plain PyTorch, `onednn` the paths of oneDNN in fp32, and `bf16` all paths, as far as PyTorch has them."""
LEAST_BFLOAT16, LEAST_ONEDNN = 1.4, 0.8
"""Smallest gains for which a path is used. The measured gains are far from these limits: in bfloat16 at least 1.7 or at
most 0.5, of oneDNN at least 1.0 or at most 0.6 (`docs/log/2026-devices.md`)."""
N_ROUNDS, N_ROWS, WIDTH = 6, 256, 512
"""Rounds of the measurement after a first one, and the shape of its large product."""
FEW_ROWS, N_WEIGHTS, PACKED_WIDTH = 16, 4, 1024
"""Rows of generation, and the weights that they are multiplied by: together larger than the cache of a core."""
_lock = threading.Lock()
_clock = {"nt": time.perf_counter}.get(os.name, time.thread_time)
"""Time of this thread on a core; Windows counts it in steps of 16 ms."""


@dataclass(frozen=True)
class Gains:
    """Speeds of products in one thread, relative to PyTorch's product in fp32."""

    bfloat16: float
    """A large product in bfloat16."""
    onednn: float
    """A product of few rows by a packed weight, computed by oneDNN in fp32; 0 if oneDNN's products are wrong."""


FIXED = {"onednn": Gains(bfloat16=0.2, onednn=2.0), "bf16": Gains(bfloat16=2.0, onednn=2.0)}
"""Gains that values of the environment variable state in place of a measurement."""


@dataclass(frozen=True)
class Processor:
    """A CPU, and the libraries that PyTorch uses on it."""

    name: str
    """Architecture, model (if the system gives it) and vector instructions, such as `x86_64 AMD EPYC AVX512`."""
    packs_bfloat16: bool
    """True if oneDNN can pack weights and compute LSTMs in bfloat16, which needs AVX-512 or AVX-NE-CONVERT."""
    has_onednn: bool
    """True if PyTorch has oneDNN's linear layer, and the environment variable allows it."""
    known: Gains | None = None
    """The gains, if they need no measurement."""

    @cached_property
    def gains(self) -> Gains:
        """The gains: known, kept, or measured now."""
        with _lock:
            return self.known or _kept(self)

    @cached_property
    def multiplies_bfloat16(self) -> bool:
        """True if PyTorch's products are clearly faster in bfloat16 than in fp32."""
        return self.gains.bfloat16 >= LEAST_BFLOAT16

    @cached_property
    def uses_onednn(self) -> bool:
        """True if packed weights and wide layers in fp32 use oneDNN, which is right and not slower."""
        return self.has_onednn and self.gains.onednn >= LEAST_ONEDNN

    @cached_property
    def is_fast_in_bfloat16(self) -> bool:
        """True if products in bfloat16 are fast and oneDNN is used.

        Then weights are packed, attention runs by blocks and gradients are computed in parts in bfloat16, and oneDNN
        computes large products in fp32.
        """
        return self.uses_onednn and self.multiplies_bfloat16

    def __str__(self) -> str:
        words = {"bf16": self.multiplies_bfloat16, "plain PyTorch": not self.uses_onednn}
        return " ".join([self.name, *(word for word, is_true in words.items() if is_true)])


def detect() -> Processor:
    """Return the processor of this machine; ONEDNN_MAX_CPU_ISA and ATEN_CPU_CAPABILITY can hide instructions."""
    setting = os.environ.get(VARIABLE, "auto")
    if setting not in ("auto", "plain", *FIXED):
        raise ValueError(f"the environment variable {VARIABLE} is {setting!r} and must be auto, plain, onednn or bf16")
    model = _cpuinfo().get("model name", "").split()
    onednn = torch.ops.mkldnn
    operations = ("_linear_pointwise", "_reorder_linear_weight")
    has_onednn = torch.backends.mkldnn.is_available() and all(hasattr(onednn, name) for name in operations)
    packs_bfloat16 = hasattr(onednn, "_is_mkldnn_bf16_supported") and bool(onednn._is_mkldnn_bf16_supported())
    if setting == "bf16" and not packs_bfloat16:
        setting = "onednn"
    return Processor(
        name=" ".join([platform.machine(), *model, torch.backends.cpu.get_cpu_capability()]),
        packs_bfloat16=packs_bfloat16,
        has_onednn=has_onednn and setting != "plain",
        known=FIXED.get(setting),
    )


def _cpuinfo() -> dict[str, str]:
    """Return what Linux states about the first processor, except what varies; empty on other systems."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        lines = [line.partition(":") for line in file.read(8000).partition("\n\n")[0].splitlines()]
        facts = {name.strip(): value.strip() for name, _, value in lines}
        return {name: value for name, value in facts.items() if not name.endswith(("MHz", "MIPS", "id", "mips"))}
    return {}


@cache
def _kept(here: Processor) -> Gains:
    """Return the gains that an earlier process has kept; otherwise measure and keep them.

    They are kept for a processor, a release of PyTorch, and the variables that hide instructions from its libraries.
    """
    facts = {
        "format": 1,
        "processor": asdict(here),
        "cpuinfo": _cpuinfo(),
        "can": dict(getattr(torch.cpu, "get_capabilities", dict)()),  # missing in older releases of torch
        "torch": torch.__version__,
        "variables": {
            name: text for name, text in os.environ.items() if name.startswith(("ATEN_", "DNNL_", "ONEDNN_"))
        },
    }
    return files.kept(Gains, facts, lambda: measured(here.has_onednn))


def measured(has_onednn: bool) -> Gains:
    """Measure the gains: the shortest times of some rounds, in which all products take turns.

    A new thread measures, so that neither autocast nor another mode of the caller applies. Its time on a core counts,
    not the time of the clock: then other work of the machine does not count.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_measured, has_onednn).result()


@torch.inference_mode()
def _measured(has_onednn: bool) -> Gains:
    shapes = ((N_ROWS, WIDTH), (WIDTH, WIDTH), (FEW_ROWS, PACKED_WIDTH), (N_WEIGHTS, PACKED_WIDTH, PACKED_WIDTH))
    generator, cpu = torch.Generator().manual_seed(0), torch.device("cpu")
    tensors = (torch.rand(shape, generator=generator, dtype=torch.float32, device=cpu) for shape in shapes)
    x, weight, few, weights = tensors
    half = (x.bfloat16(), weight.bfloat16())
    products: list[Callable[[], object]] = [lambda: F.linear(x, weight), lambda: F.linear(*half)]
    if has_onednn and _is_right(few, weights[0]):
        packed = [torch.ops.mkldnn._reorder_linear_weight(each) for each in weights]
        products.append(lambda: [F.linear(few, each) for each in weights])
        products.append(lambda: [onednn_product(few, each) for each in packed])
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rounds = [[_seconds(product) for product in products] for _ in range(1 + N_ROUNDS)]
    finally:
        torch.set_num_threads(n_threads)
    of_fp32, of_bf16, *others = map(min, zip(*rounds[1:], strict=True))
    of_few, of_packed, *_ = *others, 0.0, 1.0  # without oneDNN, there are no others
    return Gains(of_fp32 / of_bf16, of_few / of_packed)


def _is_right(x: Tensor, weight: Tensor) -> bool:
    """Return True if oneDNN's products are right: of a packed weight, of a layer, and of its two gradients.

    All numbers are positive, so each sum of n products has a relative error of at most n u (u = 2⁻²⁴), in any order.
    """
    bound = 2 * PACKED_WIDTH * 2**-24  # of the difference of two such sums
    with suppress(RuntimeError, NotImplementedError):
        packed, y = torch.ops.mkldnn._reorder_linear_weight(weight), F.linear(x, weight)
        for a, b, given in ((x, weight, packed), (x, weight, weight), (y, weight.T, weight.T), (y.T, x.T, x.T)):
            true = F.linear(a, b)
            if not (onednn_product(a, given) - true).abs().max() <= bound * true.abs().max():  # also for NaN
                return False
        return True
    return False


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b by oneDNN, without a gradient; the weight is plain or packed."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _seconds(product: Callable[[], object]) -> float:
    began = _clock()
    product()
    return _clock() - began


this = detect()
