"""Chapter 8: masked language modelling, pairs of texts, and one vector per text."""

import torch

from glassformer.apps.course.workshop.exercise import Exercise
from glassformer.apps.course.workshop.exercises.draws import normal
from glassformer.apps.course.workshop.solutions import ch08_bert as solved

CHAPTER = "course/08-bert"
MASKING = f"{CHAPTER}#hide-tokens-and-find-them-again"


def masking_cases() -> list[tuple[object, ...]]:
    generator = torch.Generator().manual_seed(0)
    ids, random_ids = (torch.randint(5, 99, (4, 60), generator=generator) for _ in range(2))
    draws = (torch.rand(4, 60, generator=generator), torch.rand(4, 60, generator=generator))
    is_special = torch.zeros(4, 60, dtype=torch.bool)
    is_special[:, [0, 30, 59]] = True
    cases: list[tuple[object, ...]] = [(ids, is_special, draws, random_ids, 4, rate) for rate in (0.15, 0.4, 1.0)]
    limits = (torch.tensor([[0.25, 0.5, 0.1, 0.2, 0.3]]), torch.tensor([[0.85, 0.1, 0.8, 0.95, 0.9]]))
    cases.append((ids[:1, 1:6], is_special[:1, 1:6], limits, random_ids[:1, 1:6], 4, 0.5))
    return [*cases, (ids[:1], is_special[:1], (draws[0][:1], draws[1][:1]), random_ids[:1], 4, 0.0)]


EXERCISES = (
    Exercise(solved.mask_tokens, MASKING, masking_cases),
    Exercise(
        solved.segments,
        f"{CHAPTER}#the-rest-of-bert",
        lambda: [([7, 8, 9], [10, 11], 1, 2), ([7], [], 1, 2), ([], [7, 7], 3, 4)],
    ),
    Exercise(
        solved.mean_of_tokens,
        f"{CHAPTER}#the-rest-of-bert",
        lambda: [
            (normal(3, 4, 5), torch.tensor([[True] * 4, [True, True, False, False], [False, False, False, True]])),
            (normal(1, 3, 2, seed=1), torch.tensor([[False, True, True]])),
        ],
        has_gradient=True,
    ),
)
