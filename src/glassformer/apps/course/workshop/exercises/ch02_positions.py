"""Chapter 2: softmax, positions and the first gradient."""

import torch

from glassformer.apps.course.workshop.exercise import Exercise
from glassformer.apps.course.workshop.exercises.draws import normal
from glassformer.apps.course.workshop.solutions import ch02_positions as solved

SECTION = "course/02-embeddings-and-positions"
LOSS = f"{SECTION}#a-loss-and-its-gradient"
LARGE = torch.tensor([[1000.0, 1001.0, 999.0], [-1000.0, -1001.0, -1002.0]])

EXERCISES = (
    Exercise(
        solved.softmax,
        LOSS,
        lambda: [(normal(2, 3, 4),), (LARGE,), (torch.tensor([[1000.0, 0.0, 0.0]]),)],
        has_gradient=True,
    ),
    Exercise(solved.sinusoids, f"{SECTION}#sines-and-cosines", lambda: [(5, 6), (40, 16), (1, 2), (3, 5)]),
    Exercise(
        solved.rotate,
        f"{SECTION}#rotary-positions",
        lambda: [
            (normal(2, 3, 5, 8), torch.arange(5)),
            (normal(1, 2, 3, 4, seed=1), torch.tensor([7, 8, 9])),
            (normal(1, 1, 4, 6, seed=2), torch.tensor([0, 0, 1, 30])),
        ],
        has_gradient=True,
    ),
    Exercise(
        solved.gradient_of_softmax_cross_entropy, LOSS, lambda: [(normal(5), 2), (normal(3, seed=1), 0), (LARGE[0], 1)]
    ),
)
