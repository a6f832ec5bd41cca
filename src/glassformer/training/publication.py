"""What the run's own folder holds: the weights of a checkpoint, or the mean of the newest."""

from pathlib import Path

from torch import nn

from glassformer.config.train import TrainConfig
from glassformer.distributed.parts import part_of
from glassformer.errors import UserError
from glassformer.store import checkpoint
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import WEIGHTS, has_weights_of, is_published, load_weights, publish
from glassformer.training.averaging import average_directories
from glassformer.training.checkpointer import publish_step
from glassformer.training.host import Host
from glassformer.training.trainer_state import TrainerState


def chosen_step(config: TrainConfig, progress: TrainerState) -> int:
    """Whose weights the run's own folder holds."""
    return progress.best_step or progress.step if config.select == "best" else progress.step


def put_right(folder: Path, config: TrainConfig, progress: TrainerState, host: Host) -> None:
    """Publish the chosen step, where the run died between a checkpoint and its publication.

    Where that checkpoint is damaged, the search for the best starts anew.
    """

    def verify() -> None:
        step = chosen_step(config, progress)
        if host.ranks.is_first and not is_published(folder, step):
            chosen = checkpoint.path_of(folder, step)
            Manifest.read(chosen).verify(chosen)

    try:
        host.ranks.raise_together(verify)
    except UserError as error:
        host.reporter.log(f"{error}; its weights were the best so far, and the search for the best starts anew")
        progress.best = progress.best_step = None
    host.ranks.raise_together(
        lambda: publish_step(folder, chosen_step(config, progress)) if host.ranks.is_first else None
    )


class MeanOfCheckpoints:
    """The mean of the weights of a run's newest checkpoints, which its own folder holds in the end."""

    def __init__(self, folder: Path, config: TrainConfig, progress: TrainerState, host: Host) -> None:
        self.folder, self.step, self.host = folder, progress.step, host
        self.steps = progress.scheduled or checkpoint.steps(folder)[-config.keep_checkpoints :]
        self.place = checkpoint.path_of(folder, self.step).parent / "average"

    @property
    def stays(self) -> bool:
        """Whether it is published and cannot be taken again, since the checkpoints are not all there any more."""
        is_there = all(checkpoint.path_of(self.folder, step).is_dir() for step in self.steps)
        return not is_there and is_published(self.folder, self.step)

    def load(self, network: nn.Module) -> None:
        """Takes the mean, and puts it into the network of every process."""

        def averaged() -> None:
            if self.host.ranks.is_first:
                log = self.host.reporter.log
                steps = [step for step in self.steps if checkpoint.is_intact(self.folder, step, log)]
                average_directories([checkpoint.path_of(self.folder, step) for step in steps], self.place)
                log(f"the mean of the weights of steps {', '.join(map(str, steps))}:")

        self.host.ranks.raise_together(averaged)
        load_weights(network, self.place / WEIGHTS, part_of)

    @property
    def is_new(self) -> bool:
        """Whether this process is the one to log and publish it."""
        return self.host.ranks.is_first and not has_weights_of(self.folder, self.place)

    def publish(self) -> None:
        publish(self.place, self.folder, self.step)
