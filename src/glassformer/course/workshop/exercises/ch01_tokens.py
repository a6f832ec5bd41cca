"""Chapter 1: byte-pair encoding."""

from glassformer.course.workshop.exercise import Exercise, Mistake
from glassformer.course.workshop.solutions.ch01_tokens import (
    count_pairs,
    encode,
    learn_merges,
    merge_pair,
    most_frequent_pair,
)

SECTION = "course/01-text-to-ids"
END_MARK = "You add an end mark to each word: take the words as they are given."
TEXT = {"low": 5, "lower": 2, "newest": 6, "widest": 3, "banana": 4, "aaa": 1}
TIES = {"ba": 2, "ab": 2, "bb": 2, "cc": 1}
MERGES = [("e", "s"), ("es", "t"), ("l", "o"), ("lo", "w"), ("n", "e"), ("ne", "w"), ("a", "n"), ("an", "an")]

EXERCISES = (
    Exercise(
        count_pairs,
        SECTION,
        lambda: [({tuple(word): n for word, n in TEXT.items()},), ({("lo", "w"): 3, ("lo",): 9},), ({},)],
        (
            Mistake(
                "Each word counts once: add the number of its occurrences in the text instead of 1.",
                "counts.get(pair, 0) + n",
                "counts.get(pair, 0) + 1",
            ),
            Mistake(
                "You count a pair only once per word: go over the places, not over a set of pairs.",
                "in pairwise(word)",
                "in set(pairwise(word))",
            ),
            Mistake(
                "The last pair of each word is missing: a word of n symbols has n - 1 pairs.",
                "in pairwise(word)",
                "in pairwise(word[:-1])",
            ),
            Mistake("A count replaces the count of the words before it: add to it.", "counts.get(pair, 0) + n", "n"),
        ),
    ),
    Exercise(
        most_frequent_pair,
        SECTION,
        lambda: [
            ({("l", "o"): 7, ("o", "w"): 7, ("e", "r"): 2},),
            ({("o", "w"): 7, ("l", "o"): 7, ("e", "r"): 9},),
            ({("z", "a"): 3, ("b", "z"): 3, ("b", "c"): 3},),
            ({("ab", "a"): 1, ("a", "c"): 1},),
        ],
        (
            Mistake(
                "Of pairs with equal counts you take the one that was inserted first, so the vocabulary depends on the "
                "order of the text: break ties by the alphabet.",
                "(-counts[pair], pair)",
                "-counts[pair]",
                "course/12-classical-mistakes",
                pitfall=26,
            ),
            Mistake(
                "Of pairs with equal counts you take the last one in alphabetical order: take the first one.",
                "min(counts, key=lambda pair: (-counts[pair], pair))",
                "max(counts, key=lambda pair: (counts[pair], pair))",
            ),
            Mistake("This is the pair with the smallest count: change the sign.", "-counts[pair]", "counts[pair]"),
            Mistake(
                "For equal counts you compare the joined texts: compare the pairs, first symbol by first symbol.",
                "(-counts[pair], pair)",
                '(-counts[pair], "".join(pair))',
            ),
        ),
    ),
    Exercise(
        merge_pair,
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
        (
            Mistake(
                "A symbol is used by two occurrences: after a merge, continue after both of its symbols.",
                "            i += 2\n",
                "            i += 1\n",
            ),
            Mistake(
                "Only the first occurrence is merged: continue until the end of the word.",
                "            i += 2\n",
                "            i += 2\n            return (*merged, *symbols[i:])\n",
            ),
            Mistake(
                'The pair is replaced in the joined text, where it matches parts of symbols, such as "e" at '
                'the end of "le": compare whole symbols.',
                "merged: list[str] = []",
                'return tuple(" ".join(symbols).replace(" ".join(pair), "".join(pair)).split())',
            ),
        ),
    ),
    Exercise(
        learn_merges,
        SECTION,
        lambda: [(TEXT, 1), (TEXT, 9), (TIES, 3), ({"ab": 1}, 5), ({}, 2)],
        (
            Mistake(
                "The pairs are counted in the text without the merges: count again after each merge.",
                "    for _ in range(n_merges):\n        counts = count_pairs(split)\n"
                "        if not counts:\n            break\n"
                "        pair = most_frequent_pair(counts)\n"
                "        split = {merge_pair(word, pair): n for word, n in split.items()}\n",
                "    counts = count_pairs(split)\n    for _ in range(min(n_merges, len(counts))):\n"
                "        pair = most_frequent_pair(counts)\n        counts.pop(pair)\n",
            ),
            Mistake(
                "The words are not changed, so each round finds the same pair: merge it in all words.",
                "split = {merge_pair(word, pair): n for word, n in split.items()}",
                "pass",
            ),
            Mistake(
                "Each word is counted once: keep the numbers of occurrences.",
                "{tuple(word): n for word, n in words.items()}",
                "{tuple(word): 1 for word in words}",
            ),
            Mistake(
                "Of pairs with equal counts you take the one that was found first: break ties by the alphabet.",
                "most_frequent_pair(counts)",
                "max(counts, key=counts.__getitem__)",
                pitfall=26,
            ),
            Mistake(
                "A text whose words have one symbol each ends in an error: stop when there are no pairs.",
                "        if not counts:\n            break\n",
                "",
            ),
            Mistake(
                "Learning stops when the best pair occurs only once, as with min_frequency=2 in libraries: merge until "
                "no word has two symbols.",
                "if not counts:",
                "if not counts or max(counts.values()) < 2:",
            ),
            Mistake(
                END_MARK,
                "{tuple(word): n for word, n in words.items()}",
                '{(*word, "</w>"): n for word, n in words.items()}',
            ),
            Mistake(
                END_MARK,
                "{tuple(word): n for word, n in words.items()}",
                '{(*word[:-1], word[-1] + "</w>"): n for word, n in words.items()}',
            ),
            Mistake(
                "The words are joined to one text, so merges cross their borders: count the pairs inside each word.",
                "{tuple(word): n for word, n in words.items()}",
                '{tuple("".join(word * n for word, n in words.items())): 1}',
            ),
        ),
    ),
    Exercise(
        encode,
        SECTION,
        lambda: [(word, MERGES) for word in ("newest", "lowest", "banana", "low", "xyz", "", "wow", "nest", " new")],
        (
            Mistake(
                "The merges are applied in the wrong order: begin with the one that was learned first.",
                "for pair in merges:",
                "for pair in reversed(merges):",
            ),
            Mistake(
                "A character that no merge has is dropped, so the text cannot be restored: keep it as a symbol.",
                "tuple(word)",
                "tuple(c for c in word if any(c in pair for pair in merges))",
                "course/12-classical-mistakes#lost-characters-27",
                pitfall=27,
            ),
            Mistake(
                "The space before the word is lost: it is a character like the others.",
                "tuple(word)",
                "tuple(word.strip())",
                f"{SECTION}#unknown-characters-and-why-there-is-a-ġ",
                pitfall=29,
            ),
            Mistake(
                "You return the word: return its symbols.",
                "return list(symbols)",
                "return [word]",
            ),
            Mistake(
                "This takes the longest match from the left: apply the merges in the order in which they were learned.",
                "    symbols = tuple(word)\n    for pair in merges:\n        symbols = merge_pair(symbols, pair)\n"
                "    return list(symbols)\n",
                '    vocabulary, symbols = {*word, *map("".join, merges)}, []\n    while word:\n'
                "        symbols.append(max((symbol for symbol in vocabulary if word.startswith(symbol)), key=len))\n"
                "        word = word[len(symbols[-1]) :]\n    return symbols\n",
            ),
            Mistake(END_MARK, "tuple(word)", '(*word, "</w>")'),
            Mistake(
                "Only the first occurrence of each pair is merged: merge all of them.",
                "        symbols = merge_pair(symbols, pair)\n",
                "        i = next((i for i in range(len(symbols)) if symbols[i : i + 2] == pair), len(symbols))\n"
                "        symbols = (*symbols[:i], *merge_pair(symbols[i : i + 2], pair), *symbols[i + 2 :])\n",
            ),
        ),
    ),
)
