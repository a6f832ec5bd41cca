"""Decoding with CTranslate2, of the model that `decode_translation.exported` has written."""

import json
from pathlib import Path

from task import Task


def translator(folder: str, beam: int) -> Task:
    """Decode the sources of the folder."""
    import ctranslate2

    work = json.loads((Path(folder) / "work.json").read_text("utf-8"))
    sources, n_new = work["sources"], work["n_new"]
    model = ctranslate2.Translator(str(Path(folder) / "ct2"), device="auto", compute_type="float32")

    def decode() -> None:
        found = model.translate_batch(
            sources, beam_size=beam, min_decoding_length=n_new, max_decoding_length=n_new, max_input_length=0
        )
        shortest = min(len(one.hypotheses[0]) for one in found)
        if shortest != n_new:
            raise RuntimeError(f"expected {n_new} new tokens, got {shortest}")

    return Task(decode, amount=len(sources), bytes_read=work["bytes_read"][str(beam)])
