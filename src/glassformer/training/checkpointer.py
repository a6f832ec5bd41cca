"""Checkpoints of a run: copied from the training loop, written in the background, published and pruned.

`Checkpointer` gets a `Snapshot` of weights and moments. A thread writes the checkpoint, then publishes weights, then
deletes old checkpoints. The process can be killed safely at any time. The next save raises an error of the thread.
"""

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.config.train import TrainConfig
from glassformer.store import checkpoint
from glassformer.store.checkpoint import Tensors, TrainingState
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import is_published, publish
from glassformer.training.distributed.parts import check_parts, join_parts, write_parts
from glassformer.training.distributed.ranks import Ranks
from glassformer.training.host import Host
from glassformer.training.trainer_state import TrainerState

WriteModel = Callable[[Path, Tensors], None]
"""Function that writes the files of a model directory, with the given weights, into a folder."""


@dataclass(frozen=True)
class Snapshot:
    """The state of a run at one step."""

    step: int
    weights: Tensors
    """Weights for the model file: the moving average if there is one."""
    state: TrainingState
    chosen_step: int
    """Step whose weights the run folder publishes from now on."""
    kept: frozenset[int]
    """Steps whose checkpoints are kept besides the newest."""


class Checkpointer:
    """A writer of snapshots, one after another, in a background thread or at once.

    The next `save` or `wait` raises the errors of the thread. A process killed at any moment leaves complete
    checkpoints (`store.checkpoint`). If an old checkpoint cannot be deleted, this is logged, and the next save tries
    again. With `writes=False`, for a replay, nothing is written.
    """

    def __init__(
        self,
        folder: Path,
        write_model: WriteModel,
        *,
        in_background: bool,
        log: Callable[[str], None],
        ranks: Ranks | None = None,
        writes: bool = True,
    ) -> None:
        self.folder, self.write_model, self.log, self.writes = folder, write_model, log, writes
        self.in_background, self.ranks = in_background, ranks or Ranks()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Wait for the previous snapshot, then write this one, or start to write it in the background."""
        if not self.writes:
            return
        self.wait()
        if self.ranks.holds_parts:
            snapshot = self._together(snapshot)
        elif self.ranks.is_first and self.in_background:
            snapshot = _with(snapshot, _copied)
        if self.ranks.is_first and self.in_background:
            self._thread = threading.Thread(target=self._try, args=(snapshot,), daemon=True, name="saving")
            self._thread.start()
        elif not self.in_background:
            if self.ranks.is_first:
                self._try(snapshot)
            self.wait()

    @property
    def has_failed(self) -> bool:
        """True if the next `wait` raises an error."""
        return self._error is not None

    def wait(self) -> None:
        """Wait for pending saves on all ranks; re-raise their errors."""
        self.ranks.raise_together(self._wait)

    def drain(self) -> None:
        """Wait for the writes of this process without raising their errors; the next `wait` raises them."""
        if self._thread is not None:
            self._thread.join()

    def _wait(self) -> None:
        self.drain()
        self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _try(self, snapshot: Snapshot) -> None:
        try:
            self._write(snapshot)
        except BaseException as error:  # re-raised in the main thread
            self._error = error

    def _write(self, snapshot: Snapshot) -> None:
        with files.writing(self.folder):
            checkpoint.save(
                self.folder, snapshot.step, lambda to: self.write_model(to, snapshot.weights), snapshot.state
            )
            publish_step(self.folder, snapshot.chosen_step)
        try:
            checkpoint.prune(self.folder, snapshot.step, 1, set(snapshot.kept))
            checkpoint.clean(self.folder)
        except OSError as error:
            self.log(f"an old checkpoint in {self.folder} cannot be deleted yet: {files.reason(error)}")

    def _together(self, snapshot: Snapshot) -> Snapshot:
        """Write the tensors with all processes; return the snapshot with these files in place of its tensors."""
        # All processes use the same name. If they are killed, `clean` deletes this folder.
        shards = self.folder / checkpoint.FOLDER / f".step-{snapshot.step}.tmp-shards"

        def join(tensors: dict[str, Tensor], into: Path) -> None:
            if self.ranks.is_first:
                join_parts(tensors, into)

        def written(tensors: Tensors, name: str) -> Tensors:
            assert isinstance(tensors, dict)
            # Each phase ends with an all-reduce of success, so a failed rank never leaves the others waiting.
            self.ranks.raise_together(lambda: write_parts(tensors, shards / name))
            self.ranks.raise_together(lambda: join(tensors, shards / name))
            return self.ranks.raise_together(lambda: check_parts(tensors, shards / name))

        try:
            return _with(snapshot, written)
        except BaseException:
            if self.ranks.is_first:  # every process has finished its part
                shutil.rmtree(shards, ignore_errors=True)
            raise


def publish_step(folder: Path, step: int) -> None:
    """Publish the weights of a checkpoint in the run folder; raise `UserError` if the checkpoint is missing."""
    if not is_published(folder, step):
        publish(checkpoint.path_of(folder, step), folder, step)


def _copied(tensors: Tensors, _: str) -> Tensors:
    """Return copies of the tensors in CPU memory, which later steps do not change."""
    assert isinstance(tensors, dict)
    return {name: x.detach().to("cpu", copy=True) for name, x in tensors.items()}


def _with(snapshot: Snapshot, change: Callable[[Tensors, str], Tensors]) -> Snapshot:
    """Return the snapshot with `change` applied to its tensors."""
    state = snapshot.state
    names = ("optimizer", "average", "weights")
    changed: dict[str, Any] = {name: change(x, name) for name in names if (x := getattr(state, name)) is not None}
    return replace(snapshot, weights=change(snapshot.weights, "model"), state=replace(state, **changed))


def chosen_step(config: TrainConfig, progress: TrainerState) -> int:
    """Return the step whose weights the run folder publishes."""
    if config.select == "best" and progress.best_step:
        return progress.best_step
    return progress.step


def republish(folder: Path, config: TrainConfig, progress: TrainerState, host: Host) -> None:
    """Publish the chosen step if the run stopped between a checkpoint and its publication.

    If the checkpoint of the chosen step is damaged, the search for the best step restarts.
    """

    def verify() -> None:
        step = chosen_step(config, progress)
        if host.ranks.is_first and not is_published(folder, step):
            chosen = checkpoint.path_of(folder, step)
            Manifest.read(chosen).verify(chosen)

    try:
        host.ranks.raise_together(verify)
    except UserError as error:
        host.reporter.log(f"{error}; its weights were the best so far, so the search for the best step restarts")
        progress.best = progress.best_step = None

    def publish_chosen() -> None:
        if host.ranks.is_first:
            publish_step(folder, chosen_step(config, progress))

    host.ranks.raise_together(publish_chosen)
