"""All exercises of the workshop, in the order of the chapters: steps are functions, and parts are larger."""

from dataclasses import replace
from functools import cache

from glassformer.apps.course.workshop.exercise import Exercise
from glassformer.apps.course.workshop.exercises import (
    further_parts,
    lineages,
    lineages_parts,
    recurrent,
    recurrent_parts,
    transformer,
    transformer_parts,
)
from glassformer.apps.course.workshop.tables import every_table, require_exercise

LIBRARY = ("scaled_dot_product_attention", "multi_head_attention_forward")
OWN_WORK: dict[str, tuple[str, ...]] = {
    "softmax": ("softmax",),
    "gru_step": ("gru_cell",),
    "lstm_step": ("lstm_cell",),
    "RecurrentEncoder": ("gru",),
    "cross_entropy": ("cross_entropy", "nll_loss"),
    "attention": LIBRARY,
    "multi_head_attention": LIBRARY,
    "MultiHeadAttention": LIBRARY,
    "attention_by_tiles": LIBRARY,
    "layer_norm": ("layer_norm",),
    "rms_norm": ("rms_norm",),
    "gelu": ("gelu",),
    "dropout": ("dropout",),
    "Residual": ("layer_norm", "dropout"),
    "Block": LIBRARY,
    "label_smoothed_loss": ("cross_entropy",),
    "Transformer": LIBRARY,
    "BERT": LIBRARY,
    "GPT": LIBRARY,
}
"""Functions of torch that an exercise must not call, because they are what the reader writes there."""


@cache
def every_exercise() -> dict[str, Exercise]:
    """Return the exercises by name, each with its table."""
    known = every_table()
    steps = (recurrent, transformer, lineages)
    parts = (recurrent_parts, transformer_parts, lineages_parts, further_parts)
    ordered = sorted((one for file in steps + parts for one in file.EXERCISES), key=lambda one: one.chapter)
    return {
        exercise.name: replace(exercise, known=known[exercise.name], own_work=OWN_WORK.get(exercise.name, ()))
        for exercise in ordered
    }


def exercise_of(name: str) -> Exercise:
    """Return the exercise of a name; raise `UserError` for an unknown name."""
    require_exercise(name)
    return every_exercise()[name]
