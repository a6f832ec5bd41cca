"""The places of a run: its folder, who holds it, where its data stands, and that the two stay apart."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer import files
from glassformer.config.run import DataConfig, Run
from glassformer.data.builtin import PREFIX
from glassformer.data.records import HUB
from glassformer.data.sources import reads
from glassformer.distributed.environment import RUN_ID, was_restarted
from glassformer.errors import UserError
from glassformer.store import checkpoint, lock
from glassformer.store.lock import locked
from glassformer.store.model_directory import own_paths
from glassformer.training import metrics_log, non_finite

_OF_TORCHRUN = ".torchrun"
"""A file with the name of the `torchrun` that began the run."""
_OF_A_RUN = {checkpoint.FOLDER, metrics_log.NAME, "tensorboard", lock.LOCK, lock.OWNER, _OF_TORCHRUN}
"""What a run that died before its first checkpoint may leave in its folder."""
_PATHS = ("path", "valid_path", "test_path", "source", "target", "valid_source", "valid_target", "cache_dir")
"""Keys of `[data]` that name places."""


def require_new(folder: Path) -> None:
    """`UserError` where the folder holds a run that has got somewhere, or anything else."""
    if checkpoint.steps(folder):
        raise UserError(
            f"{folder} already holds a run: go on with `glassformer resume {folder}`, or name another --out"
        )
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    # A process that is killed may leave half-written files, which the next one deletes.
    strangers = {name for name in names - _OF_A_RUN if not name.startswith(non_finite.PREFIX) and ".tmp" not in name}
    if strangers:
        raise UserError(f"{folder} is not empty ({min(strangers)} is in it): name another --out")


def require_apart(run: Run, folder: Path) -> None:
    """`UserError` where the run's folder would hold what the run reads, or would become part of it."""
    data = [place for name, place in paths_of(run.data).items() if name != "cache_dir"]
    for name in (*data, run.init.path, run.tokenizer.path):
        place = None if name is None else file_of(name)
        if place is None:
            continue
        files.require_apart(folder, own_paths(place) if files.exists(place) and place.is_dir() else [place])
        if name in data and reads(place, folder / metrics_log.NAME):
            raise UserError(
                f"{folder} is inside of {place}, and the run's own {metrics_log.NAME} would become part of the text: "
                "name an --out elsewhere"
            )


def require_run(folder: Path) -> None:
    """`UserError` where there is no run to go on with."""
    if not folder.is_dir():
        raise UserError(f"no such run: {folder}")
    if folder.parent.name == checkpoint.FOLDER:
        raise UserError(f"{folder} is a checkpoint: resume takes the run's folder, {folder.parent.parent}")


def is_restarted(folder: Path) -> bool:
    """Whether `torchrun`, which lost a process, has started this one anew for the run that it began in this folder."""
    if not was_restarted() or not checkpoint.steps(folder):
        return False
    path = folder / _OF_TORCHRUN
    return path.is_file() and files.read_text(path) == os.environ.get(RUN_ID)


@contextmanager
def holding(folder: Path, is_first: bool, *, is_new: bool = False) -> Iterator[None]:
    """Inside the block the folder belongs to this run; the first of its processes holds it, and puts it in order."""
    if not is_first:
        yield
        return
    with locked(folder):
        if is_new:
            require_new(folder)  # another process may have been faster
        checkpoint.clean(folder)
        if is_new and (name := os.environ.get(RUN_ID)) is not None:
            files.write_text(folder / _OF_TORCHRUN, name)
        yield


def paths_of(data: DataConfig) -> dict[str, str]:
    """The places that the data's configuration names, by key.

    Raises `UserError` for a name that a `run.toml` cannot hold.
    """
    found = {name: path for name in _PATHS if (path := getattr(data, name, None)) is not None}
    for path in found.values():
        if not path.isprintable():
            raise UserError(f"the name of the data {path!r} has characters that cannot be written down: rename it")
    return found


def with_whole_paths(data: DataConfig) -> DataConfig:
    """The data's place as seen from anywhere: the run may be resumed or evaluated from another folder."""
    paths: dict[str, Any] = {name: _whole(path) for name, path in paths_of(data).items()}
    return replace(data, **paths)


def file_of(place: str) -> Path | None:
    """The file or folder of a place; None for what is built in, or on the hub."""
    if place.startswith(PREFIX):
        return None
    if not place.startswith(HUB):
        return Path(place)
    path = Path(place.removeprefix(HUB).partition("#")[0])  # a name of the hub, or a folder on this disk
    return path if files.exists(path) else None


def _whole(place: str) -> str:
    if place.startswith(PREFIX):
        return place
    if place.startswith(HUB):
        name, mark, split = place.removeprefix(HUB).partition("#")
        return f"{HUB}{Path(name).absolute()}{mark}{split}" if Path(name).is_dir() else place
    return str(Path(place).absolute())
