"""Patching: the share of a prediction that each layer and position of a clean run restores in a corrupted run."""

from dataclasses import asdict, dataclass
from typing import Any

from glassformer.inspection.lens import head_stack
from glassformer.inspection.patching import patch_residual, patching_of
from glassformer.inspector import page_data
from glassformer.inspector.app import route
from glassformer.inspector.inspector import Inspector
from glassformer.models.transformer import Transformer


@dataclass(frozen=True)
class Texts:
    """Two texts with their answers; an encoder-decoder has two sources and one target prefix."""

    clean: str
    corrupted: str
    answer: str | None = None
    wrong: str | None = None
    target: str | None = None


@route("POST", "/api/patch")
def patch(inspector: Inspector, texts: Texts, stack: str | None = None, model: str | None = None) -> dict[str, Any]:
    """Answer the share that each layer and position of the clean run restores in the corrupted run.

    `stack` is the encoder or the decoder, by default the one that produces the output.
    """
    chosen = inspector.model_of(model)
    answers = texts.answer or None, texts.wrong or None
    pair = patching_of(chosen, texts.clean, texts.corrupted, *answers, target=texts.target or None)
    network = chosen.network
    assert isinstance(network, Transformer)  # `patching_of`
    which = page_data.kind_named(stack or head_stack(network), "stack")
    restored = patch_residual(network, pair, which)
    clean_tokens, corrupted_tokens = pair.tokens[which]
    target = None
    if chosen.is_seq2seq:
        target, _ = pair.tokens["decoder"]
    answer, wrong = chosen.tokenizer.tokens([pair.answer, pair.wrong])
    return {
        "model": page_data.model_id(chosen),
        "unknown": page_data.unknown_in(chosen, asdict(texts)),
        "stack": which,
        "tokens_clean": clean_tokens,
        "tokens_corrupted": corrupted_tokens,
        "target": target,
        "layers": restored.layers,
        "map": restored.shares.tolist(),
        "clean": restored.clean,
        "corrupted": restored.corrupted,
        "answer": answer,
        "wrong": wrong,
    }
