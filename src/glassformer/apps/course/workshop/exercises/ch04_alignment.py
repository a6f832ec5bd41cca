"""Chapter 4: attention over the source."""

import torch
from torch import Tensor

from glassformer.apps.course.workshop.exercise import Exercise
from glassformer.apps.course.workshop.exercises.draws import normal, weights
from glassformer.apps.course.workshop.solutions import ch04_alignment as solved

SECTION = "course/04-attention-is-alignment"
SCORES = f"{SECTION}#multiplicative-and-additive-scores"


def hidden_layer(d_query: int, d_memory: int) -> dict[str, Tensor]:
    """Draw the weights of additive scores with a hidden layer of width 3."""
    return weights(5, query=(d_query, 3), memory=(d_memory, 3), vector=(3,))


def context_cases() -> list[tuple[Tensor, Tensor, Tensor]]:
    is_token = torch.tensor([[True, True, True, True], [True, True, False, False], [False] * 4])
    scores, memory = normal(3, 4, 4), normal(3, 4, 5, seed=1)
    scores[0, 0, 1] = scores[1, 2, 0] = 0.0
    low = torch.tensor([[[-1e12, -2e12, 5.0]]])
    return [(scores, memory, is_token), (low, normal(1, 3, 2), torch.tensor([[True, True, False]]))]


EXERCISES = (
    Exercise(
        solved.dot_scores,
        f"{SECTION}#score-weights-context",
        lambda: [
            (normal(2, 3, 4), normal(2, 5, 4, seed=1)),
            (normal(1, 3, 4), normal(1, 3, 4, seed=1)),
            (normal(1, 2, 4), normal(1, 2, 6, seed=1)),
        ],
        has_gradient=True,
    ),
    Exercise(
        solved.general_scores,
        SCORES,
        lambda: [
            (normal(2, 3, 4), normal(2, 5, 4, seed=1), normal(4, 4, seed=2)),
            (normal(1, 2, 4), normal(1, 3, 6, seed=1), normal(4, 6, seed=2)),
        ],
        has_gradient=True,
    ),
    Exercise(
        solved.additive_scores,
        SCORES,
        lambda: [
            (normal(2, 3, 4), normal(2, 5, 4, seed=1), hidden_layer(4, 4)),
            (normal(1, 2, 4), normal(1, 3, 6, seed=1), hidden_layer(4, 6)),
        ],
        has_gradient=True,
    ),
    Exercise(solved.context, f"{SECTION}#score-weights-context", context_cases, has_gradient=True),
)
