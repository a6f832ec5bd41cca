"""Where the data of a run stands: the files, folders, built-in names and data sets of the hub that it names."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer import files
from glassformer.config.run import DataConfig
from glassformer.data.builtin import PREFIX
from glassformer.data.records import HUB
from glassformer.errors import UserError

_PATHS = ("path", "valid_path", "test_path", "source", "target", "valid_source", "valid_target", "cache_dir")


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
