"""glassformer export DIR OUT --to hf"""

from pathlib import Path
from typing import Annotated

import tyro

from glassformer.cli.arguments import parse
from glassformer.interop.export import Target
from glassformer.interop.export import export as export_model
from glassformer.interop.runtimes.gguf import Dtype


def main(argv: list[str]) -> int:
    return int(parse(export, argv, "export") or 0)


def export(
    directory: tyro.conf.Positional[Path],
    out: tyro.conf.Positional[Path],
    to: Annotated[Target, tyro.conf.arg(name="to")] = "hf",
    checkpoint: int | None = None,
    dtype: Dtype = "float32",
) -> int:
    """A model in the format of another program, checked after it was written.

    Args:
        directory: The model directory.
        out: The new folder.
        to: hf (transformers), onnx, gguf (llama.cpp) or ct2 (CTranslate2).
        checkpoint: Export the checkpoint of this step.
        dtype: Of the matrices, for gguf.
    """
    exported = export_model(directory, out, to, step=checkpoint, dtype=dtype)
    for line in exported.said:
        print(line)
    print(f"{exported.folder} is whole")
    return 0
