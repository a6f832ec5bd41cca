"""Chapter 5: scaled dot-product attention, masks and heads."""

import torch

from glassformer.apps.course.workshop.exercise import Exercise
from glassformer.apps.course.workshop.exercises.draws import mask, normal, weights
from glassformer.apps.course.workshop.solutions import ch05_attention as solved

SECTION = "course/05-attention"
QUERIES = f"{SECTION}#query-key-and-value"
MASKS = f"{SECTION}#masks"
HEADS = f"{SECTION}#many-heads"


def padded() -> torch.Tensor:
    """Three rows of five tokens; the second has padding at the left, so its first queries have no key."""
    return torch.tensor([[True] * 5, [False, False, True, True, True], [True, True, True, False, False]])


def softmax_cases() -> list[tuple[torch.Tensor, torch.Tensor]]:
    scores, allowed = normal(2, 4, 5), mask(2, 4, 5, seed=1)
    allowed[0, 2] = False
    scores[1, 1] = 0.0
    low = torch.tensor([[-1e12, -2e12, 0.0], [-3e4, -3e4, 1.0], [-500.0, -501.0, 1.0]])
    return [(scores, allowed), (low, torch.tensor([[True, True, False]] * 3))]


def attention_cases() -> list[tuple[torch.Tensor, ...]]:
    allowed = mask(2, 3, 4, 6, seed=3) | torch.eye(4, 6, dtype=torch.bool)
    query, key, value = normal(2, 3, 4, 8), normal(2, 3, 6, 8, seed=1), normal(2, 3, 6, 5, seed=2)
    scores = torch.tensor([[1e6, 0.0]]), torch.tensor([[-1e6, 0.0], [0.0, 1.0]])  # -1e12 and 0, divided by √2
    low = (*scores, normal(2, 3), torch.tensor([[True, False]]))
    without_keys = allowed.clone()
    without_keys[0, 1, 2] = False
    everything = torch.ones_like(allowed)
    return [(query, key, value, allowed), (3 * query, key, value, everything), low, (query, key, value, without_keys)]


def heads_cases() -> list[tuple[object, ...]]:
    w = weights(4, **dict.fromkeys("qkvo", (6, 6)))
    x, memory, allowed = normal(2, 3, 6), normal(2, 4, 6, seed=1), mask(2, 1, 3, 4, seed=9)
    short = (memory[:, :3], w, 2, allowed[..., :3])  # as many keys as queries
    causal = solved.causal_mask(3)[None, None]
    return [(x, memory, w, 2, allowed), (x, memory, w, 3, allowed), (x, *short), (x, x, w, 2, causal)]


EXERCISES = (
    Exercise(solved.causal_mask, MASKS, lambda: [(1,), (5,)]),
    Exercise(solved.causal_and_padding_mask, MASKS, lambda: [(padded(),), (padded()[:1],)]),
    Exercise(solved.masked_softmax, MASKS, softmax_cases, has_gradient=True),
    Exercise(solved.attention, QUERIES, attention_cases, has_gradient=True),
    Exercise(solved.split_heads, HEADS, lambda: [(normal(2, 3, 8), 4), (normal(1, 5, 6), 1), (normal(2, 3, 8), 3)]),
    Exercise(solved.join_heads, HEADS, lambda: [(normal(2, 4, 3, 2),), (normal(1, 1, 5, 3),)]),
    Exercise(solved.multi_head_attention, HEADS, heads_cases, has_gradient=True),
)
