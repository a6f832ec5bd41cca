"""Causal language modelling: next-token prediction."""

from collections.abc import Sequence

import numpy as np

from glassformer.data.batching import FILLING, NOT_SCORED, Batch, Example, pad, padded
from glassformer.objectives.loss import TokenObjective


class CausalObjective(TokenObjective):
    """Causal language modelling objective: maximise Σ log p(tokenᵢ | tokens before it) (Bengio 2003)."""

    def __init__(self, label_smoothing: float = 0.0, start_id: int | None = None) -> None:
        """Set `start_id`, the id that begins documents and is never a target; `None` if it also ends documents."""
        self.label_smoothing, self.start_id = label_smoothing, start_id

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
        """Make a batch of rows of T + 1 ids: inputs without the last id, labels without the first (the only shift).

        Rows of unequal length are padded on the right; padding is neither attended to nor scored. In a packed row,
        positions restart with every document, and the last token of a document does not predict the next document's
        first token. The start token is never a target. So if every document begins with it, the same tokens are targets
        in packed rows and in windows of the text. If an example has `labels`, only its labels are targets.

        >>> rows = [Example(np.array([5, 6, 7])), Example(np.array([8, 9]))]
        >>> batch = CausalObjective().collate(rows, np.random.default_rng(0))
        >>> batch.token_ids.tolist(), batch.labels.tolist(), batch.n_targets
        ([[5, 6], [8, 0]], [[6, 7], [9, -100]], 3)
        """
        token_ids, mask = padded([e.token_ids[:-1] for e in examples])  # (B, T), the mask only if a row is padded
        labels, _ = pad([(e.token_ids if e.labels is None else e.labels)[1:] for e in examples], NOT_SCORED)  # (B, T)
        if self.start_id is not None:
            labels = labels.masked_fill(labels == self.start_id, NOT_SCORED)
        positions = document_ids = None
        if any(e.document_ids is not None for e in examples):
            documents = [_documents(e) for e in examples]
            document_ids, _ = pad([d[:-1] for d in documents], FILLING)
            next_documents, _ = pad([d[1:] for d in documents], FILLING)
            is_target = (document_ids == next_documents) & (document_ids != FILLING)
            labels, mask = labels.masked_fill(~is_target, NOT_SCORED), None  # the document ids hide padding
            positions, _ = pad([_positions(d[:-1]) for d in documents], 0)
        return Batch(
            token_ids=token_ids,
            attention_mask=mask,
            labels=labels,
            n_targets=int((labels != NOT_SCORED).sum()),
            positions=positions,
            document_ids=document_ids,
        )


def answer_rows(examples: Sequence[Example]) -> Batch:
    """Make a causal batch in which each row counts as one target; compute logits only where a label is predicted."""
    batch = CausalObjective().collate(examples, np.random.default_rng(0))
    loss_positions = (batch.labels.flatten() != NOT_SCORED).nonzero().squeeze(1)
    return Batch(**batch.tensors(), n_targets=len(examples), loss_positions=loss_positions)


def _documents(example: Example) -> np.ndarray:
    """Return the document of each token; an example without `document_ids` is a single document."""
    return np.zeros_like(example.token_ids) if example.document_ids is None else example.document_ids


def _positions(documents: np.ndarray) -> np.ndarray:
    """Return each token's position in its document: [0, 0, 1, 1, 1] → [0, 1, 0, 1, 2]."""
    index = np.arange(len(documents))
    begins = np.concatenate(([True], documents[1:] != documents[:-1]))[: len(documents)]
    return index - np.maximum.accumulate(np.where(begins, index, 0))
