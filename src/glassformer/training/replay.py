"""Replay of the last steps of a run, which must give the values in the newest checkpoint of the run."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from glassformer.common.errors import UserError
from glassformer.models.devices import repeats_bits
from glassformer.store import checkpoint
from glassformer.store.lock import locked
from glassformer.store.model_directory import WEIGHTS, read_run
from glassformer.store.tensors import read_tensors
from glassformer.tasks.reporting import LaunchReporter
from glassformer.training.announce import changed_machine
from glassformer.training.checkpointer import Snapshot
from glassformer.training.distributed import is_several
from glassformer.training.host import host_of
from glassformer.training.run import assemble


@dataclass(frozen=True)
class Replay:
    """The result of a replay: the repeated steps of a run, and the values that differ."""

    begin: int
    end: int
    differing: list[str]
    """Names of tensors and numbers that are not bit for bit equal."""
    is_same_machine: bool
    """True if machine, versions and number of threads match, as far as the checkpoint records them."""
    repeats_bits: bool
    """True if the device always gives the same bits: the CPU does, and CUDA with `train.deterministic`. Equal bits are
    guaranteed only on the same machine and if this is True."""


def replay_run(folder: Path, reporter: LaunchReporter) -> Replay:
    """Repeat the steps between the two newest checkpoints and compare the results; nothing is written."""
    began = time.monotonic()
    if is_several():
        raise UserError("resume --verify runs in one process: start it without torchrun")
    with locked(folder):
        steps = [step for step in checkpoint.steps(folder) if checkpoint.is_intact(folder, step, reporter.log)]
        if len(steps) < 2:
            raise UserError(f"a replay needs 2 intact checkpoints, and {folder} has {len(steps)}: train for more steps")
        begin, end = steps[-2:]
        newest = checkpoint.path_of(folder, end)
        run = read_run(newest)
        with host_of(run, folder, reporter, began) as host:
            run, trainer = assemble(run, folder, host, from_checkpoint=newest, writes=False)
            trainer.restore(checkpoint.path_of(folder, begin))
            reporter.log(f"repeating steps {begin + 1} to {end}")
            return Replay(
                begin,
                end,
                _differing(trainer.replay(end), newest),
                is_same_machine=not changed_machine(newest, trainer.progress),
                repeats_bits=repeats_bits(run.train, host.device),
            )


def _differing(repeated: Snapshot, folder: Path) -> list[str]:
    """Return the names of numbers (except times) and tensors that differ between a snapshot and a checkpoint."""
    stored = checkpoint.load_state(folder)
    # Numbers
    now, before = json.loads(json.dumps(repeated.state.numbers)), stored.numbers
    names = [name for name in now if name not in ("seconds", "made_with") and now[name] != before.get(name, now[name])]
    # Tensors
    for tensors, on_disk in (
        (repeated.weights, read_tensors(folder / WEIGHTS)),
        (repeated.state.weights or repeated.weights, read_tensors(checkpoint.weights_path(folder))),
        (repeated.state.optimizer, stored.optimizer),
        (repeated.state.average or {}, stored.average or {}),
    ):
        assert isinstance(tensors, dict) and isinstance(on_disk, dict)
        both = tensors.keys() & on_disk.keys()
        names += sorted(tensors.keys() ^ on_disk.keys())
        names += sorted(name for name in both if not _same_bits(tensors[name], on_disk[name]))
    return list(dict.fromkeys(names))


def _same_bits(a: Tensor, b: Tensor) -> bool:
    bits = [x.detach().cpu().contiguous().view(-1).view(torch.uint8) for x in (a, b)]
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(*bits)
