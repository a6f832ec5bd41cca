"""Manifests: the size and SHA-256 of every file of a folder, which are verified before a file is parsed."""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from glassformer.common import files
from glassformer.common.errors import UserError, shown

FORMAT_VERSION = 1
NAME = "manifest.json"
KINDS = ("model", "checkpoint")
MAX_FILES = 1000  # a checkpoint has about ten


@dataclass(frozen=True)
class Manifest:
    """Contents of a folder: `kind` model or checkpoint, the optimizer step, and path → (bytes, sha256)."""

    kind: str
    step: int
    entries: dict[str, tuple[int, str]]

    @classmethod
    def of(cls, folder: Path, kind: str, step: int, names: list[str]) -> "Manifest":
        """Build the manifest of the named files of a folder."""
        entries = {name: ((folder / name).stat().st_size, files.sha256(folder / name)) for name in names}
        return cls(kind, step, entries)

    def write(self, folder: Path, name: str = NAME) -> None:
        entries = {name: {"bytes": size, "sha256": digest} for name, (size, digest) in self.entries.items()}
        value = {"format_version": FORMAT_VERSION, "kind": self.kind, "step": self.step, "files": entries}
        files.write_json(folder / name, {"sha256": _digest(value), **value})

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest of a folder; raise `UserError` if it is missing or invalid."""
        path = folder / NAME
        if not path.exists():
            if _is_hf_checkpoint(folder):
                raise UserError(
                    f"{folder} is a Hugging Face checkpoint: run `glassformer import {folder} OUT`, or in Python "
                    f"glassformer.import_model({str(folder)!r}, 'OUT'), and use OUT"
                )
            for file in sorted(folder.glob("*")):
                if file.is_file():
                    files.refuse_objects(file)  # its message explains how to convert pickled weights
            raise UserError(f"{folder} is not a model directory: it has no {NAME}")
        value: Any = files.read_json(path)
        try:
            if value["format_version"] > FORMAT_VERSION:
                raise UserError(f"{path} has a newer format ({value['format_version']!s:.20}): update glassformer")
            if value.pop("sha256", None) != _digest(value):
                raise ValueError("its checksum does not match")
            if len(value["files"]) > MAX_FILES:
                raise ValueError(f"it lists {len(value['files']):,} files")
            entries = {name: (_count(entry["bytes"]), str(entry["sha256"])) for name, entry in value["files"].items()}
            if value["kind"] not in KINDS:
                raise ValueError(f"its kind is {str(value['kind'])!r:.20}, expected one of {', '.join(KINDS)}")
            return cls(value["kind"], _count(value["step"]), entries)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} is damaged: {error}") from error

    def require(self, folder: Path, names: list[str]) -> None:
        """Raise `UserError` with the first required file that the manifest does not list."""
        for name in names:
            if name not in self.entries:
                raise UserError(f"{folder} is not a complete {self.kind}: its manifest has no {name}")

    def verify(self, folder: Path, hashed_bytes: float = math.inf) -> Self:
        """Return the manifest; raise `UserError` for the first wrong file. Above `hashed_bytes`, only sizes count."""
        for name, (size, digest) in self.entries.items():
            path = folder / name
            if not _is_inside(path, folder):
                raise UserError(f"{folder / NAME} lists {shown(name)}, which is outside the folder")
            try:
                if not path.is_file():
                    raise UserError(f"{folder} is damaged: {shown(name)} is missing")
                agrees = path.stat().st_size == size and (size > hashed_bytes or files.sha256(path) == digest)
            except OSError as error:
                raise UserError(f"cannot read {shown(name)} in {folder}: {files.reason(error)}") from error
            if not agrees:
                raise UserError(f"{folder} is damaged: {name} is not the file that was written")
        return self


def _is_hf_checkpoint(folder: Path) -> bool:
    """Return True for a folder of transformers, whose `config.json` names a `model_type`."""
    try:
        config = files.read_json(folder / "config.json")
    except UserError:
        return False
    return isinstance(config, dict) and "model_type" in config


def _is_inside(path: Path, folder: Path) -> bool:
    """Return True if a path is inside a folder after following links; False for a name with a NUL."""
    try:
        return folder.resolve() in path.resolve().parents
    except (ValueError, OSError, RuntimeError):  # RuntimeError: circular links
        return False


def _count(value: Any) -> int:
    """Return a valid step or size in bytes; raise `ValueError` otherwise."""
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError(f"{str(value)!r:.40} is neither a step nor a number of bytes")
    return value


def _digest(value: dict[str, Any]) -> str:
    """Return the SHA-256 of the manifest's own content, to detect damage to the manifest itself."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
