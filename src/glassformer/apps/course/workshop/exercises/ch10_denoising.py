"""Chapter 10: the damage of BART and of T5, and the positions of T5."""

import torch

from glassformer.apps.course.workshop.exercise import Exercise
from glassformer.apps.course.workshop.solutions import ch10_denoising as solved

CHAPTER = "course/10-bart-and-t5"
T5 = f"{CHAPTER}#t5-damage-and-write-only-what-is-missing"
BART = f"{CHAPTER}#bart-damage-and-write-the-whole-text-again"
IDS = [11, 12, 13, 14, 15, 16, 17]

EXERCISES = (
    Exercise(
        solved.span_corruption,
        T5,
        lambda: [(IDS, spans, 90) for spans in ([(1, 3), (5, 6)], [(0, 2), (4, 7)], [(2, 3)], [])],
    ),
    Exercise(
        solved.infill,
        BART,
        lambda: [(IDS, spans, 5) for spans in ([(1, 3), (5, 6)], [(0, 2), (4, 4)], [(7, 7)], [(3, 7)], [])],
    ),
    Exercise(
        solved.relative_bucket,
        T5,
        lambda: [(torch.arange(-140, 141), 32, 128), (torch.arange(-9, 10).view(1, 19), 8, 20)],
    ),
)
