"""Patching: the share of a prediction that each place of a clean run restores in a corrupted run."""

from dataclasses import asdict, dataclass, field
from typing import Any

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.inspector import Inspector
from glassformer.common.errors import Progress, UserError
from glassformer.inspection.gradient_patching import PARTS, patch_pairs, rank_correlation
from glassformer.inspection.lens import head_stack
from glassformer.inspection.patching import Patching, Restored, patching_of
from glassformer.models.transformer import Transformer
from glassformer.tasks.trained_model import TrainedModel

MAX_PAIRS = 200
"""Largest number of pairs of a request."""


@dataclass(frozen=True)
class Texts:
    """Two texts with their answers; an encoder-decoder has two sources and one target prefix."""

    clean: str
    corrupted: str
    answer: str | None = None
    wrong: str | None = None
    target: str | None = None


@dataclass(frozen=True)
class More:
    """More pairs of texts, one per line; line i of both lists is a pair.

    An answer may follow its text after a tab; by default it is the prediction.
    """

    more_clean: list[str] = field(default_factory=list)
    more_corrupted: list[str] = field(default_factory=list)


@route("POST", "/api/patch")
def patch(
    inspector: Inspector,
    texts: Texts,
    more: More,
    stack: str | None = None,
    parts: str = "positions",
    model: str | None = None,
) -> dict[str, Any]:
    """Answer the share that each place of the clean run restores in the corrupted run, exact and by its gradient.

    `stack` is the encoder or the decoder, by default the one that produces the output. `parts` are positions of the
    residual stream, or heads. With more pairs, the shares are means over all pairs.
    """
    # The pairs of texts
    chosen = inspector.model_of(model)
    if parts not in PARTS:
        raise UserError(f"parts: expected positions or heads, got {parts!r:.40}")
    if stack not in (None, "encoder", "decoder"):
        raise UserError(f"stack: expected encoder or decoder, got {stack!r:.40}")
    report = inspector.reporting()
    first, *_ = pairs = _pairs(chosen, texts, more, report)
    network = chosen.network
    assert isinstance(network, Transformer)  # `patching_of`
    # Patch each part of the stack, exactly and by gradients
    which = page_data.kind_named(stack or head_stack(network), "stack")
    exact, estimated = patch_pairs(network, pairs, parts, which, report)
    clean_tokens, corrupted_tokens = first.tokens[which]
    answer, wrong = chosen.tokenizer.tokens([first.answer, first.wrong])
    target = None
    if chosen.is_seq2seq:
        target, _ = first.tokens["decoder"]
    return {
        "model": page_data.model_id(chosen),
        "unknown": page_data.unknown_in(chosen, asdict(texts)),
        "stack": which,
        "parts": parts,
        "n_texts": exact.n_texts,
        "tokens_clean": clean_tokens,
        "tokens_corrupted": corrupted_tokens,
        "columns": exact.columns,
        "target": target,
        "layers": exact.layers,
        "map": exact.shares.tolist(),
        "estimate": estimated.shares.tolist(),
        **page_data.without_nan({"correlation": rank_correlation(exact, estimated)}),
        "beside": _beside(exact),
        "clean": exact.clean,
        "corrupted": exact.corrupted,
        "answer": answer,
        "wrong": wrong,
    }


def _pairs(model: TrainedModel, texts: Texts, more: More, report: Progress) -> list[Patching]:
    """Return the runs of all pairs of texts; `report` ends work that takes too long."""
    clean, corrupted = more.more_clean, more.more_corrupted
    if len(clean) != len(corrupted):
        raise UserError(f"there are {len(clean)} more clean texts and {len(corrupted)} corrupted ones: give pairs")
    if len(clean) > MAX_PAIRS:
        raise UserError(f"there are {len(clean)} more pairs and a request takes at most {MAX_PAIRS}: leave some out")
    answers = texts.answer or None, texts.wrong or None
    first = patching_of(model, texts.clean, texts.corrupted, *answers, target=texts.target or None)
    pairs = [first]
    for lines in zip(clean, corrupted, strict=True):
        report(0, 1 + len(clean))
        pairs.append(_pair_of_lines(model, 1 + len(pairs), *lines))
    return pairs


def _pair_of_lines(model: TrainedModel, number: int, clean: str, corrupted: str) -> Patching:
    """Return the runs of a pair of lines; a text may be followed by a tab and its answer."""
    (clean, _, answer), (corrupted, _, wrong) = clean.partition("\t"), corrupted.partition("\t")
    try:
        return patching_of(model, clean, corrupted, answer or None, wrong or None)
    except UserError as error:
        raise UserError(f"pair {number}: {error}") from error


def _beside(restored: Restored) -> list[list[dict[str, Any]]]:
    """Return the share of each cell with its spread, beside the mean of the other cells."""
    cells = {cell: page_data.beside(one) for cell, one in restored.beside_others().items()}
    n_rows, n_columns = restored.shares.shape
    return [[cells[i, j] for j in range(n_columns)] for i in range(n_rows)]
