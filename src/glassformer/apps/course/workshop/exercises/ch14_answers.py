"""Chapter 14: from a model of text to one that answers."""

import torch

from glassformer.apps.course.workshop.exercise import Exercise
from glassformer.apps.course.workshop.exercises.draws import normal
from glassformer.apps.course.workshop.solutions import ch14_answers as solved

CHAPTER = "course/14-a-model-that-answers"
SCORED = f"{CHAPTER}#labels-only-the-answers-count"
LORA = f"{CHAPTER}#few-new-numbers-lora"
PREFERENCES = f"{CHAPTER}#preferences-a-better-and-a-worse-answer"
GROUPS = f"{CHAPTER}#rewards-the-models-own-answers"


def conversations() -> list[tuple[torch.Tensor, torch.Tensor]]:
    assistant = [[0, 0, 0, 1, 1, 0, 0, 0, 1, 0], [0, 1, 1, 1, 0, 0, 0, 0, 0, 0]]
    return [(torch.arange(10, 30).view(2, 10), torch.tensor(assistant) > 0)]


def log_p(scale: float) -> tuple[torch.Tensor, ...]:
    return tuple(scale * normal(6, seed=seed) for seed in range(4))


EXERCISES = (
    Exercise(solved.answer_labels, SCORED, conversations),
    Exercise(
        solved.lora,
        LORA,
        lambda: [
            (normal(2, 3, 6), normal(4, 6, seed=1), normal(r, 6, seed=2), normal(4, r, seed=3), alpha)
            for r, alpha in ((2, 8.0), (3, 1.0))
        ],
        has_gradient=True,
    ),
    Exercise(
        solved.merged_lora,
        LORA,
        lambda: [
            (normal(4, 6), normal(2, 6, seed=1), normal(4, 2, seed=2), 8.0),
            (normal(5, 5), normal(3, 5, seed=1), normal(5, 3, seed=2), 1.0),
        ],
    ),
    Exercise(
        solved.dpo_loss,
        PREFERENCES,
        lambda: [(*log_p(1.0), 0.1), (*log_p(3.0), 0.5), (*log_p(400.0), 1.0)],
        has_gradient=True,
    ),
    Exercise(
        solved.group_advantages,
        GROUPS,
        lambda: [
            (torch.tensor([[0.0, 1.0, 0.0, 4.0], [3.0, 3.0, 3.0, 3.0], [-1.0, 1.0, 2.0, 2.0]]),),
            (torch.tensor([[0.0, 1e-4, 2e-4, 1e-4]]),),
        ],
    ),
)
