"""`glassformer export`: a model directory in the formats of other programs, checked after it was written."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args

from glassformer import files
from glassformer.errors import UserError
from glassformer.interop.runtimes.gguf import Dtype
from glassformer.store import checkpoint
from glassformer.store.model_directory import StoredModel, own_paths, read_model

Target = Literal["hf", "onnx", "gguf", "ct2"]
TARGETS: Mapping[str, str] = {
    "hf": "glassformer.interop.hf",
    "onnx": "glassformer.interop.runtimes.onnx",
    "gguf": "glassformer.interop.runtimes.gguf",
    "ct2": "glassformer.interop.runtimes.ct2",
}
"""Where the `write(stored, folder)` of each target is: it fills a folder, checks it, and says what it found."""


@dataclass(frozen=True)
class Exported:
    """What was written: the folder, and what its check found, line by line."""

    folder: Path
    said: tuple[str, ...]


def export(
    folder: str | Path, out: str | Path, to: Target = "hf", *, step: int | None = None, dtype: Dtype = "float32"
) -> Exported:
    """Writes a model directory into the new folder `out`, for transformers, ONNX, llama.cpp or CTranslate2.

    `step` takes one of a run's checkpoints; `dtype` is that of the matrices in GGUF. `UserError`, and nothing written,
    when the target cannot hold the model exactly, or when what was written does not compute the same.
    """
    if to not in get_args(Target):
        raise UserError(f"there is no export to {to!r}: choose one of {', '.join(get_args(Target))}")
    if dtype != "float32" and to != "gguf":
        raise UserError(f"the export to {to} writes float32: only gguf is written as {dtype}")
    path, out = Path(folder) if step is None else checkpoint.find(Path(folder), step), Path(out)
    files.require_new_folder(out, own_paths(Path(folder)))
    stored = read_model(path)
    if stored.run.lora is not None:
        raise UserError(
            f"{folder} has adapted layers (LoRA): `glassformer merge {folder} --out …` first, then export that"
        )
    with files.new_folder(out) as new:
        said = write(stored, new, to, dtype)
    return Exported(out, tuple(said))


def write(stored: StoredModel, folder: Path, to: Target, dtype: Dtype = "float32") -> list[str]:
    """Fills an existing, empty folder."""
    options = {} if dtype == "float32" else {"dtype": dtype}
    said: list[str] = import_module(TARGETS[to]).write(stored, folder, **options)
    return said
