"""The two ways to cut a chunk of text into learned tokens: the merges in their order, and the longest match first."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class MergeStep:
    """One merge: its rank (0 was learned first), the two symbols that it joined, and all symbols after it."""

    rank: int
    left: str
    right: str
    symbols: tuple[str, ...]


def merge_steps(
    symbols: list[str], ranks: Mapping[tuple[str, str], int], dropout: float = 0.0, rng: random.Random | None = None
) -> Iterator[MergeStep]:
    """Joins neighbours in place, the pair of lowest rank first and the leftmost of equals, until no pair has a rank.

    With `dropout`, each possible merge is left out of each round with that probability, drawn from `rng`
    (Provilkov, Emelianenko and Voita 2020, algorithm 1): the same text is then cut in many ways.

    >>> ranks = {("l", "o"): 0, ("e", "r"): 1, ("lo", "w"): 2}
    >>> for step in merge_steps(list("lower"), ranks):
    ...     print(step.left, "+", step.right, "=", *step.symbols)
    l + o = lo w e r
    e + r = lo w er
    lo + w = low er
    """
    while True:
        possible = [
            (rank, i)
            for i, pair in enumerate(pairwise(symbols))
            if (rank := ranks.get(pair)) is not None and (rng is None or rng.random() >= dropout)
        ]
        if not possible:
            return
        rank, i = min(possible)
        left, right = symbols[i : i + 2]
        symbols[i : i + 2] = [left + right]
        yield MergeStep(rank, left, right, tuple(symbols))


def longest_match(chunk: str, frequencies: Mapping[str, int], unknown: str, max_len: int | None = None) -> list[str]:
    """Cuts at the longest token that stands anywhere in the chunk, then cuts what is left on both sides likewise.

    Of several tokens of that length the most frequent one in the training text comes first, then the one that
    sorts first. A span where nothing matches is one `unknown`. No token is longer than `max_len`, where that
    is known.

    >>> longest_match("unlowered", {"low": 9, "lowe": 2, "red": 2, "un": 1}, "[UNK]")
    ['un', 'lowe', 'red']
    >>> longest_match("lowwow", {"low": 9, "w": 1}, "[UNK]")
    ['low', 'w', '[UNK]', 'w']
    """
    tokens: list[str] = []
    # What is left to do, the leftmost last: spans, and how long a token in them can be; 0 marks a finished token.
    todo = [(chunk, max_len or len(chunk))] if chunk else []
    while todo:
        span, longest = todo.pop()
        best = _longest_token(span, frequencies, longest)
        if longest == 0:
            tokens.append(span)
        elif best is None:
            tokens.append(unknown)
        else:
            around = [(rest, len(best)) for rest in span.split(best)]
            parts = [part for rest in around for part in ((best, 0), rest)][1:]
            todo += [part for part in reversed(parts) if part[0]]
    return tokens


def _longest_token(span: str, frequencies: Mapping[str, int], longest: int) -> str | None:
    for n in range(min(len(span), longest), 0, -1):
        matches = {span[i : i + n] for i in range(len(span) - n + 1)} & frequencies.keys()
        if matches:
            return min(matches, key=lambda token: (-frequencies[token], token))
    return None
