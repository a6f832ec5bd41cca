"""What an encoder-decoder is worth on pairs: its loss, and the scores of what it writes."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from glassformer.config.run import BeamConfig, PairData
from glassformer.data.pairs import Pair
from glassformer.evaluation.division import ALONE, Division
from glassformer.evaluation.text import group_by_source, text_scores
from glassformer.inference.translator import Translator

Outputs = Literal["sentences", "pronunciations"]

LOSSES = ("loss", "perplexity", "smoothed_loss", "bits_per_byte")
"""Metrics that `evaluate_loss` measures; all others are scores of outputs."""
SCORES: dict[Outputs, dict[str, bool]] = {
    "sentences": {"bleu": True, "chrf": True, "bleu_tok_lc": True, "exact_match": True},
    "pronunciations": {"wer": False, "per": False, "exact_match": True},
}
"""The scores of each kind of output, in percent, and whether higher is better."""


def translation_scores(
    translator: Translator,
    pairs: Sequence[Pair],
    data: PairData,
    config: BeamConfig,
    progress: Callable[[int, int], None] | None = None,
    division: Division = ALONE,
) -> dict[str, float | str]:
    """Decodes every distinct source once and scores the best output (`output_scores`).

    `division` deals the batches of sources out among processes.
    """
    sources = distinct_sources(pairs)
    found = translator.translate(sources, config, progress=progress, takes=division.takes)
    own = {source: best[0].text for source, best in zip(sources, found, strict=True) if best}
    outputs = {source: text for part in division.texts(json.dumps(own)) for source, text in json.loads(part).items()}
    return output_scores(outputs, pairs, data)


def distinct_sources(pairs: Sequence[Pair]) -> list[str]:
    """Every source once, in order of appearance."""
    return list(dict.fromkeys(pair.source for pair in pairs))


def output_scores(outputs: Mapping[str, str], pairs: Sequence[Pair], data: PairData) -> dict[str, float | str]:
    """Scores of the output of each source, in percent.

    Sentences are scored pair by pair, as test sets are; a pronunciation is compared with all that its word has.
    """
    targets = [pair.target for pair in pairs]
    if data.outputs == "pronunciations":
        sources, references = group_by_source([pair.source for pair in pairs], targets)
        return text_scores("pronunciations", [outputs[source] for source in sources], references)
    of_pairs = [outputs[pair.source] for pair in pairs]
    return text_scores("sentences", of_pairs, [[target] for target in targets], data.target_language)


def require_scores(outputs: Outputs) -> None:
    """`UserError` when a package is missing that scores of this kind need: told before hours of work."""
    text_scores(outputs, ["a"], [["a"]])
