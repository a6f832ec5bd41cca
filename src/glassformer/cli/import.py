"""glassformer import HF_DIR OUT"""

from pathlib import Path
from typing import Annotated

from glassformer.cli.progress import err


def main(
    source: Annotated[str, "HF_DIR"],
    out: Annotated[Path, "DIR"],
    /,
    *,
    ignore_tensors: tuple[str, ...] = (),
    ignore_keys: tuple[str, ...] = (),
) -> int:
    """A checkpoint of transformers as a model directory, its weights as they are.

    Args:
        source: A folder with config.json, safetensors and tokenizer.json; or hub:OWNER/NAME.
        out: The new model directory.
        ignore_tensors: Tensors that have no place here, by name or pattern, such as "cls.seq_relationship.*".
        ignore_keys: Keys of config.json that are unknown here and that you know to change no number.
    """
    from glassformer.interop.importing import import_model

    imported = import_model(source, out, ignore_tensors, log=err, ignore_keys=ignore_keys)
    print(f"{out} holds {imported.family} ({imported.architecture}), {imported.n_parameters:,} parameters")
    return 0
