"""Steps of a run that were taken again, beside what a checkpoint holds of them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.store import checkpoint
from glassformer.store.model_directory import WEIGHTS
from glassformer.store.tensors import read_tensors
from glassformer.training.checkpointer import Snapshot


@dataclass(frozen=True)
class Replay:
    """Steps of a run, taken again, and what came out otherwise."""

    begin: int
    end: int
    differing: list[str]
    """Names of tensors and numbers that are not equal to the bit."""
    is_same_machine: bool
    """Of the same kind, with the same versions and number of threads, as far as the checkpoint tells."""
    repeats_bits: bool
    """Whether the device gives the same bits every time: the CPU does, CUDA with `train.deterministic`. Equal bits are
    promised only on the same machine and where this holds."""


def differing(found: Snapshot, folder: Path) -> list[str]:
    """What of a snapshot is not what a checkpoint holds, to the bit: numbers, but for the clock's, and tensors."""
    stored = checkpoint.load_state(folder)
    now, before = found.state.numbers, stored.numbers
    names = [name for name in now if name not in ("seconds", "made_with") and not _equal(now[name], before.get(name))]
    for tensors, on_disk in (
        (found.weights, read_tensors(folder / WEIGHTS)),
        (found.state.weights or found.weights, read_tensors(checkpoint.weights_path(folder))),
        (found.state.optimizer, stored.optimizer),
        (found.state.average or {}, stored.average or {}),
    ):
        assert isinstance(tensors, dict) and isinstance(on_disk, dict)
        both = tensors.keys() & on_disk.keys()
        names += sorted(tensors.keys() ^ on_disk.keys())
        names += sorted(name for name in both if not _same_bits(tensors[name], on_disk[name]))
    return list(dict.fromkeys(names))


def _equal(a: Any, b: Any) -> bool:
    return bool(json.loads(json.dumps(a)) == b)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    a, b = a.detach().cpu().contiguous(), b.contiguous()
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8))
    )
