"""Chapter 7: label smoothing, greedy and beam search, and BLEU."""

from collections.abc import Callable

import torch
from torch import Tensor

from glassformer.apps.course.workshop.exercise import Exercise
from glassformer.apps.course.workshop.exercises.draws import normal
from glassformer.apps.course.workshop.solutions import ch07_transformer as solved

CHAPTER = "course/07-the-transformer"
START, END = 0, 1
HYPOTHESES = [
    "the cat sat on the mat",
    "the the the the cat",
    "a dog saw the small cat in the house",
    "so it is here now",
]
REFERENCES = ["the cat sat on a mat", "the cat and the dog", "a dog saw the cat in the old house", "so it is here"]


def language(n_ids: int, of_end: float, seed: int) -> Callable[[list[int]], Tensor]:
    """Return log-probabilities that depend on all ids so far; the logit of the end is changed by `of_end`."""

    def next_log_p(ids: list[int]) -> Tensor:
        number = seed
        for one in ids:
            number = (number * n_ids + one + 1) % 1_000_003
        logits = normal(n_ids, seed=number)
        logits[END] += of_end
        return logits.log_softmax(dim=-1)

    return next_log_p


def table(rows: dict[tuple[int, ...], list[float]]) -> Callable[[list[int]], Tensor]:
    """Return log-probabilities from rows of probabilities, by the ids after the start; an end follows an end."""

    def next_log_p(ids: list[int]) -> Tensor:
        row = rows.get(tuple(ids[1:]), [0, 0.5, 0.25, 0.25])
        if ids[-1] == END:
            row = [0, 1, 0, 0]
        return torch.tensor(row).log()

    return next_log_p


GARDEN_PATH = table({(): [0, 0, 0.6, 0.4], (2,): [0, 0.34, 0.33, 0.33], (3,): [0, 1, 0, 0]})
"""Id 2 is more probable than id 3, and a hypothesis with id 3 is more probable than one with id 2."""
LATE_END = table({(): [0, 0.4, 0.35, 0.25], (2,): [0, 0, 0.55, 0.45], (2, 3): [0, 0, 0, 1], (2, 3, 3): [0, 0, 0, 1]})
"""The third best beginning, (2, 3), has the best end."""

EARLY_END = table({(): [0, 0.4, 0.6, 0], (2,): [0, 1, 0, 0]})
"""The hypothesis that ends first is not the best."""
ONE_PLACE = table({(): [0, 0.4, 0.35, 0.25], (2,): [0, 0.45, 0, 0.55], (2, 3): [0, 0, 0, 1], (2, 3, 3): [0, 1, 0, 0]})
"""With a beam of 2, one place is left after the first end: (2, 3) has it, and not (2, end)."""
EQUAL = table({(): [0, 0.1, 0.45, 0.45], (2,): [0, 0, 0.5, 0.5], (2, 2): [0, 0.5, 0.5, 0]})
"""Each step has two ids of the same probability."""
EQUAL_LINES = table(
    {
        (): [0.125, 0.125, 0.25, 0.5],
        (2,): [0, 0, 0, 1],
        (3,): [0, 0, 0.5, 0.5],
        (2, 3): [0, 1, 0, 0],
        (3, 3): [0, 0.25, 0.5, 0.25],
    }
)
"""(2, 3), (3, 2) and (3, 3) have the same probability, and (3) is better than (2); one of the results is the best."""


def searches() -> list[tuple[object, ...]]:
    settings = [(3, 6, 0.0), (3, 6, 1.0), (2, 8, 0.6), (4, 3, 2.0), (1, 5, 1.0), (3, 4, -1.0)]
    cases: list[tuple[object, ...]] = [(GARDEN_PATH, START, END, 2, 5, alpha) for alpha in (0.0, 1.0)]
    tables = (LATE_END, EARLY_END, ONE_PLACE, EQUAL_LINES)
    cases += [(of, START, END, 2, 6, alpha) for of in tables for alpha in (0.0, 2.0)]
    cases.append((EQUAL, START, END, 1, 6, 0.0))
    for seed, (beam, max_len, alpha) in enumerate(settings):
        cases += [(language(6, of_end, seed), START, END, beam, max_len, alpha) for of_end in (0.0, 1.0, -9.0)]
    return cases


def smoothing_cases() -> list[tuple[object, ...]]:
    labels = torch.tensor([[3, 0, -100], [1, -100, -100]])
    large = torch.tensor([[1000.0, 0.0, 0.0]])
    cases: list[tuple[object, ...]] = [(normal(2, 3, 5), labels, smoothing) for smoothing in (0.1, 0.0)]
    return [*cases, (normal(1, 4), labels[1, :1], 0.4), (large, labels[1, :1], 0.1)]


EXERCISES = (
    Exercise(solved.label_smoothed_loss, f"{CHAPTER}#training", smoothing_cases, has_gradient=True),
    Exercise(
        solved.greedy,
        f"{CHAPTER}#greedy-search",
        lambda: (
            [(language(5, of_end, seed), START, END, 6) for seed in range(3) for of_end in (-9.0, 0.5)]
            + [(EQUAL, START, END, 3)]
        ),
    ),
    Exercise(
        solved.length_penalty,
        f"{CHAPTER}#length-penalty",
        lambda: [(1, 1.0), (7, 1.0), (7, 0.6), (3, 0.0), (13, 2.0), (4, 1.0)],
    ),
    Exercise(solved.beam_search, f"{CHAPTER}#beam-search", searches),
    Exercise(
        solved.n_grams,
        f"{CHAPTER}#bleu-and-what-it-hides",
        lambda: [(["der", "Hund", "der", "Hund", "sieht"], n) for n in (1, 2, 3, 6)],
    ),
    Exercise(
        solved.bleu,
        f"{CHAPTER}#bleu-and-what-it-hides",
        lambda: (
            [
                ([text.split() for text in HYPOTHESES[:n]], [text.split() for text in REFERENCES[:n]])
                for n in (1, 2, 3, 4)
            ]
            + [([list("abcd")], [list("abcdef")]), ([list("abcde")], [["x"] * 5]), ([list("ab")], [list("abc")])]
            + [([list("abcdef"), list("ghijk")], [list("abcd"), list("ghijklmno")])]
            + [([list("abcde"), list("abcd")], [list("abcd"), list("abcde")])]
            + [([list("abcdef"), ["a"]], [list("abcdef"), list("ab")])]  # a text without n-grams takes none away
        ),
    ),
)
