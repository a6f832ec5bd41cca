"""Chapter 14: from a model of text to one that answers."""

import torch

from glassformer.course.workshop.exercise import Exercise, Mistake
from glassformer.course.workshop.exercises.draws import normal
from glassformer.course.workshop.solutions.ch14_answers import (
    answer_labels,
    dpo_loss,
    group_advantages,
    lora,
    merged_lora,
)

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
    Exercise(
        answer_labels,
        SCORED,
        conversations,
        (
            Mistake(
                "The end token of an answer is not scored, so the model does not learn to stop.",
                "is_assistant[:, 1:] | is_assistant[:, :-1]",
                "is_assistant[:, 1:]",
            ),
            Mistake(
                "The mask belongs to the inputs, so the first token of an answer is not scored: shift it like the ids.",
                "is_assistant[:, 1:] | is_assistant[:, :-1]",
                "is_assistant[:, :-1]",
            ),
            Mistake("These are the inputs: the label must be the next id.", "ids[:, 1:]", "ids[:, :-1]", pitfall=18),
            Mistake(
                "All tokens are scored, so the model learns to write the messages of the user too.",
                ".masked_fill(~is_scored, -100)",
                "",
            ),
            Mistake(
                "The messages of the user are scored, and the answers are not.",
                "masked_fill(~is_scored",
                "masked_fill(is_scored",
            ),
            Mistake("Tokens that are not scored have the label 0, which is an id: use -100.", ", -100)", ", 0)"),
        ),
    ),
    Exercise(
        lora,
        LORA,
        lambda: [
            (normal(2, 3, 6), normal(4, 6, seed=1), normal(r, 6, seed=2), normal(4, r, seed=3), alpha)
            for r, alpha in ((2, 8.0), (3, 1.0))
        ],
        (
            Mistake("The scale is α: divide it by the rank.", "alpha / len(a)", "alpha"),
            Mistake("The scale α / R is missing.", "alpha / len(a) * (x @ a.mT @ b.mT)", "x @ a.mT @ b.mT"),
            Mistake("The scale is divided by the number of outputs: divide by the rank.", "len(a)", "len(b)"),
            Mistake(
                "The low-rank product replaces the layer: add it to the output.",
                "x @ weight.detach().mT + ",
                "",
            ),
            Mistake("A gradient reaches the frozen matrix: detach it.", ".detach()", ""),
        ),
        has_gradient=True,
    ),
    Exercise(
        merged_lora,
        LORA,
        lambda: [
            (normal(4, 6), normal(2, 6, seed=1), normal(4, 2, seed=2), 8.0),
            (normal(5, 5), normal(3, 5, seed=1), normal(5, 3, seed=2), 1.0),
        ],
        (
            Mistake("The scale is α: divide it by the rank.", "alpha / len(a)", "alpha"),
            Mistake("The scale α / R is missing.", "alpha / len(a) * ", ""),
            Mistake("The frozen matrix is missing: add it.", "weight + ", ""),
            Mistake("The scale is divided by the number of outputs: divide by the rank.", "len(a)", "len(b)"),
        ),
    ),
    Exercise(
        dpo_loss,
        PREFERENCES,
        lambda: [(*log_p(1.0), 0.1), (*log_p(3.0), 0.5), (*log_p(400.0), 1.0)],
        (
            Mistake(
                "The reference is ignored: subtract the difference of its log-probabilities.",
                " - (reference_chosen - reference_rejected)",
                "",
            ),
            Mistake(
                "Chosen and rejected are exchanged, so the model learns to prefer the worse answers.",
                "-F.logsigmoid(beta * h)",
                "-F.logsigmoid(-beta * h)",
            ),
            Mistake(
                "The difference of the reference's log-probabilities is added: subtract it.",
                ") - (reference_chosen",
                ") + (reference_chosen",
            ),
            Mistake("The factor β is missing.", "beta * h", "h"),
            Mistake("β is outside of the logarithm: multiply h.", "-F.logsigmoid(beta * h)", "-beta * F.logsigmoid(h)"),
            Mistake(
                "The logarithm of σ is infinite for very negative h, where σ is 0: use logsigmoid.",
                "F.logsigmoid(beta * h)",
                "(beta * h).sigmoid().log()",
            ),
            Mistake("The losses are added: take their mean.", ".mean()", ".sum()"),
        ),
        has_gradient=True,
    ),
    Exercise(
        group_advantages,
        GROUPS,
        lambda: [
            (torch.tensor([[0.0, 1.0, 0.0, 4.0], [3.0, 3.0, 3.0, 3.0], [-1.0, 1.0, 2.0, 2.0]]),),
            (torch.tensor([[0.0, 1e-4, 2e-4, 1e-4]]),),
        ],
        (
            Mistake(
                "The mean is over all prompts: compare an answer with the answers to the same prompt.",
                "rewards.mean(dim=1, keepdim=True)",
                "rewards.mean()",
            ),
            Mistake(
                "The mean is over the prompts, and not over the answers to a prompt.",
                "rewards.mean(dim=1, keepdim=True)",
                "rewards.mean(dim=0, keepdim=True)",
            ),
            Mistake(
                "The difference is not divided by the standard deviation of the group.",
                "centred / (rewards.std(dim=1, keepdim=True) + 1e-4)",
                "centred",
            ),
            Mistake("Equal rewards give NaN, 0 / 0: add 0.0001 to the standard deviation.", " + 1e-4", ""),
            Mistake(
                "The sum of the squares is divided by G: divide it by G - 1.",
                "std(dim=1,",
                "std(dim=1, correction=0,",
            ),
            Mistake("The difference is divided by the variance: take its root.", "rewards.std(", "rewards.var("),
        ),
    ),
)
