"""Merge of low-rank updates: writes an adapted model directory as a plain one."""

from dataclasses import replace
from pathlib import Path

from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.store import checkpoint
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import model_files, own_paths, read_model, weights_of, write_model_files


def merge_directory(folder: Path, out: Path, step: int | None = None) -> int:
    """Write the model of `folder`, or its checkpoint of a step, with every update added to its weight.

    Returns the number of merged layers. Raises `UserError` if `out` exists, or if there is nothing to merge.
    """
    path = checkpoint.find(folder, step)
    files.require_new_folder(out, own_paths(folder))
    from glassformer.models.transforms import merge_lora  # imports torch

    stored = read_model(path)
    n = merge_lora(stored.network)
    if not n:
        raise UserError(f"{folder} has no adapted layers: there is nothing to merge")
    run = replace(stored.run, lora=None)
    with files.new_folder(out) as new:
        write_model_files(new, weights_of(stored.network), stored.tokenizers, run, stored.labels)
        Manifest.of(new, "model", stored.manifest.step, model_files(stored.manifest)).write(new)
    return n
