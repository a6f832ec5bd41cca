"""glassformer import HF_DIR|FILE.gguf OUT"""

from pathlib import Path
from typing import Annotated

from glassformer.apps.cli.progress import err
from glassformer.apps.interop.directory import is_gguf, local, read_config
from glassformer.common import files


def main(
    source: Annotated[str, "HF_DIR|FILE.gguf"],
    out: Annotated[Path, "DIR"],
    /,
    *,
    ignore_tensors: tuple[str, ...] = (),
    ignore_keys: tuple[str, ...] = (),
) -> int:
    """Convert a checkpoint of transformers, or a GGUF file of llama.cpp, to a model directory.

    The weights are unchanged; those of a GGUF file, which transformers reads, become float32.

    Args:
        source: A folder with config.json, safetensors and tokenizer.json; hf:OWNER/NAME; or a .gguf file.
        out: The new model directory.
        ignore_tensors: Tensors to skip, by name or pattern, such as "cls.seq_relationship.*".
        ignore_keys: Unknown keys of config.json to ignore, if they do not change the outputs.

    Examples:
        glassformer import hf-folder gpt2
        glassformer import hf:openai-community/gpt2 gpt2
        glassformer import SmolLM2-135M-Instruct.Q4_1.gguf smollm2
    """
    files.require_new_folder(out)
    path = local(source)
    if not is_gguf(path):
        read_config(path)
    from glassformer.apps.interop.importing import import_model  # imports torch

    imported = import_model(source, out, ignore_tensors, log=err, ignore_keys=ignore_keys)
    print(f"{out}: {imported.family} ({imported.architecture}), {imported.n_parameters:,} parameters")
    return 0
