"""Chapter 1: byte-pair encoding."""

from glassformer.apps.course.workshop.exercise import Exercise
from glassformer.apps.course.workshop.solutions import ch01_tokens as solved

SECTION = "course/01-text-to-ids"
TEXT = {"low": 5, "lower": 2, "newest": 6, "widest": 3, "banana": 4, "aaa": 1}
TIES = {"ba": 2, "ab": 2, "bb": 2, "cc": 1}
MERGES = [("e", "s"), ("es", "t"), ("l", "o"), ("lo", "w"), ("n", "e"), ("ne", "w"), ("a", "n"), ("an", "an")]

EXERCISES = (
    Exercise(
        solved.count_pairs,
        SECTION,
        lambda: [({tuple(word): n for word, n in TEXT.items()},), ({("lo", "w"): 3, ("lo",): 9},), ({},)],
    ),
    Exercise(
        solved.most_frequent_pair,
        SECTION,
        lambda: [
            ({("l", "o"): 7, ("o", "w"): 7, ("e", "r"): 2},),
            ({("o", "w"): 7, ("l", "o"): 7, ("e", "r"): 9},),
            ({("z", "a"): 3, ("b", "z"): 3, ("b", "c"): 3},),
            ({("ab", "a"): 1, ("a", "c"): 1},),
        ],
    ),
    Exercise(
        solved.merge_pair,
        SECTION,
        lambda: [
            (("l", "o", "l", "o"), ("l", "o")),
            (("a", "a", "a"), ("a", "a")),
            (("a", "a", "a", "a", "b"), ("a", "a")),
            (("n", "e", "w"), ("e", "n")),
            (("an", "a", "n"), ("a", "n")),
            (("le", "s"), ("e", "s")),
            ((), ("a", "n")),
        ],
    ),
    Exercise(solved.learn_merges, SECTION, lambda: [(TEXT, 1), (TEXT, 9), (TIES, 3), ({"ab": 1}, 5), ({}, 2)]),
    Exercise(
        solved.encode,
        SECTION,
        lambda: [(word, MERGES) for word in ("newest", "lowest", "banana", "low", "xyz", "", "wow", "nest", " new")],
    ),
)
