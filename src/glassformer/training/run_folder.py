"""The folder of a run: the lock, the paths of the data, and checks that folder and data do not overlap."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.config.run import DataConfig, Run
from glassformer.data.addresses import absolute, local_path, reads
from glassformer.store import checkpoint
from glassformer.store.lock import locked
from glassformer.store.model_directory import OF_A_RUN, own_paths
from glassformer.training import metrics_log, non_finite
from glassformer.training.distributed import RUN_ID, was_restarted

_OF_TORCHRUN = ".torchrun"
"""File with the id of the `torchrun` call that began the run."""
RECORDS = Path("data", "records.jsonl")
"""File in the run folder with the records of data that was in memory."""
_PATHS = ("path", "valid_path", "source", "target", "valid_source", "valid_target", "cache_dir")
"""Keys of `[data]` that contain paths."""


def require_new(folder: Path) -> None:
    """Raise `UserError` if the folder contains a run with a checkpoint, or other files."""
    if checkpoint.steps(folder):
        raise UserError(
            f"{folder} already contains a run: continue it with `glassformer resume {folder}`, or choose another --out"
        )
    names = {path.name for path in folder.glob("*")}
    # A killed process may leave incomplete files, which the next process deletes.
    strangers = {
        name
        for name in names - {*OF_A_RUN, _OF_TORCHRUN}
        if not name.startswith(non_finite.PREFIX) and ".tmp" not in name
    }
    if strangers:
        raise UserError(f"{folder} is not empty (it contains {min(strangers)}): choose another --out")


def require_apart(run: Run, folder: Path) -> None:
    """Raise `UserError` if the run folder would contain data of the run, or become a part of the data.

    Only records that were in memory (`with_records`) may be in the folder.
    """
    data = [address for name, address in paths_of(run.data).items() if name != "cache_dir"]
    teacher = None if run.teacher is None else run.teacher.path
    for address in filter(None, (*data, run.init.path, run.tokenizer.path, teacher)):
        path = local_path(address, "data")
        if path is None or path.absolute() == (folder / RECORDS).absolute():
            continue
        inputs = [path]
        if files.exists(path) and path.is_dir():
            inputs = [*own_paths(path)]
        files.require_apart(folder, inputs)
        if address in data and reads(path, folder / metrics_log.NAME):
            raise UserError(
                f"{folder} is inside {path}, so {metrics_log.NAME} of the run would become part of the data: choose "
                "an --out outside of it"
            )


@contextmanager
def with_records(run: Run, records: str | None, folder: Path) -> Iterator[Run]:
    """Write `records`, data that was in memory, into the run folder; yield the run with the path of this file.

    The records are deleted if the run ends before its first checkpoint. Without records, yield the run unchanged.
    """
    if records is None:
        yield run
        return
    if not is_restarted(folder):
        require_new(folder)
    path = folder / RECORDS
    files.write_text(path, records)
    try:
        yield replace(run, data=replace(run.data, path=str(path)))
    except BaseException:
        if not checkpoint.steps(folder):
            with suppress(OSError):  # the folders may have other files
                path.unlink()
                path.parent.rmdir()
                folder.rmdir()
        raise


def require_run(folder: Path) -> None:
    """Raise `UserError` if the folder is not a run folder."""
    if not folder.is_dir():
        raise UserError(f"no such run: {folder}")
    if folder.parent.name == checkpoint.FOLDER:
        raise UserError(f"{folder} is a checkpoint: resume needs the run folder, {folder.parent.parent}")


def is_restarted(folder: Path) -> bool:
    """Return True if the `torchrun` call that began the run in the folder lost a process and restarted this process."""
    if not was_restarted() or not checkpoint.steps(folder):
        return False
    path = folder / _OF_TORCHRUN
    return path.is_file() and files.read_text(path) == os.environ.get(RUN_ID)


@contextmanager
def holding(folder: Path, is_first: bool, *, is_new: bool = False, **facts: Any) -> Iterator[None]:
    """Lock the folder for this run inside the block, and delete leftover files; rank 0 does this.

    `facts` are passed on to `locked`.
    """
    if not is_first:
        yield
        return
    with locked(folder, **facts):
        if is_new:
            require_new(folder)  # another process may have created the folder first
        checkpoint.clean(folder)
        if is_new and (name := os.environ.get(RUN_ID)) is not None:
            files.write_text(folder / _OF_TORCHRUN, name)
        yield


def paths_of(data: DataConfig) -> dict[str, str]:
    """Return the paths in the data configuration, by key.

    Raises `UserError` for a path that a `run.toml` cannot store.
    """
    paths = {name: path for name in _PATHS if (path := getattr(data, name, None)) is not None}
    for path in paths.values():
        if not path.isprintable():
            raise UserError(f"the path {path!r} contains non-printable characters: rename the file")
    return paths


def with_whole_paths(data: DataConfig) -> DataConfig:
    """Return the data configuration with absolute paths, so that the run works from any working directory."""
    paths: dict[str, Any] = {name: absolute(path) for name, path in paths_of(data).items()}
    return replace(data, **paths)
