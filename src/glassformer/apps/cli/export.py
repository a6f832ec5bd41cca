"""glassformer export DIR OUT --to hf"""

from pathlib import Path
from typing import Literal

from glassformer.apps.cli.arguments import Dir


def main(
    directory: Dir,
    out: Path,
    /,
    *,
    to: Literal["hf", "onnx", "gguf", "ct2", "web"] = "hf",
    checkpoint: int | None = None,
    dtype: Literal["float32", "float16", "bfloat16", "int8"] = "float32",
    license: str | None = None,
) -> int:
    """Export a model to the format of another program, verify the written files, and write a model card.

    Args:
        out: The new folder for the export; for web, the new HTML file.
        to: The format: hf (transformers), onnx, gguf (llama.cpp), ct2 (CTranslate2) or web (one HTML file that runs
            the model in a browser).
        checkpoint: Export the checkpoint of this step.
        dtype: Type of the matrices, for gguf and web: float16 only for gguf, int8 only for web.
        license: The licence in the model card, such as mit or apache-2.0; without it, the card states that the
            licence is unknown.

    Examples:
        glassformer export runs/mybook exported --to hf
        glassformer export runs/mybook mybook.html --to web
    """
    from glassformer.apps.interop.export import export

    exported = export(directory, out, to, step=checkpoint, dtype=dtype, license=license)
    for line in exported.said:
        print(line)
    checked = " (verified)" * (to != "web")
    print(f"exported to {exported.folder}{checked}")
    return 0
