"""glassformer merge DIR --out DIR"""

from pathlib import Path

from glassformer.apps.cli.arguments import Dir


def main(directory: Dir, /, *, out: Path, checkpoint: int | None = None) -> int:
    """Merge the updates of an adapted model (LoRA) into its weights, and write it as a plain model.

    Args:
        out: The new model directory.
        checkpoint: Merge the checkpoint of this step.

    Examples:
        glassformer merge runs/adapted --out merged
    """
    from glassformer import api

    print(f"{out}: model with {api.merge(directory, out, step=checkpoint)} merged layers")
    return 0
