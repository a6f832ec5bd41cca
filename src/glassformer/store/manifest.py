"""A manifest: the size and SHA-256 of every file of a folder. Nothing is parsed before it agrees."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer import files
from glassformer.errors import UserError

FORMAT_VERSION = 1
NAME = "manifest.json"


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

    def write(self, folder: Path) -> None:
        entries = {name: {"bytes": size, "sha256": digest} for name, (size, digest) in self.entries.items()}
        value = {"format_version": FORMAT_VERSION, "kind": self.kind, "step": self.step, "files": entries}
        files.write_json(folder / NAME, {"sha256": _digest(value), **value})

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        path = folder / NAME
        if not path.exists():
            raise UserError(f"{folder} is not a model directory: it has no {NAME}")
        value: Any = files.read_json(path)
        try:
            if value["format_version"] > FORMAT_VERSION:
                raise UserError(f"{path} is of a newer format ({value['format_version']}): update glassformer")
            if value.pop("sha256", None) != _digest(value):
                raise ValueError("it is not what was written")
            entries = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in value["files"].items()}
            return cls(str(value["kind"]), int(value["step"]), entries)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} is damaged: {error}") from error

    def verify(self, folder: Path) -> None:
        """`UserError` naming the first file that is missing or not the one that was written."""
        for name, (size, digest) in self.entries.items():
            path = folder / name
            if folder.resolve() not in path.resolve().parents:
                raise UserError(f"{folder / NAME} names {name}, which is outside of the folder")
            if not path.is_file():
                raise UserError(f"{folder} is damaged: {name} is missing")
            try:
                agrees = path.stat().st_size == size and files.sha256(path) == digest
            except OSError as error:
                raise UserError(f"cannot read {path}: {files.reason(error)}") from error
            if not agrees:
                raise UserError(f"{folder} is damaged: {name} is not the file that was written")


def _digest(value: dict[str, Any]) -> str:
    """Of a manifest's own content, so that a flipped bit in it is seen too."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
