"""Averages of weights: along one run (`ExponentialAverage`) and over checkpoints (`average_directories`)."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from glassformer.common import files
from glassformer.common.errors import UserError, shown
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import CONFIG, WEIGHTS, model_files
from glassformer.store.tensors import read_tensors, require_fit, save_tensors
from glassformer.training.distributed.parts import local_part, part_of

_N_UPDATES = "n_updates"
_PREFIX = "average/"


class ExponentialAverage:
    """A moving average of a model's parameters: after every step, average ← d · average + (1 - d) · parameter.

    The decay d warms up: at the n-th update (n = 0, 1, …) it is min(decay, (1 + n) / (10 + n)). A constant decay would
    keep the random initial weights for too long. With the warm-up, the average covers about the last ninth of
    the run so far, until `decay` limits it. Tied parameters are averaged once; buffers are not averaged.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.n_updates = 0
        self._parameters = dict(model.named_parameters())
        self._averages = {name: p.detach().clone() for name, p in self._parameters.items()}
        groups: dict[object, list[str]] = {}  # parameters may be views of one memory
        for name, p in self._parameters.items():
            groups.setdefault(local_part(p).untyped_storage().data_ptr(), []).append(name)
        self._groups = list(groups.values())
        self._swapped = False

    @torch.no_grad()
    def update(self) -> None:
        """Add the current parameters to the average; call this after each optimizer step."""
        self._refuse_while_swapped("update")
        decay = min(self.decay, (1 + self.n_updates) / (10 + self.n_updates))
        torch._foreach_lerp_(list(self._averages.values()), list(self._parameters.values()), 1 - decay)
        self.n_updates += 1

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Put the average into the model for the block; then restore the model's own weights, bit for bit."""
        self._refuse_while_swapped("swap in")
        self._exchange()
        self._swapped = True
        try:
            yield
        finally:
            self._exchange()
            self._swapped = False

    @property
    def weights(self) -> dict[str, Tensor]:
        """The averages by parameter name."""
        self._refuse_while_swapped("read")
        return dict(self._averages)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint must keep."""
        self._refuse_while_swapped("save")
        averages = {_PREFIX + name: average for name, average in self._averages.items()}
        return averages | {_N_UPDATES: torch.tensor(float(self.n_updates))}

    @torch.no_grad()
    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore tensors of `state_tensors`; raise `UserError` for tensors of another model."""
        self._refuse_while_swapped("load")
        expected = {name: (x.shape, x.dtype) for name, x in self.state_tensors().items()}
        stored = {name: (x.shape, x.dtype) for name, x in tensors.items()}
        wrong = sorted(name for name in expected.keys() | stored.keys() if expected.get(name) != stored.get(name))
        if wrong or not 0 <= tensors[_N_UPDATES] < 2**53:
            raise UserError(
                f"the moving average in the checkpoint does not fit this model ({shown((wrong or [_N_UPDATES])[0])}): "
                "resume with the configuration of the checkpoint"
            )
        for name, average in self._averages.items():
            average.copy_(part_of(tensors[_PREFIX + name], average))
        self.n_updates = int(tensors[_N_UPDATES])

    @torch.no_grad()
    def _exchange(self) -> None:
        # In place: compiled steps and optimizers keep references to the parameters' memory.
        for names in self._groups:
            parameters = [self._parameters[name].clone() for name in names]
            for name in names:
                self._parameters[name].copy_(self._averages[name])
            for name, value in zip(names, parameters, strict=True):
                self._averages[name].copy_(value)

    def _refuse_while_swapped(self, verb: str) -> None:
        if self._swapped:
            raise ValueError(f"cannot {verb} a moving average while it is swapped into the model")


def average_directories(folders: Sequence[str | Path], out: str | Path) -> None:
    """Write a model directory with the mean weights of several directories; copy other files from the last one.

    Each manifest is verified first. Raises `UserError` unless all directories have the same configuration and
    tokenizers.
    """
    if not folders:
        raise UserError("no model to average: give at least one model directory")
    paths = [files.as_path(folder, "folder") for folder in folders]
    manifests = [Manifest.read(folder).verify(folder) for folder in paths]
    last, names = paths[-1], model_files(manifests[-1])
    alike = [name for name in names if name == CONFIG or "tokenizer" in name]
    for folder, manifest in zip(paths, manifests, strict=True):
        for name in alike:
            if manifest.entries.get(name) != manifests[-1].entries[name]:
                raise UserError(f"{folder} and {last} differ in {name}: give checkpoints of one model")
    weights = mean_of_files([folder / WEIGHTS for folder in paths])
    with files.new_folder(files.as_path(out, "out")) as temporary:
        for name in names:
            if name != WEIGHTS:
                shutil.copyfile(last / name, temporary / name)
        save_tensors(weights, temporary / WEIGHTS)
        Manifest.of(temporary, "model", manifests[-1].step, names).write(temporary)


def mean_of_files(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of each tensor over several files of weights (Vaswani 2017, section 6.1), summed in fp64.

    The files are read one at a time. Raises `UserError` for weights of different models.
    """
    first = read_tensors(paths[0])
    sums = {name: x.to(torch.promote_types(x.dtype, torch.float64)) for name, x in first.items()}
    for path in paths[1:]:
        require_fit(first, path)
        for name, x in read_tensors(path).items():
            sums[name] += x
    return {name: (total / len(paths)).to(first[name].dtype) for name, total in sums.items()}
