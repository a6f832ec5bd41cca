"""Chapter 1: byte-pair encoding (Sennrich, Haddow and Birch 2016)."""

from itertools import pairwise

Pair = tuple[str, str]


def count_pairs(words: dict[tuple[str, ...], int]) -> dict[Pair, int]:
    """Count how often two symbols are neighbours.

    `words` maps each word, a tuple of symbols, to the number of its occurrences in the text. Return the number of
    occurrences in the text of every pair of neighbours: {("l", "o"): 7, …}. A pair that occurs twice in a word counts
    twice for each occurrence of the word.
    """
    counts: dict[Pair, int] = {}
    for word, n in words.items():
        for pair in pairwise(word):
            counts[pair] = counts.get(pair, 0) + n
    return counts


def most_frequent_pair(counts: dict[Pair, int]) -> Pair:
    """Return the pair with the largest count; of several such pairs, the smallest in alphabetical order.

    The rule for equal counts makes the vocabulary independent of the order of the text. Python compares tuples of
    texts in alphabetical order.
    """
    return min(counts, key=lambda pair: (-counts[pair], pair))


def merge_pair(symbols: tuple[str, ...], pair: Pair) -> tuple[str, ...]:
    """Replace each occurrence of a pair by one symbol, from left to right.

    ("l", "o", "l", "o") with the pair ("l", "o") becomes ("lo", "lo"). A symbol is part of one occurrence only:
    ("a", "a", "a") with ("a", "a") becomes ("aa", "a").
    """
    merged: list[str] = []
    i = 0
    while i < len(symbols):
        if symbols[i : i + 2] == pair:
            merged.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            merged.append(symbols[i])
            i += 1
    return tuple(merged)


def learn_merges(words: dict[str, int], n_merges: int) -> list[Pair]:
    """Learn byte-pair encoding: merge the most frequent pair of all words, `n_merges` times.

    `words` maps each word to the number of its occurrences; at first, the symbols of a word are its characters. Return
    the pairs in the order in which they were merged. Stop earlier if no word has two symbols.
    """
    split = {tuple(word): n for word, n in words.items()}
    merges: list[Pair] = []
    for _ in range(n_merges):
        counts = count_pairs(split)
        if not counts:
            break
        pair = most_frequent_pair(counts)
        split = {merge_pair(word, pair): n for word, n in split.items()}
        merges.append(pair)
    return merges


def encode(word: str, merges: list[Pair]) -> list[str]:
    """Split a word into the symbols of a learned vocabulary.

    Begin with all characters, spaces included, and apply all merges in the order in which they were learned.
    """
    symbols = tuple(word)
    for pair in merges:
        symbols = merge_pair(symbols, pair)
    return list(symbols)
