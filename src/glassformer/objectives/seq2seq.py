"""Sequence-to-sequence objectives: targets from sources, and denoising, where noise makes the pairs (BART, T5)."""

from collections.abc import Callable, Sequence

import numpy as np

from glassformer.common.errors import UserError
from glassformer.config.recurrent import ModelConfig
from glassformer.data.batching import NOT_SCORED, Batch, Example, pad, padded
from glassformer.objectives.loss import TokenObjective
from glassformer.tokenization.frames import Frame
from glassformer.tokenization.tokenizer import Tokenizers

Ids = np.ndarray
Noise = Callable[[Ids, np.random.Generator], tuple[Ids, Ids]]
"""Function (ids, generator) → (encoder input, decoder target)."""


class Seq2SeqObjective(TokenObjective):
    """Sequence-to-sequence: maximise Σ log p(tokenᵢ | source, earlier target tokens) (Sutskever 2014, section 2).

    Decoder inputs are the true tokens. Only this class adds the start token, and the special tokens before and after a
    text, so examples have plain ids.
    """

    def __init__(self, start_id: int, source: Frame, target: Frame, label_smoothing: float = 0.0) -> None:
        """Set the special tokens around source and target; a tokenizer of glassformer adds only an end token."""
        self.start_id, self.source_frame, self.target_frame = start_id, source, target
        self.label_smoothing = label_smoothing

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
        """Make a batch of pairs with special tokens; decoder inputs are start + target, and labels are the target.

        >>> end = Frame(after=(2,))
        >>> targets, sources = [[5, 6], [8]], [[7], [9]]
        >>> pairs = [Example(np.array(t), source_ids=np.array(s)) for t, s in zip(targets, sources, strict=True)]
        >>> batch = Seq2SeqObjective(start_id=1, source=end, target=end).collate(pairs, np.random.default_rng(0))
        >>> batch.source_ids.tolist(), batch.token_ids.tolist(), batch.labels.tolist()
        ([[7, 2], [9, 2]], [[1, 5, 6], [1, 8, 0]], [[5, 6, 2], [8, 2, -100]])
        """
        source_ids, source_mask = padded([self.source(e) for e in examples])  # (B, S)
        targets = [_framed(self.target_frame, e.token_ids) for e in examples]
        token_ids, mask = padded([np.concatenate(([self.start_id], target[:-1])) for target in targets])  # (B, T)
        labels, _ = pad(targets, NOT_SCORED)
        return Batch(
            token_ids=token_ids,
            attention_mask=mask,
            labels=labels,
            n_targets=sum(map(len, targets)),
            source_ids=source_ids,
            source_attention_mask=source_mask,
        )

    def source(self, example: Example) -> np.ndarray:
        """Return the encoder input: the ids of the source with the special tokens before and after them."""
        if example.source_ids is None:
            raise ValueError("example.source_ids is missing: give every pair a source")
        return _framed(self.source_frame, example.source_ids)


def objective_of(model: ModelConfig, tokenizers: Tokenizers, label_smoothing: float) -> Seq2SeqObjective:
    """Return the objective with the ids of the model and its tokenizers."""
    if model.decoder_start_id is None or model.eos_id is None:
        raise UserError("an encoder-decoder needs decoder_start_id and eos_id in its configuration")
    source, target = tokenizers.source.frames.source, tokenizers.target.frames.target
    return Seq2SeqObjective(model.decoder_start_id, source, target, label_smoothing)


def _framed(frame: Frame, token_ids: np.ndarray) -> np.ndarray:
    return np.concatenate((frame.before, token_ids, frame.after)).astype(np.int64)


class DenoisingObjective(TokenObjective):
    """Denoising objective: maximise Σ log p(target | corrupted text); noise is drawn again at every step."""

    def __init__(self, noise: Noise, pairs: Seq2SeqObjective) -> None:
        self.noise, self.pairs, self.label_smoothing = noise, pairs, pairs.label_smoothing

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
        """Make a batch of pairs of corrupted rows and targets for the sequence-to-sequence objective.

        End tokens between the documents of a row are removed, because the first end token ends a target.
        """
        ruined = [self.noise(self._text(e.token_ids), rng) for e in examples]
        return self.pairs.collate([Example(target, source_ids=source) for source, target in ruined], rng)

    def _text(self, token_ids: Ids) -> Ids:
        text = token_ids[~np.isin(token_ids, self.pairs.target_frame.after)]
        return text if len(text) else token_ids
