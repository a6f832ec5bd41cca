"""glassformer merge DIR --out DIR"""

from pathlib import Path

import tyro

from glassformer import api
from glassformer.cli.arguments import parse


def main(argv: list[str]) -> int:
    return int(parse(merge, argv, "merge") or 0)


def merge(directory: tyro.conf.Positional[Path], out: Path, checkpoint: int | None = None) -> int:
    """A model that was adapted (LoRA) as a plain one: every update is added to its weight.

    Args:
        directory: The model directory.
        out: The new model directory.
        checkpoint: Merge the checkpoint of this step.
    """
    print(f"{out} holds the model with {api.merge(directory, out, step=checkpoint)} merged layers")
    return 0
