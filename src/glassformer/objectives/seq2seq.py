"""The target from the source, token by token."""

from collections.abc import Sequence

import numpy as np

from glassformer.data.batching import Batch, Example, pad
from glassformer.objectives.loss import NOT_SCORED, LossSums, token_cross_entropy
from glassformer.objectives.objective import Model


class Seq2SeqObjective:
    """Maximises Σ log p(tokenᵢ | source, target tokens before it), fed with the true ones (Sutskever 2014, section 2).

    Source and target are plain ids: the end tokens and the decoder's start token are added here and nowhere else.
    """

    def __init__(self, start_id: int, end_id: int, source_end_id: int | None, label_smoothing: float = 0.0) -> None:
        self.start_id, self.end_id, self.source_end_id = start_id, end_id, source_end_id
        self.label_smoothing = label_smoothing

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
        """Pairs → source + end; the decoder reads start + target, and its labels are target + end.

        >>> targets, sources = [[5, 6], [8]], [[7], [9]]
        >>> pairs = [Example(np.array(t), source_ids=np.array(s)) for t, s in zip(targets, sources, strict=True)]
        >>> batch = Seq2SeqObjective(start_id=1, end_id=2, source_end_id=2).collate(pairs, np.random.default_rng(0))
        >>> batch.source_ids.tolist(), batch.token_ids.tolist(), batch.labels.tolist()
        ([[7, 2], [9, 2]], [[1, 5, 6], [1, 8, 0]], [[5, 6, 2], [8, 2, -100]])
        """
        source_ids, source_mask = pad([self.source(e) for e in examples], 0)
        token_ids, mask = pad([np.concatenate(([self.start_id], e.token_ids)) for e in examples], 0)
        labels, _ = pad([np.concatenate((e.token_ids, [self.end_id])) for e in examples], NOT_SCORED)
        return Batch(
            token_ids=token_ids,
            attention_mask=None if bool(mask.all()) else mask,
            labels=labels,
            n_targets=sum(len(e.token_ids) + 1 for e in examples),
            source_ids=source_ids,
            source_attention_mask=None if bool(source_mask.all()) else source_mask,
        )

    def source(self, example: Example) -> np.ndarray:
        """What the encoder reads: the source and its end token, where its tokenizer has one."""
        if example.source_ids is None:
            raise ValueError("a pair needs source_ids")
        end = [] if self.source_end_id is None else [self.source_end_id]
        return np.concatenate((example.source_ids, end)).astype(np.int64)

    def loss(self, model: Model, batch: Batch) -> LossSums:
        """The summed cross-entropy of a batch that `collate` made."""
        logits = model(**batch.model_inputs())
        return token_cross_entropy(logits, batch.labels, batch.n_targets, self.label_smoothing)
