"""`glassformer export`: a model directory in the formats of other programs, checked after it was written."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args

from glassformer import files
from glassformer.config.run import Run
from glassformer.errors import UserError
from glassformer.interop.runtimes.gguf import Dtype
from glassformer.model import Model
from glassformer.store import checkpoint
from glassformer.store.model_directory import StoredModel, own_paths, read_model

Target = Literal["hf", "onnx", "gguf", "ct2"]
TARGETS: Mapping[str, str] = {
    "hf": "glassformer.interop.hf",
    "onnx": "glassformer.interop.runtimes.onnx",
    "gguf": "glassformer.interop.runtimes.gguf",
    "ct2": "glassformer.interop.runtimes.ct2",
}
"""Where the `write_TARGET(stored, folder)` of each target is: it fills a folder, checks it, and says what it found."""


@dataclass(frozen=True)
class Exported:
    """What was written: the folder, and what its check found, line by line."""

    folder: Path
    said: tuple[str, ...]


def export(
    model: Model | str | Path, out: str | Path, to: Target = "hf", *, step: int | None = None, dtype: Dtype = "float32"
) -> Exported:
    """Writes a model directory, or a loaded model, into the new folder `out`, for transformers, ONNX, llama.cpp or
    CTranslate2.

    `step` takes one of a run's checkpoints; `dtype` is that of the matrices in GGUF. `UserError`, and nothing written,
    when the target cannot hold the model exactly, or when what was written does not compute the same.
    """
    if to not in get_args(Target):
        raise UserError(f"there is no export to {to!r}: choose one of {', '.join(get_args(Target))}")
    if dtype != "float32" and to != "gguf":
        raise UserError(f"the export to {to} writes float32: only gguf is written as {dtype}")
    if isinstance(model, Model):
        if step is not None:
            raise UserError("step takes a checkpoint of a folder: give the folder, or load(folder, step=…)")
        _require_plain(model.run, model.name)
        with tempfile.TemporaryDirectory() as place:  # the weights as they are in memory now
            return export(model.save(Path(place) / "model"), out, to, dtype=dtype)
    folder, out = files.as_path(model, "model"), files.as_path(out, "out")
    path = folder if step is None else checkpoint.find(folder, step)
    files.require_new_folder(out, own_paths(folder))
    stored = read_model(path)
    _require_plain(stored.run, folder)
    with files.new_folder(out) as new:
        said = write_checked(stored, new, to, dtype)
    return Exported(out, tuple(said))


def _require_plain(run: Run, name: str | Path) -> None:
    if run.lora is not None:
        raise UserError(f"{name} has adapted layers (LoRA): `glassformer merge {name} --out …` first, then export that")


def write_checked(stored: StoredModel, folder: Path, to: Target, dtype: Dtype = "float32") -> list[str]:
    """Fills an existing, empty folder."""
    options = {} if dtype == "float32" else {"dtype": dtype}
    said: list[str] = getattr(import_module(TARGETS[to]), f"write_{to}")(stored, folder, **options)
    return said
