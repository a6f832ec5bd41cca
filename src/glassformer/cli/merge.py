"""glassformer merge DIR --out DIR"""

from dataclasses import replace
from pathlib import Path

import tyro

from glassformer import files
from glassformer.cli.arguments import parse
from glassformer.errors import UserError
from glassformer.models.transforms import merge_lora
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import model_files, read_model, write_model_files


def main(argv: list[str]) -> int:
    return int(parse(merge, argv, "merge") or 0)


def merge(directory: tyro.conf.Positional[Path], out: Path) -> int:
    """A model that was adapted (LoRA) as a plain one: every update is added to its weight.

    Args:
        directory: The model directory.
        out: The new model directory.
    """
    if out.exists():
        raise UserError(f"{out} exists already: name another --out")
    files.require_writable(out)
    stored = read_model(directory)
    n = merge_lora(stored.network)
    if not n:
        raise UserError(f"{directory} has no adapted layers: there is nothing to merge")
    run = replace(stored.run, lora=None)
    with files.new_folder(out) as folder:
        write_model_files(folder, stored.network, stored.tokenizer, run, stored.source_tokenizer, stored.labels)
        Manifest.of(folder, "model", stored.manifest.step, model_files(stored.manifest)).write(folder)
    print(f"{out} holds the model with {n} merged layers")
    return 0
