"""`glassformer export`: write a model directory in the format of another program, and check the result."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.config.run import Run
from glassformer.store import checkpoint
from glassformer.store.model_directory import StoredModel, own_paths, read_model

if TYPE_CHECKING:
    from glassformer.model import Model

Target = Literal["hf", "onnx", "gguf", "ct2", "web"]
Dtype = Literal["float32", "float16", "bfloat16", "int8"]
DTYPES: Mapping[str, tuple[Dtype, ...]] = {
    "gguf": ("float32", "float16", "bfloat16"),
    "web": ("float32", "bfloat16", "int8"),
}
"""Dtypes of the matrices, by target; the other targets have float32 only."""
TARGETS: Mapping[str, str] = {
    "hf": "glassformer.apps.interop.hf",
    "onnx": "glassformer.apps.interop.runtimes.onnx",
    "gguf": "glassformer.apps.interop.runtimes.gguf",
    "ct2": "glassformer.apps.interop.runtimes.ct2",
    "web": "glassformer.apps.interop.runtimes.web",
}
"""Module of each target: its `write_TARGET(stored, folder)` fills a folder, checks it, and returns a report.

That of `web` writes a file.
"""


@dataclass(frozen=True)
class Exported:
    """Result of an export: the folder, or the file of the target `web`, and the lines of the report."""

    folder: Path
    said: tuple[str, ...]


def export(
    model: "Model | str | Path",
    out: str | Path,
    to: Target = "hf",
    *,
    step: int | None = None,
    dtype: Dtype = "float32",
    license: str | None = None,
) -> Exported:
    """Export a model directory, or a loaded model, to the new folder `out` for transformers, ONNX, GGUF or CTranslate2.

    The folder has a model card, `README.md`, with the licence `license`, such as `mit`, if it is given. The target
    `web` writes an HTML file that runs the model in a browser. `step` selects a checkpoint of a run; `dtype` is the
    dtype of the matrices in GGUF and in a page. Raises `UserError`, and writes nothing, if the target cannot represent
    the model exactly, or if the written files compute different outputs.
    """
    # Arguments, before torch is imported
    if to not in get_args(Target):
        raise UserError(f"unknown export target {to!r}: choose one of {', '.join(get_args(Target))}")
    dtypes = DTYPES.get(to, ("float32",))
    if dtype not in dtypes:
        raise UserError(
            f"dtype: expected {' or '.join(dtypes)} for the target {to}, got {dtype}; only {' and '.join(DTYPES)} have "
            "other dtypes"
        )
    _require_licence(license, to)
    if not isinstance(model, (str, os.PathLike)):
        return _export_loaded(model, out, to, step, dtype, license)
    folder, out = files.as_path(model, "model"), files.as_path(out, "out")
    path = checkpoint.find(folder, step)
    if to == "web" and out.suffix != ".html":
        raise UserError(f"{out}: expected the name of an HTML file for the target web, such as {out.stem}.html")
    if to == "web" and os.path.lexists(out):
        raise UserError(f"{out} already exists: name another file")
    files.require_new_folder(out, own_paths(folder))
    # Write
    from glassformer.apps.interop.card import write_card  # imports torch

    stored = read_model(path)
    _require_plain(stored.run, folder)
    if to == "web":
        return Exported(out, tuple(write_checked(stored, out, to, dtype)))
    with files.new_folder(out) as new:
        report = write_checked(stored, new, to, dtype)
        write_card(stored, path, new, to, license)
    return Exported(out, tuple(report))


def _export_loaded(
    model: "Model", out: str | Path, to: Target, step: int | None, dtype: Dtype, license: str | None
) -> Exported:
    from glassformer.model import Model  # imports torch

    if not isinstance(model, Model):
        raise UserError(f"model must be a path or a model of load(), not {type(model).__name__}")
    if step is not None:
        raise UserError("step selects a checkpoint of a run folder: pass the folder, or use load(folder, step=…)")
    _require_plain(model.run, model.name)
    with tempfile.TemporaryDirectory() as folder:  # the weights in memory
        return export(model.save(Path(folder) / "model"), out, to, dtype=dtype, license=license)


def _require_licence(licence: str | None, to: Target) -> None:
    if licence is None:
        return
    if to == "web":
        raise UserError("license is for the model card in a folder, but the target web writes one file")
    if not licence or not all(letter.isalnum() or letter in "-._" for letter in licence):
        raise UserError(f"license: expected an identifier such as mit or apache-2.0, got {licence!r}")


def _require_plain(run: Run, name: str | Path) -> None:
    if run.lora is not None:
        raise UserError(f"{name} has LoRA adapters: run `glassformer merge {name} --out …`, then export the result")


def write_checked(stored: StoredModel, folder: Path, to: Target, dtype: Dtype = "float32") -> list[str]:
    """Write the export into an existing, empty folder, or to the file of `web`; return the lines of the report."""
    options = {} if dtype == "float32" else {"dtype": dtype}
    report: list[str] = getattr(import_module(TARGETS[to]), f"write_{to}")(stored, folder, **options)
    n_named = {"gguf": 2, "ct2": 0}.get(to, len(stored.generation.end_ids))
    if unnamed := stored.generation.end_ids[n_named:]:
        ends = ", ".join(map(str, unnamed))
        report.append(
            f"the files do not name all end tokens: give the ids of the others ({ends}) to the program that generates"
        )
    return report
