"""Chapter 8: masked language modelling, pairs of texts, and one vector per text."""

import torch

from glassformer.course.workshop.exercise import Exercise, Mistake
from glassformer.course.workshop.exercises.draws import normal
from glassformer.course.workshop.solutions.ch08_bert import mask_tokens, mean_of_tokens, segments

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
    Exercise(
        mask_tokens,
        MASKING,
        masking_cases,
        (
            Mistake(
                "Every chosen token becomes the mask: 10 % must become a random token, and 10 % must stay.",
                "is_chosen & (kind < 0.8)",
                "is_chosen",
            ),
            Mistake(
                "The tokens that stay unchanged have no label: every chosen token must have one.",
                "return inputs, labels",
                "return inputs, labels.masked_fill(kind >= 0.9, -100)",
            ),
            Mistake(
                "Only the tokens that became the mask have a label: every chosen token must have one.",
                "return inputs, labels",
                "return inputs, labels.masked_fill(inputs != mask_id, -100)",
            ),
            Mistake(
                "All positions are scored, so the model learns to copy: set the label to -100 where no token was "
                "chosen.",
                "ids.masked_fill(~is_chosen, -100)",
                "ids.clone()",
            ),
            Mistake(
                "The labels are the ids after the change: take the ids before it.",
                "return inputs, labels",
                "return inputs, inputs.masked_fill(~is_chosen, -100)",
            ),
            Mistake(
                "Special tokens are chosen too: leave them out.",
                "(choice < rate) & ~is_special",
                "choice < rate",
            ),
            Mistake(
                "A random token replaces all chosen tokens that are not masked: replace only those from 0.8 to below "
                "0.9.",
                " & (kind < 0.9), random_ids",
                ", random_ids",
            ),
            Mistake(
                "Tokens become random although they were not chosen.",
                "torch.where(is_chosen & (kind >= 0.8)",
                "torch.where((kind >= 0.8)",
            ),
            Mistake(
                "One draw is used twice: use the second number for the kind of the change.",
                "choice, kind = draws",
                "choice, kind = draws[0], draws[0]",
            ),
            Mistake(
                "Every chosen token becomes the mask: 10 % must become a random token, and 10 % must stay.",
                "inputs = ids.masked_fill(is_chosen & (kind < 0.8), mask_id)\n"
                "    inputs = torch.where(is_chosen & (kind >= 0.8) & (kind < 0.9), random_ids, inputs)",
                "inputs = ids.masked_fill(is_chosen, mask_id)",
            ),
            Mistake(
                "The random and the unchanged tokens are exchanged: those from 0.8 to below 0.9 must be random.",
                "& (kind >= 0.8) & (kind < 0.9)",
                "& (kind >= 0.9)",
            ),
            Mistake(
                "All chosen tokens below 0.9 become random, also those below 0.8: these must be the mask.",
                "(kind >= 0.8) & (kind < 0.9)",
                "(kind < 0.9)",
            ),
            Mistake(
                "The two draws are exchanged: use the first one for the choice.",
                "choice, kind = draws",
                "kind, choice = draws",
            ),
            Mistake(
                "The other labels are 0, which is an id: use -100.",
                "ids.masked_fill(~is_chosen, -100)",
                "ids.masked_fill(~is_chosen, 0)",
            ),
            Mistake(
                "The other tokens are chosen: choose those whose number is below `rate`.",
                "choice < rate",
                "choice >= rate",
            ),
            Mistake("A number equal to `rate` chooses a token: it must be below.", "choice < rate", "choice <= rate"),
            Mistake(
                "A second number equal to 0.8 gives the mask: it must be below.",
                "(kind < 0.8), mask_id)\n    inputs = torch.where(is_chosen & (kind >= 0.8)",
                "(kind <= 0.8), mask_id)\n    inputs = torch.where(is_chosen & (kind > 0.8)",
            ),
            Mistake(
                "Tokens become the mask although they were not chosen.", "is_chosen & (kind < 0.8)", "(kind < 0.8)"
            ),
            Mistake(
                "The random ids are taken one after another: take the one at the place of the token.",
                "torch.where(is_chosen & (kind >= 0.8) & (kind < 0.9), random_ids, inputs)",
                "inputs.masked_scatter(is_chosen & (kind >= 0.8) & (kind < 0.9), random_ids)",
            ),
        ),
    ),
    Exercise(
        segments,
        f"{CHAPTER}#the-rest-of-bert",
        lambda: [([7, 8, 9], [10, 11], 1, 2), ([7], [], 1, 2), ([], [7, 7], 3, 4)],
        (
            Mistake(
                "The first [SEP] has the segment 1: it belongs to the first text, so its segment must be 0.",
                "[0] * (len(first) + 2) + [1] * (len(second) + 1)",
                "[0] * (len(first) + 1) + [1] * (len(second) + 2)",
            ),
            Mistake("The last [SEP] is missing.", "*second, sep_id]\n", "*second]\n"),
            Mistake(
                "The segments are 1 and 2: use 0 and 1.",
                "[0] * (len(first) + 2) + [1] * (len(second) + 1)",
                "[1] * (len(first) + 2) + [2] * (len(second) + 1)",
            ),
            Mistake(
                "There is one segment per text, but one per token is needed, special tokens included.",
                "[0] * (len(first) + 2) + [1] * (len(second) + 1)",
                "[0] * len(first) + [1] * len(second)",
            ),
            Mistake(
                "[CLS] is missing.",
                "[cls_id, *first, sep_id, *second, sep_id]\n    return ids, [0] * (len(first) + 2)",
                "[*first, sep_id, *second, sep_id]\n    return ids, [0] * (len(first) + 1)",
            ),
            Mistake(
                "The last [SEP] is missing.",
                "*second, sep_id]\n    return ids, [0] * (len(first) + 2) + [1] * (len(second) + 1)",
                "*second]\n    return ids, [0] * (len(first) + 2) + [1] * len(second)",
            ),
            Mistake(
                "There are two [SEP] between the texts, as in RoBERTa: write one.",
                "*first, sep_id, *second, sep_id]\n    return ids, [0] * (len(first) + 2)",
                "*first, sep_id, sep_id, *second, sep_id]\n    return ids, [0] * (len(first) + 3)",
            ),
            Mistake(
                "[CLS] is also before the second text: there is one, at the beginning.",
                "sep_id, *second, sep_id]\n    return ids, [0] * (len(first) + 2) + [1] * (len(second) + 1)",
                "sep_id, cls_id, *second, sep_id]\n    return ids, [0] * (len(first) + 2) + [1] * (len(second) + 2)",
            ),
            Mistake(
                "The segments are one too short: [CLS] and [SEP] belong to the first text.",
                "[0] * (len(first) + 2)",
                "[0] * (len(first) + 1)",
            ),
            Mistake(
                "All segments are 0: use 1 for the second text.",
                "[1] * (len(second) + 1)",
                "[0] * (len(second) + 1)",
            ),
        ),
    ),
    Exercise(
        mean_of_tokens,
        f"{CHAPTER}#the-rest-of-bert",
        lambda: [
            (normal(3, 4, 5), torch.tensor([[True] * 4, [True, True, False, False], [False, False, False, True]])),
            (normal(1, 3, 2, seed=1), torch.tensor([[False, True, True]])),
        ],
        (
            Mistake(
                "Padding is part of the mean: leave it out.",
                "(states * weights).sum(dim=1) / weights.sum(dim=1)",
                "states.mean(dim=1)",
            ),
            Mistake(
                "The sum of the tokens is divided by the length with padding: divide by the number of tokens.",
                "/ weights.sum(dim=1)",
                "/ states.shape[1]",
            ),
            Mistake("The states are added: divide by the number of tokens.", " / weights.sum(dim=1)", ""),
            Mistake(
                "The mean is over all texts and tokens: take the mean of each text.",
                "return (states * weights).sum(dim=1) / weights.sum(dim=1)",
                "return states[is_token].mean(dim=0).expand(len(states), -1)",
            ),
            Mistake(
                "This is the mean of the padding: `is_token` is True for tokens.",
                "is_token[..., None]",
                "(~is_token)[..., None]",
            ),
            Mistake(
                "The sum of a text is divided by the number of tokens of all texts: divide by the number of its own.",
                "/ weights.sum(dim=1)",
                "/ weights.sum()",
            ),
            Mistake(
                "The padding is in the sum: multiply the states by `is_token` first.",
                "(states * weights).sum(dim=1)",
                "states.sum(dim=1)",
            ),
            Mistake(
                "This is the first token, as [CLS] in BERT: take the mean of all tokens.",
                "return (states * weights).sum(dim=1) / weights.sum(dim=1)",
                "return states[:, 0]",
            ),
            Mistake(
                "This is the last token: take the mean of all tokens.",
                "return (states * weights).sum(dim=1) / weights.sum(dim=1)",
                "return states[:, -1]",
            ),
            Mistake(
                "The first states are taken, as many as there are tokens: use the mask, because the padding may be on "
                "the left.",
                "is_token[..., None].to(states.dtype)",
                "is_token.sort(dim=1, descending=True).values[..., None].to(states.dtype)",
            ),
        ),
        has_gradient=True,
    ),
)
