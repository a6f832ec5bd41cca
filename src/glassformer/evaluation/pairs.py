"""What an encoder-decoder is worth on pairs: its loss, and the scores of what it writes."""

from collections.abc import Callable, Sequence
from typing import Literal

from glassformer.data.pairs import Pair
from glassformer.evaluation.text import group_by_source, text_scores
from glassformer.inference.translator import Translator
from glassformer.run_config import BeamConfig, PairData

Outputs = Literal["sentences", "pronunciations"]

LOSSES = ("loss", "perplexity", "smoothed_loss", "bits_per_byte")
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
) -> dict[str, float | str]:
    """Decodes every distinct source once and scores the best output.

    Sentences are scored pair by pair, as test sets are; a pronunciation is compared with all that its word has.
    """
    targets = [pair.target for pair in pairs]
    sources, references = group_by_source([pair.source for pair in pairs], targets)
    found = translator.translate(sources, config, progress=progress)
    outputs = [best[0].text for best in found]
    if data.outputs == "pronunciations":
        return text_scores("pronunciations", outputs, references)
    by_source = dict(zip(sources, outputs, strict=True))
    of_pairs = [by_source[pair.source] for pair in pairs]
    return text_scores("sentences", of_pairs, [[target] for target in targets], data.target_language)
