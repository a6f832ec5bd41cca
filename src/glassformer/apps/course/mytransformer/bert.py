"""BERT: a masked language model, labels and classes (Devlin et al. 2019)."""

import torch
from torch import Tensor, nn

from .block import Block, Norm, draw_weights, gelu
from .embeddings import Embeddings


def mask_tokens(
    ids: Tensor,
    is_special: Tensor,
    draws: tuple[Tensor, Tensor],
    random_ids: Tensor,
    mask_id: int,
    rate: float,
) -> tuple[Tensor, Tensor]:
    """Hide tokens for masked language modelling; return the inputs and the labels, both
    like `ids` (B, T).

    `draws` are two tensors (B, T) of numbers from 0 to 1, the first for the choice and
    the second for the kind. A token is chosen if its first number is below `rate`, and
    if it is not special. A chosen token becomes `mask_id` if its second number is below
    0.8. It becomes the id of `random_ids` (B, T) at its place if the number is from 0.8
    to below 0.9. Otherwise it stays unchanged. Its label is its id before the change.
    All other labels are -100.
    """
    choice, kind = draws
    is_chosen = (choice < rate) & ~is_special
    labels = ids.masked_fill(~is_chosen, -100)
    inputs = ids.masked_fill(is_chosen & (kind < 0.8), mask_id)
    inputs = torch.where(is_chosen & (kind >= 0.8) & (kind < 0.9), random_ids, inputs)
    return inputs, labels


def segments(
    first: list[int], second: list[int], cls_id: int, sep_id: int
) -> tuple[list[int], list[int]]:
    """Join a pair of texts for BERT: return [CLS] first [SEP] second [SEP], and the
    segment of each token.

    The segment is 0 for [CLS], the first text and its [SEP], and 1 for the second text
    and its [SEP].
    """
    ids = [cls_id, *first, sep_id, *second, sep_id]
    return ids, [0] * (len(first) + 2) + [1] * (len(second) + 1)


def mean_of_tokens(states: Tensor, is_token: Tensor) -> Tensor:
    """Return one vector per text, the mean of the states of its tokens: (B, D).

    `states` (B, T, D) are the states of the last layer; `is_token` (B, T) is True for
    tokens, False for padding. Every text has a token.
    """
    weights = is_token[..., None].to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1)


def masked_batch(
    ids: Tensor,
    is_special: Tensor,
    mask_id: int,
    n_ids: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Draw what `mask_tokens` needs, and return its inputs and labels, both like `ids`.

    15 % of the tokens are chosen. Random ids are from 0 to `n_ids` - 1. Draw first the
    two tensors of numbers, then the ids, all (B, T).
    """
    first, second = (torch.rand(ids.shape, generator=generator) for _ in range(2))
    random_ids = torch.randint(n_ids, ids.shape, generator=generator)
    return mask_tokens(ids, is_special, (first, second), random_ids, mask_id, 0.15)


class BERT(nn.Module):
    """BERT: post-norm blocks that see both sides, three heads, and `draw_weights`.

    The vectors of token, learned position and segment are added and normalised.
    Parameters: `embeddings`; `segments`, a table (2, D); `norm`; `blocks`; for hidden
    tokens `dense` (D → D), `dense_norm`, and `bias` (V,), zeros, beside the table of
    tokens, which is also the output matrix; with `n_labels`, `labels` (D → n_labels).
    The heads are `forward`, `tag` and `classify`.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 64,
        n_heads: int = 4,
        d_ff: int = 256,
        n_layers: int = 2,
        max_len: int = 128,
        n_labels: int = 0,
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(vocab_size, d_model, max_len)
        self.segments, self.norm = nn.Embedding(2, d_model), Norm(d_model)
        self.blocks = nn.ModuleList(
            Block(d_model, n_heads, d_ff, "post") for _ in range(n_layers)
        )
        self.dense, self.dense_norm = nn.Linear(d_model, d_model), Norm(d_model)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        if n_labels:
            self.labels = nn.Linear(d_model, n_labels)
        draw_weights(self)

    def encode(
        self, ids: Tensor, is_token: Tensor, segments: Tensor | None = None
    ) -> Tensor:
        """Return the states (B, T, D) of ids (B, T); without segments, all are 0.

        Positions count places, padding included.
        """
        if segments is None:
            segments = torch.zeros_like(ids)
        x = self.embeddings(ids, torch.arange(ids.shape[1])) + self.segments(segments)
        x = self.norm(x)
        for block in self.blocks:
            x = block(x, is_token[:, None, None])
        return x

    def forward(
        self, ids: Tensor, is_token: Tensor, segments: Tensor | None = None
    ) -> Tensor:
        """Return the logits (B, T, V) of the token at each place."""
        x = self.dense_norm(gelu(self.dense(self.encode(ids, is_token, segments))))
        return x @ self.embeddings.tokens.weight.T + self.bias

    def tag(self, ids: Tensor, is_token: Tensor) -> Tensor:
        """Return the logits of a label for each place: (B, T, n_labels)."""
        return self.labels(self.encode(ids, is_token))

    def classify(self, ids: Tensor, is_token: Tensor) -> Tensor:
        """Return the logits of a label for each text, from its mean: (B, n_labels)."""
        return self.labels(mean_of_tokens(self.encode(ids, is_token), is_token))


@torch.no_grad()
def fill(model: BERT, ids: Tensor, is_token: Tensor, mask_id: int) -> Tensor:
    """Replace each `mask_id` of ids (B, T) by the most probable id at its place.

    One pass of the model, which is put into evaluation mode, gives all of them. The
    argument stays.
    """
    model.eval()
    return torch.where(ids == mask_id, model(ids, is_token).argmax(dim=-1), ids)
