"""Masked language modelling."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glassformer.data.batching import NOT_SCORED, Batch, Example, pad, padded
from glassformer.objectives.loss import TokenObjective
from glassformer.objectives.noise import mask_tokens
from glassformer.tokenization.special_tokens_template import Frame
from glassformer.tokenization.word_boundaries import WordBoundaries


@dataclass(frozen=True)
class MaskedObjective(TokenObjective):
    """Masked language modelling: maximise Σ log p(tokenᵢ | text with masks) over the chosen tokens (Devlin 2019, 3.1).

    The chosen tokens are drawn again at every step, from (seed, step). The head computes logits for them only.
    """

    mask_id: int
    edges: WordBoundaries
    """Word boundaries of the tokenizer; special tokens are never chosen."""
    mask_prob: float = 0.15
    whole_words: bool = False
    frame: Frame = Frame()
    """Special tokens around every row: `[CLS]` and `[SEP]`."""
    label_smoothing: float = 0.0

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
        """Make a batch of rows `[CLS]` ids `[SEP]` with some ids masked, and the original ids as labels."""
        masked = [self._masked(self.whole(e.token_ids), rng) for e in examples]
        token_ids, mask = padded([ids for ids, _ in masked])
        labels, _ = pad([labels for _, labels in masked], NOT_SCORED)
        loss_positions = (labels.flatten() != NOT_SCORED).nonzero().squeeze(1)
        return Batch(
            token_ids=token_ids,
            attention_mask=mask,
            labels=labels,
            n_targets=len(loss_positions),
            loss_positions=loss_positions,
        )

    def whole(self, token_ids: np.ndarray) -> np.ndarray:
        """Return a row in its frame."""
        return np.concatenate((self.frame.before, token_ids, self.frame.after)).astype(np.int64)

    def _masked(self, row: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        text = np.flatnonzero(~self.edges.special)
        continues = self.edges.continues(row) if self.whole_words else None
        return mask_tokens(
            row,
            rng,
            mask_id=self.mask_id,
            replacements=text,
            maskable=~self.edges.special[row],
            continues=continues,
            mask_prob=self.mask_prob,
        )
