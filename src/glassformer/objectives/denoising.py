"""A text from its ruins: BART's infilling, T5's spans. Noise makes a pair, and the rest is learning a pair."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from glassformer.data.batching import Batch, Example
from glassformer.objectives.loss import Forward, LossSums
from glassformer.objectives.noise import corrupt_spans, infill, permute_sentences
from glassformer.objectives.seq2seq import Seq2SeqObjective
from glassformer.tokenization.word_boundaries import WordBoundaries

Ids = np.ndarray
Noise = Callable[[Ids, np.random.Generator], tuple[Ids, Ids]]
"""A text and randomness → what the encoder reads, and what the decoder is to write."""


@dataclass(frozen=True)
class DenoisingObjective:
    """Maximises Σ log p(what the noise took | what it left), drawn anew for every step."""

    noise: Noise
    pairs: Seq2SeqObjective

    @property
    def label_smoothing(self) -> float:
        return self.pairs.label_smoothing

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
        """Rows of ids → pairs of ruins and targets, as sequence to sequence reads them.

        End tokens between the documents of a row fall away: in a target the first one ends it.
        """
        ruined = [self.noise(self._text(e.token_ids), rng) for e in examples]
        return self.pairs.collate([Example(target, source_ids=source) for source, target in ruined], rng)

    def _text(self, token_ids: Ids) -> Ids:
        text = token_ids[~np.isin(token_ids, self.pairs.target_frame.behind)]
        return text if len(text) else token_ids

    def loss(self, model: Forward, batch: Batch) -> LossSums:
        """The summed cross-entropy of a batch that `collate` made."""
        return self.pairs.loss(model, batch)


def infilling(
    edges: WordBoundaries, mask_id: int, noise_density: float, mean_span_length: float, permute: bool
) -> Noise:
    """Text infilling, and sentences in another order, of which the whole text is to be written (Lewis 2020)."""

    def noise(token_ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        left = permute_sentences(token_ids, rng, ends_sentence=edges.ends_sentence[token_ids]) if permute else token_ids
        return infill(
            left, rng, mask_id=mask_id, noise_density=noise_density, mean_span_length=mean_span_length
        ), token_ids

    return noise


def spans(sentinel_ids: Sequence[int], noise_density: float, mean_span_length: float) -> Noise:
    """Spans under sentinels, of which the spans are to be written (Raffel 2020)."""

    def noise(token_ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        return corrupt_spans(
            token_ids, rng, sentinel_ids=sentinel_ids, noise_density=noise_density, mean_span_length=mean_span_length
        )

    return noise
