"""Times of the fast paths on this machine: plain PyTorch, the choices of the table, and every fast path.

Each row is the same code under three `Choices` (`kernels/processor.py`), in turns, on a quiet machine. A user of a kind
of processor without a row sends the report; a maintainer adds the row with its measurement.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from glassformer.errors import Progress
from glassformer.kernels import processor
from glassformer.kernels.linear import int8_dtype
from glassformer.kernels.packed import PackedWeights
from glassformer.kernels.processor import PLAIN, Choices
from glassformer.nn.attention_functions import attention_fused
from glassformer.nn.linear_layers import Int8Linear, Linear
from glassformer.nn.masks import Mask

SECONDS, ROUNDS = 0.04, 7
"""Least time of one measurement, and the number of rounds; a time is the least of the rounds: others waited."""
MARGIN = 1.1
"""Ratio of times from which a difference is named: smaller ones were noise on a shared machine."""
N_LAYERS, WIDTH, OUT = 8, 768, 3072
"""Layers of a row of products: together larger than the caches, as the weights of a model are."""
VOCABULARY, ATTENDED = 1 << 15, 4096
"""Outputs of the wide layer, and tokens of an attention over all rows of a batch."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """Times of one piece of work."""

    work: str
    seconds: Mapping[str, float]
    """Seconds under `plain`, `table` and `all` choices."""

    @property
    def gain(self) -> float:
        """The time of plain PyTorch as a multiple of the time under the table's choices."""
        return self.seconds["plain"] / self.seconds["table"]

    @property
    def remark(self) -> str:
        """The change that the table of choices needs; empty if it needs none."""
        best = self.seconds["plain"] / self.seconds["all"]
        if self.gain < 1 / MARGIN:
            return "slower than plain PyTorch"
        return f"a fast path gains {best:.2f}" if best > MARGIN * self.gain else ""


@dataclass(frozen=True)
class MachineReport:
    """The processor, its choices, and the times."""

    processor: str
    threads: int
    choices: Choices
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"torch": torch.__version__, "rows": [asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        used = [f"{name} {value}" for name, value in asdict(self.choices).items() if value not in (None, False)]
        lines = [
            f"processor  {self.processor}, {self.threads} threads, torch {torch.__version__}",
            f"choices    {', '.join(used) or 'plain PyTorch'}",
            "",
            f"{'ms':34}{'plain':>9}{'chosen':>9}{'all':>9}{'gain':>7}",
        ]
        for row in self.rows:
            times = "".join(f"{1000 * row.seconds[name]:9.2f}" for name in ("plain", "table", "all"))
            lines.append(f"{row.work:34}{times}{row.gain:7.2f}  {row.remark}".rstrip())
        return "\n".join(lines)


def measure_machine(progress: Progress | None = None) -> MachineReport:
    """Measure every fast path on this machine, in about half a minute; `progress` gets (done, total)."""
    here, rows = processor.this, []
    works = list(_works(has_bfloat16=bool(here.bfloat16)))
    everything = _everything(here)
    for number, (name, make) in enumerate(works):
        rows.append(Row(name, _in_turns(make, {"plain": PLAIN, "table": here.choices, "all": everything})))
        if progress is not None:
            progress(number + 1, len(works))
    return MachineReport(str(here), torch.get_num_threads(), here.choices, tuple(rows))


def _everything(here: processor.Processor) -> Choices:
    """Return every fast path that the libraries of the processor have."""
    if not here.has_onednn:
        return PLAIN
    return Choices(
        packed_rows=1,
        bfloat16=bool(here.bfloat16),
        packs_float16=here.packs_float16,
        half_by_fp32=True,
        onednn_fp32=True,
        wide_fp32=True,
    )


@contextmanager
def _choosing(choices: Choices) -> Iterator[None]:
    before = processor.this
    processor.this = replace(before, choices=choices)
    try:
        yield
    finally:
        processor.this = before


def _in_turns(make: Callable[[], Call], variants: Mapping[str, Choices]) -> dict[str, float]:
    """Return the least seconds of a call under each variant; equal variants are measured once."""
    calls: dict[Choices, Call] = {}
    for choices in variants.values():
        if choices not in calls:
            torch.manual_seed(0)
            with _choosing(choices):
                calls[choices] = make()
                calls[choices]()
    began, n = time.perf_counter(), 0
    first = next(iter(calls))
    with _choosing(first):
        while n == 0 or time.perf_counter() - began < SECONDS:
            calls[first]()
            n += 1
    seconds: dict[Choices, list[float]] = {choices: [] for choices in calls}
    for _ in range(ROUNDS):
        for choices, call in calls.items():
            with _choosing(choices):
                began = time.perf_counter()
                for _ in range(n):
                    call()
                seconds[choices].append((time.perf_counter() - began) / n)
    return {name: min(seconds[choices]) for name, choices in variants.items()}


def _works(has_bfloat16: bool) -> Iterator[tuple[str, Callable[[], Call]]]:
    """Yield the names of the rows, and functions that make the work of a row."""
    dtypes = {"fp32": torch.float32}
    if has_bfloat16:
        dtypes["bf16"] = torch.bfloat16
    for n_rows in (1, 2, 4, 16, 64):
        for name, dtype in (dtypes | {"fp16": torch.float16, "int8": torch.int8}).items():
            yield f"decoding product {name}, rows: {n_rows}", _Products(n_rows, dtype)
    for width in (128, 768):
        yield f"layer fp32, width {width}, step", _Step(1024, width, 4 * width)
    for name in dtypes:
        yield f"vocabulary of {VOCABULARY:,} {name}, step", _Step(256, 256, VOCABULARY, name == "bf16")
    if has_bfloat16:
        for n_tokens in (64, 256, 1024):
            yield f"attention bf16, {n_tokens} tokens, step", _CausalAttention(n_tokens)


@dataclass(frozen=True)
class _Products:
    """Products of some rows with the weights of several layers, in a block of packed weights."""

    n_rows: int
    dtype: torch.dtype

    def __call__(self) -> Call:
        dtype = int8_dtype(torch.device("cpu")) if self.dtype == torch.int8 else self.dtype
        layers: list[torch.nn.Module] = [Linear(WIDTH, OUT) for _ in range(N_LAYERS)]
        if self.dtype == torch.int8:
            layers = [Int8Linear(layer) for layer in layers]  # type: ignore[arg-type]
        network = torch.nn.ModuleList(layers)
        if self.dtype != torch.int8:
            network.to(dtype)
        x, block = torch.randn(self.n_rows, WIDTH).to(dtype), PackedWeights()

        def call() -> None:
            with block, torch.inference_mode():
                for layer in network:
                    layer(x)

        return call


@dataclass(frozen=True)
class _Step:
    """Forward and backward of one layer without bias."""

    n_rows: int
    width: int
    n_out: int
    is_bfloat16: bool = False

    def __call__(self) -> Call:
        layer = Linear(self.width, self.n_out, bias=False)
        x = torch.randn(self.n_rows, self.width, requires_grad=True)

        def call() -> None:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.is_bfloat16):
                y = layer(x)
            y.backward(torch.ones_like(y))

        return call


@dataclass(frozen=True)
class _CausalAttention:
    """Forward and backward of causal attention of 8 heads of width 64, over 4,096 tokens in all."""

    n_tokens: int

    def __call__(self) -> Call:
        shape = (ATTENDED // self.n_tokens, 8, self.n_tokens, 64)
        query, key, value = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))

        def call() -> None:
            y: Tensor = attention_fused(query, key, value, Mask(causal=True))
            y.backward(torch.ones_like(y))

        return call
