"""Chapter 3: the recurrent cells, the loss and a step of training."""

import torch
from torch import Tensor

from glassformer.apps.course.workshop.exercise import Exercise
from glassformer.apps.course.workshop.exercises.draws import normal, weights
from glassformer.apps.course.workshop.solutions import ch03_recurrent as solved

GATES = "course/03-recurrent-encoder-decoder#gates-gru-and-lstm"
TRAINING = "course/03-recurrent-encoder-decoder#the-loss-and-a-step-of-training"


def cell(n_gates: int, width: int = 4) -> dict[str, Tensor]:
    """Draw the weights of a cell with inputs of width 3 and states of `width`."""
    n = width * n_gates
    return weights(0, weight_ih=(n, 3), weight_hh=(n, width), bias_ih=(n,), bias_hh=(n,))


def loss_cases() -> list[tuple[Tensor, Tensor]]:
    logits, labels = normal(2, 4, 5), torch.tensor([[1, 4, 0, 2], [3, 2, -100, -100]])
    large = torch.tensor([[[1000.0, 0.0, 0.0], [0.0, 2.0, -1000.0]]])
    return [(logits, labels), (logits, labels.clamp(min=0)), *((large, torch.tensor([[label, 1]])) for label in (0, 1))]


def clip_cases() -> list[tuple[list[Tensor], float]]:
    long, short = [3 * normal(2, 3), normal(4, seed=1)], [torch.tensor([0.3, 0.4]), torch.tensor([[0.1]])]
    return [(long, 1.0), (short, 1.0), (short, 0.45), ([torch.zeros(3)], 1.0)]


def adamw_cases() -> list[tuple[object, ...]]:
    weight, gradient = 3 * normal(2, 3), normal(2, 3, seed=1)
    begin = (torch.zeros(2, 3), torch.zeros(2, 3))
    later = (normal(2, 3, seed=2), normal(2, 3, seed=3).square())
    tiny = torch.tensor([1e-4, 2e-5, 1e-8, 0.0])
    return [
        (weight, gradient, begin, 1, 0.1, 0.5),
        (weight, gradient, later, 7, 0.01, 0.0),
        (torch.ones(4), tiny, (torch.zeros(4), torch.zeros(4)), 1, 0.1, 0.1),
    ]


EXERCISES = (
    Exercise(
        solved.gru_step, GATES, lambda: [(normal(2, 3, seed=8), normal(2, 4, seed=9), cell(3))], has_gradient=True
    ),
    Exercise(
        solved.lstm_step,
        GATES,
        lambda: [
            (normal(2, 3, seed=7), normal(2, width, seed=8), normal(2, width, seed=9), cell(4, width))
            for width in (4, 6)
        ],
        has_gradient=True,
    ),
    Exercise(solved.cross_entropy, TRAINING, loss_cases, has_gradient=True),
    Exercise(solved.clip_gradients, TRAINING, clip_cases),
    Exercise(solved.adamw_step, TRAINING, adamw_cases),
    Exercise(
        solved.warmup_then_inverse_root,
        TRAINING,
        lambda: [(step, warmup, peak) for warmup, peak in ((4, 1.0), (100, 3.0)) for step in (1, 2, 4, 5, 100, 1000)],
    ),
)
