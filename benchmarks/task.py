"""The work of one candidate: a call that is repeated and timed, and its size."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Precision = Literal["fp32", "bf16"]


def _return() -> None:
    """Wait for nothing: the CPU has finished when a call returns."""


@dataclass(frozen=True)
class Task:
    """A call and its size; `worker.py` measures it."""

    call: Callable[[], object]
    """The work. With `measures`, it returns its own seconds."""
    amount: float = 1.0
    """Units of work per call, such as tokens."""
    flops: float = 0.0
    """Operations of the matrix products of a call; 0 = not counted."""
    bytes_read: float = 0.0
    """Bytes that a call must read from memory; 0 = not counted."""
    parameters: int = 0
    calls: int = 1
    """Number of calls per round; a round is their mean."""
    first_calls: int = 0
    """Number of calls at the begin of a round that do not count: on a GPU, they allocate the memory of the device."""
    wait: Callable[[], None] = _return
    """Function that returns when the device has finished."""
    measures: bool = False
    """True if a call returns its seconds."""
    runs_programs: bool = False
    """True if a call runs other programs: the peak memory is then that of these programs."""
    found: Mapping[str, float | str] = field(default_factory=dict)
    """Facts that the task has already measured."""
