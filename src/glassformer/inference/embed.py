"""Vectors of texts, and which of them point the same way."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from glassformer.data.batching import Example
from glassformer.inference.classify import in_batches
from glassformer.models.build import Network
from glassformer.models.heads import pool
from glassformer.models.transformer import Transformer

Vectors = npt.NDArray[np.float32]


@torch.inference_mode()
def embed(network: Network, rows: Sequence[Example], device: torch.device | str = "cpu") -> Vectors:
    """(N, D) the mean of the last hidden states over the tokens of each row, special ones included."""
    assert isinstance(network, Transformer)
    found = np.zeros((len(rows), network.config.d_model), dtype=np.float32)
    was_training = network.training
    network.eval()
    for places, mask, inputs in in_batches(rows, device):
        found[places] = (
            pool(network.hidden(inputs["token_ids"], inputs.get("attention_mask")), mask, "mean").float().cpu().numpy()
        )
    network.train(was_training)
    return found


def nearest(vectors: Vectors, query: Vectors, n: int) -> list[tuple[int, float]]:
    """The `n` vectors (N, D) that point most nearly the same way as `query` (D,): places and cosines, best first.

    >>> nearest(np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]]), np.array([1.0, 0.0]), 2)
    [(1, 1.0), (0, 0.0)]
    """
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    cosines = (vectors @ query) / np.where(lengths == 0, 1, lengths)
    best = np.argsort(-cosines, kind="stable")[:n].tolist()
    return [(place, float(cosines[place])) for place in best]
