"""glassformer merge DIR --out DIR"""

from pathlib import Path

from glassformer.cli.arguments import Dir


def main(directory: Dir, /, *, out: Path, checkpoint: int | None = None) -> int:
    """A model that was adapted (LoRA) as a plain one: every update is added to its weight.

    Args:
        directory: The model directory.
        out: The new model directory.
        checkpoint: Merge the checkpoint of this step.
    """
    from glassformer import api

    print(f"{out} holds the model with {api.merge(directory, out, step=checkpoint)} merged layers")
    return 0
