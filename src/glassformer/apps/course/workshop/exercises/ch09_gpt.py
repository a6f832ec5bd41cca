"""Chapter 9: labels, losses, sampling and the cache of a language model."""

import torch

from glassformer.apps.course.workshop.exercise import Exercise
from glassformer.apps.course.workshop.exercises.draws import normal
from glassformer.apps.course.workshop.solutions import ch09_gpt as solved

CHAPTER = "course/09-gpt"
WRITE = f"{CHAPTER}#write"
CACHE = f"{CHAPTER}#a-context-that-slides"
POSITIONS = "course/12-classical-mistakes#positions-counted-from-the-first-column-32"
NATS, COUNTS = [12.0, 3.0, 40.0], [8, 1, 16]


def cache_cases() -> list[tuple[object, ...]]:
    def new(n_tokens: int) -> tuple[torch.Tensor, ...]:
        return tuple(normal(2, 3, n_tokens, 4, seed=seed) for seed in range(3))

    cache = (normal(2, 3, 5, 4, seed=7), normal(2, 3, 5, 4, seed=8))
    return [(*new(4), None), (*new(1), cache), (*new(3), cache)]


EXERCISES = (
    Exercise(
        solved.shift,
        f"{CHAPTER}#predict-the-next-token",
        lambda: [(torch.arange(2, 12).view(2, 5),), (torch.tensor([[3, 7]]),)],
    ),
    Exercise(
        solved.mean_loss,
        f"{CHAPTER}#training",
        lambda: [(torch.tensor(NATS), torch.tensor(COUNTS)), (torch.tensor([5.0, 1.0]), torch.tensor([3, 0]))],
        has_gradient=True,
    ),
    Exercise(solved.perplexity, f"{CHAPTER}#predict-the-next-token", lambda: [(NATS, COUNTS), ([2.0], [4])]),
    Exercise(
        solved.with_temperature,
        WRITE,
        lambda: [
            *((normal(2, 5), t) for t in (0.5, 1.0, 2.0, 0.0)),
            *((normal(2, 3, 5), t) for t in (0.5, 0.0)),
            (torch.tensor([1.0, 3.0, 3.0]), 0.0),
        ],
    ),
    Exercise(
        solved.top_k,
        WRITE,
        lambda: [(normal(2, 6), 2), (normal(2, 6), 6), (normal(2, 6), 9), (torch.tensor([2.0, 1.0, 2.0, 3.0]), 2)],
    ),
    Exercise(
        solved.top_p,
        WRITE,
        lambda: [
            (torch.tensor([[0.2, 0.5, 0.3], [0.9, 0.04, 0.06]]).log(), 0.7),
            (normal(3, 8), 0.6),
            (normal(3, 8), 0.0),
            (normal(3, 8), 1.1),
            (torch.zeros(2), 0.5),
            (torch.tensor([0.4, 0.2, 0.2, 0.2]).log(), 0.5),
        ],
    ),
    Exercise(
        solved.draw,
        WRITE,
        lambda: (
            [(torch.tensor([0.0, 0.5, 0.25, 0.25]), u) for u in (0.0, 0.3, 0.5, 0.8)]
            + [(torch.tensor([0.3, 0.3, 0.39]), u) for u in (0.1, 0.999)]
        ),
    ),
    Exercise(
        solved.positions_of,
        POSITIONS,
        lambda: [(torch.tensor([[False, False, True, True, True], [True] * 5]),), (torch.tensor([[False, True]]),)],
    ),
    Exercise(solved.attend_with_cache, CACHE, cache_cases, has_gradient=True),
)
