"""Chapter 8: masked language modelling (Devlin et al. 2019, section 3.1 and appendix A.2)."""

import torch
from torch import Tensor


def mask_tokens(
    ids: Tensor, is_special: Tensor, draws: tuple[Tensor, Tensor], random_ids: Tensor, mask_id: int, rate: float
) -> tuple[Tensor, Tensor]:
    """Hide tokens for masked language modelling; return the inputs and the labels, both like `ids` (B, T).

    `draws` are two tensors (B, T) of numbers from 0 to 1, the first for the choice and the second for the kind. A
    token is chosen if its first number is below `rate`, and if it is not special. A chosen token becomes `mask_id` if
    its second number is below 0.8. It becomes the id of `random_ids` (B, T) at its place if the number is from 0.8 to
    below 0.9. Otherwise it stays unchanged. Its label is its id before the change. All other labels are -100.
    """
    choice, kind = draws
    is_chosen = (choice < rate) & ~is_special
    labels = ids.masked_fill(~is_chosen, -100)
    inputs = ids.masked_fill(is_chosen & (kind < 0.8), mask_id)
    inputs = torch.where(is_chosen & (kind >= 0.8) & (kind < 0.9), random_ids, inputs)
    return inputs, labels


def segments(first: list[int], second: list[int], cls_id: int, sep_id: int) -> tuple[list[int], list[int]]:
    """Join a pair of texts for BERT: return [CLS] first [SEP] second [SEP], and the segment of each token.

    The segment is 0 for [CLS], the first text and its [SEP], and 1 for the second text and its [SEP].
    """
    ids = [cls_id, *first, sep_id, *second, sep_id]
    return ids, [0] * (len(first) + 2) + [1] * (len(second) + 1)


def mean_of_tokens(states: Tensor, is_token: Tensor) -> Tensor:
    """Return one vector per text, the mean of the states of its tokens: (B, D).

    `states` (B, T, D) are the states of the last layer; `is_token` (B, T) is True for tokens, False for padding. Every
    text has a token.
    """
    weights = is_token[..., None].to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1)
