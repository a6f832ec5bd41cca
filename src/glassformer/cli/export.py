"""glassformer export DIR OUT --to hf"""

from pathlib import Path
from typing import Literal

from glassformer.cli.arguments import Dir


def main(
    directory: Dir,
    out: Path,
    /,
    *,
    to: Literal["hf", "onnx", "gguf", "ct2"] = "hf",
    checkpoint: int | None = None,
    dtype: Literal["float32", "float16", "bfloat16"] = "float32",
) -> int:
    """Export a model to the format of another program, and verify the written files.

    Args:
        out: The new folder for the export.
        to: The format: hf (transformers), onnx, gguf (llama.cpp) or ct2 (CTranslate2).
        checkpoint: Export the checkpoint of this step.
        dtype: Type of the matrices, for gguf.

    Examples:
        glassformer export runs/mybook exported --to hf
    """
    from glassformer.interop.export import export

    exported = export(directory, out, to, step=checkpoint, dtype=dtype)
    for line in exported.said:
        print(line)
    print(f"exported to {exported.folder} (verified)")
    return 0
