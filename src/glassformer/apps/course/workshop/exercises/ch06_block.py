"""Chapter 6: norms, the feed-forward layer and the block."""

import torch
from torch import Tensor

from glassformer.apps.course.workshop.exercise import Exercise
from glassformer.apps.course.workshop.exercises.draws import mask, normal, weights
from glassformer.apps.course.workshop.solutions import ch06_block as solved

CHAPTER = "course/06-the-block"
NORM = f"{CHAPTER}#layernorm-from-its-formula"
LAYER = f"{CHAPTER}#the-feed-forward-layer"


def norm_cases() -> list[tuple[object, ...]]:
    weight, bias = normal(4, seed=1), normal(4, seed=2)
    x = torch.cat((normal(2, 3, 4) + 2, torch.full((2, 1, 4), 3.0)), dim=1)
    return [(x, weight, bias, 1e-5), (0.01 * x, weight, bias, 1e-3)]


def rms_cases() -> list[tuple[object, ...]]:
    x = torch.cat((normal(2, 3, 4) + 1, torch.zeros(2, 1, 4)), dim=1)
    return [(x, normal(4, seed=1), 1e-5), (0.01 * x, normal(4, seed=1), 1e-3)]


def layer(width: int, d_ff: int) -> dict[str, Tensor]:
    """Draw the weights of a feed-forward layer."""
    return weights(20, up=(width, d_ff), up_bias=(d_ff,), down=(d_ff, width), down_bias=(width,))


def block_cases() -> list[tuple[object, ...]]:
    w = weights(1, **dict.fromkeys("qkvo", (6, 6))) | layer(6, 8)
    w |= weights(10, norm_1=(6,), norm_1_bias=(6,), norm_2=(6,), norm_2_bias=(6,))
    own = torch.eye(4, dtype=torch.bool)
    allowed = torch.stack((own | own.roll(1, 0), own | own.roll(2, 0)))[:, None]  # each query has keys, but not all
    small = (1e-3 * normal(2, 4, 6), w | {"o": 1e-3 * w["o"]}, allowed, 2)  # the numbers that a norm adds matter
    return [(3 * normal(2, 4, 6), w, allowed, 2), (normal(2, 4, 6, seed=9), w, allowed.flip(0), 3), small]


EXERCISES = (
    Exercise(solved.layer_norm, NORM, norm_cases, has_gradient=True),
    Exercise(solved.rms_norm, NORM, rms_cases, has_gradient=True),
    Exercise(solved.gelu, LAYER, lambda: [(3 * normal(2, 20),), (torch.linspace(-6, 6, 49),)], has_gradient=True),
    Exercise(solved.feed_forward, LAYER, lambda: [(normal(2, 3, 4), layer(4, 8))], has_gradient=True),
    Exercise(solved.block, f"{CHAPTER}#a-block-from-its-parts", block_cases, has_gradient=True),
    Exercise(
        solved.dropout,
        f"{CHAPTER}#dropout",
        lambda: [(normal(3, 8), mask(3, 8), 0.3), (normal(5, seed=1), torch.ones(5, dtype=torch.bool), 0.0)],
        has_gradient=True,
    ),
)
