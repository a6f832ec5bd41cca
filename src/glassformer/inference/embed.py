"""Text embeddings and the nearest vectors by cosine similarity."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glassformer.common.errors import Log
from glassformer.config.transformer import Head, TransformerConfig, VectorHead
from glassformer.data.batching import Example
from glassformer.inference.classify import Inputs, of_rows, text_rows
from glassformer.models.build import Network
from glassformer.models.devices import evaluation_mode
from glassformer.models.heads import pool
from glassformer.models.transformer import Transformer
from glassformer.tokenization.special_tokens_template import Frame
from glassformer.tokenization.tokenizer import Tokenizer

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Embedder:
    """Model of one stack that computes a vector for each text.

    A causal model also reads the start tokens of `frame` before a text; its vectors leave them out.
    """

    network: Network
    tokenizer: Tokenizer
    device: torch.device | str = "cpu"
    frame: Frame | None = None

    @property
    def config(self) -> TransformerConfig:
        assert isinstance(self.network.config, TransformerConfig)  # one stack
        return self.network.config

    @property
    def head(self) -> Head:
        return self.config.head

    @property
    def size(self) -> int:
        """Size of a vector."""
        return self.config.d_model

    @property
    def max_len(self) -> int:
        """Largest number of tokens of a text; a longer one is cut."""
        cut = self.head.max_tokens if isinstance(self.head, VectorHead) else 0
        return cut or self.config.max_len

    def embed(self, texts: Sequence[str], log: Log) -> Vectors:
        """Return a vector for each text (N, D); `log` receives the number of cut texts."""
        return self.embed_rows(self.rows(texts, log))

    def rows(self, texts: Sequence[str], log: Log) -> list[Example]:
        """Return the ids that the model reads of each text; `log` receives the number of cut texts."""
        return text_rows(self.tokenizer, [(text,) for text in texts], self.max_len, log, frame=self.frame)

    def embed_rows(self, rows: Sequence[Example]) -> Vectors:
        """Return a vector for each row of ids (N, D)."""
        n_before = 0 if self.frame is None else len(self.frame.before)
        return embed(self.network, rows, self.device, n_before=n_before)

    @property
    def description(self) -> str:
        """Description of the vectors of `embed`."""
        return described(self.head, is_causal=self.frame is not None)


@torch.inference_mode()
def embed(
    network: Network, rows: Sequence[Example], device: torch.device | str = "cpu", *, n_before: int = 0
) -> Vectors:
    """Return the vectors (N, D) of all rows in fp32; the vector of a row does not depend on its batch.

    For a model with a vector head, vectors are the result of `forward`. For other models, they are the mean of the last
    hidden states over the tokens of a row, special ones included, without the first `n_before` if the row has more.
    """
    assert isinstance(network, Transformer)
    vectors = np.zeros((len(rows), network.config.d_model), dtype=np.float32)

    def vectors_of(inputs: Inputs, mask: Tensor) -> Tensor:
        if isinstance(network.config.head, VectorHead):
            return network(**inputs)
        types = inputs.get("token_types")
        hidden = network.hidden(inputs["token_ids"], inputs.get("attention_mask"), token_types=types)
        return pool(hidden, _without_first(mask, n_before), "mean")

    with evaluation_mode(network):
        for number, vector in of_rows(vectors_of, rows, device):
            vectors[number] = vector.numpy()
    return vectors


def _without_first(mask: Tensor, n: int) -> Tensor:
    """Return a mask (B, T), True = a real token, without the first `n` tokens of each row that has more.

    >>> _without_first(torch.tensor([[True, True, True], [True, False, False]]), 1).int().tolist()
    [[0, 1, 1], [1, 0, 0]]
    """
    later = mask & (torch.arange(mask.shape[1], device=mask.device) >= n)
    return torch.where(later.any(dim=1, keepdim=True), later, mask)


def described(head: Head, *, is_causal: bool = False) -> str:
    """Describe in words the vectors of a model with this head.

    >>> described(VectorHead("mean", normalize=True, max_tokens=256))
    'the mean of the last hidden states over all tokens, divided by its length; texts are cut to 256 tokens'
    """
    if not isinstance(head, VectorHead):
        whose = "the text's own tokens" if is_causal else "all tokens"
        return f"the mean of the last hidden states over {whose}"
    text = _POOLED[head.pooling]
    if head.pooler not in ("none", "unused"):
        text += f", then a dense layer and {head.pooler}"
    if head.normalize:
        text += ", divided by its length"
    if head.max_tokens:
        text += f"; texts are cut to {head.max_tokens:,} tokens"
    return text


_POOLED = {
    "first": "the last hidden state of the first token",
    "last": "the last hidden state of the last token",
    "mean": "the mean of the last hidden states over all tokens",
    "max": "the maximum of the last hidden states over all tokens",
}


def nearest(vectors: Vectors, query: Vectors, n: int) -> list[tuple[int, float]]:
    """Return indices and cosines of the `n` vectors (N, D) with the highest cosine to `query` (D,), best first.

    >>> nearest(np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]]), np.array([1.0, 0.0]), 2)
    [(1, 1.0), (0, 0.0)]
    """
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    cosines = (vectors @ query) / np.where(lengths == 0, 1, lengths)
    best = np.argsort(-cosines, kind="stable")[:n].tolist()
    return [(number, float(cosines[number])) for number in best]
