"""A manifest: the size and SHA-256 of every file of a folder. Nothing is parsed before it agrees."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer import files
from glassformer.errors import UserError, shown

FORMAT_VERSION = 1
NAME = "manifest.json"
KINDS = ("model", "checkpoint")
MAX_FILES = 1000  # a checkpoint has about ten


@dataclass(frozen=True)
class Manifest:
    """What a folder holds: `kind` model or checkpoint, the optimizer step, and path → (bytes, sha256)."""

    kind: str
    step: int
    entries: dict[str, tuple[int, str]]

    @classmethod
    def of(cls, folder: Path, kind: str, step: int, names: list[str]) -> "Manifest":
        """Measures the named files of a folder."""
        entries = {name: ((folder / name).stat().st_size, files.sha256(folder / name)) for name in names}
        return cls(kind, step, entries)

    def write(self, folder: Path, name: str = NAME) -> None:
        entries = {name: {"bytes": size, "sha256": digest} for name, (size, digest) in self.entries.items()}
        value = {"format_version": FORMAT_VERSION, "kind": self.kind, "step": self.step, "files": entries}
        files.write_json(folder / name, {"sha256": _digest(value), **value})

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """What the manifest of a folder says; `UserError` where there is none, or one that says what none can."""
        path = folder / NAME
        if not path.exists():
            for found in sorted(folder.iterdir()) if folder.is_dir() else ():
                if found.is_file():
                    files.refuse_objects(found)  # says how to convert what others keep their weights in
            raise UserError(f"{folder} is not a model directory: it has no {NAME}")
        value: Any = files.read_json(path)
        try:
            if value["format_version"] > FORMAT_VERSION:
                raise UserError(f"{path} is of a newer format ({value['format_version']!s:.20}): update glassformer")
            if value.pop("sha256", None) != _digest(value):
                raise ValueError("it is not what was written")
            if len(value["files"]) > MAX_FILES:
                raise ValueError(f"it names {len(value['files']):,} files")
            entries = {name: (_count(entry["bytes"]), str(entry["sha256"])) for name, entry in value["files"].items()}
            if value["kind"] not in KINDS:
                raise ValueError(f"its kind is {str(value['kind'])!r:.20}, and there are {', '.join(KINDS)}")
            return cls(value["kind"], _count(value["step"]), entries)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} is damaged: {error}") from error

    def require(self, folder: Path, names: list[str]) -> None:
        """`UserError` naming the first file that a folder must have and the manifest does not vouch for."""
        for name in names:
            if name not in self.entries:
                raise UserError(f"{folder} is not a whole {self.kind}: its manifest has no {name}")

    def verify(self, folder: Path) -> None:
        """`UserError` naming the first file that is missing or not the one that was written."""
        for name, (size, digest) in self.entries.items():
            path = folder / name
            if not _is_inside(path, folder):
                raise UserError(f"{folder / NAME} names {shown(name)}, which is outside of the folder")
            try:
                if not path.is_file():
                    raise UserError(f"{folder} is damaged: {shown(name)} is missing")
                agrees = path.stat().st_size == size and files.sha256(path) == digest
            except OSError as error:
                raise UserError(f"cannot read {shown(name)} in {folder}: {files.reason(error)}") from error
            if not agrees:
                raise UserError(f"{folder} is damaged: {name} is not the file that was written")


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether a path, its links followed, ends below a folder; a name with a NUL ends nowhere."""
    try:
        return folder.resolve() in path.resolve().parents
    except (ValueError, OSError, RuntimeError):  # RuntimeError: links in a circle
        return False


def _count(value: Any) -> int:
    """A step, or a size in bytes."""
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError(f"{str(value)!r:.40} is neither a step nor a number of bytes")
    return value


def _digest(value: dict[str, Any]) -> str:
    """Of a manifest's own content, so that a flipped bit in it is seen too."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
