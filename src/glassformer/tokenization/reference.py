"""The reference encoder: the algorithm of the Rust encoder, step by step in Python.

Tests compare the Rust encoder with it. This encoder also shows the merges of a token, and encodes by longest match or
with BPE-dropout (the Rust encoder takes no seed).
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from glassformer.common.errors import UserError
from glassformer.tokenization.schemes import Scheme, pipeline


@dataclass(frozen=True)
class MergeStep:
    """One merge: its rank (0 was learned first), the two merged symbols, and all symbols after the merge."""

    rank: int
    left: str
    right: str
    symbols: tuple[str, ...]


def merge_steps(
    symbols: list[str], ranks: Mapping[tuple[str, str], int], dropout: float = 0.0, rng: random.Random | None = None
) -> Iterator[MergeStep]:
    """Merge adjacent symbols in place: lowest rank first, leftmost first for equal ranks, until no merge is possible.

    With `dropout`, each possible merge is skipped in each round with that probability, drawn from `rng`
    (Provilkov, Emelianenko and Voita 2020, algorithm 1), so that the same text gets different tokens.

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
    """Split a chunk at the longest token anywhere in it, then split the remaining parts on both sides likewise.

    Of several longest tokens, the most frequent one in the training text is used; of equally frequent ones, the first
    in sorted order. A span without any token becomes one `unknown`. `max_len` is the longest token's length, if known.

    >>> longest_match("unlowered", {"low": 9, "lowe": 2, "red": 2, "un": 1}, "[UNK]")
    ['un', 'lowe', 'red']
    >>> longest_match("lowwow", {"low": 9, "w": 1}, "[UNK]")
    ['low', 'w', '[UNK]', 'w']
    """
    tokens: list[str] = []
    # Stack of spans, the leftmost on top, with the maximum length of a token in each; 0 marks a finished token.
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
        if matches := {span[i : i + n] for i in range(len(span) - n + 1)} & frequencies.keys():
            return min(matches, key=lambda token: (-frequencies[token], token))
    return None


@dataclass(frozen=True)
class ChunkExplanation:
    """One chunk of a text: its initial symbols, each merge, and the ids of the resulting tokens."""

    start: tuple[str, ...]
    steps: tuple[MergeStep, ...]
    token_ids: tuple[int, ...]

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.steps[-1].symbols if self.steps else self.start


@dataclass(frozen=True)
class Explanation:
    """All merges of a text, chunk by chunk; `str()` of it is the output of `tokenizer encode --merges`."""

    chunks: tuple[ChunkExplanation, ...]
    show: Callable[[str], str]

    def __str__(self) -> str:
        return "\n\n".join(_render(chunk, self.show) for chunk in self.chunks)


def _render(chunk: ChunkExplanation, show: Callable[[str], str]) -> str:
    """Format one line per state of the chunk: its symbols, separated by bars, and the merge that led to it."""

    def line(label: str, symbols: Sequence[str]) -> str:
        return f"{label:>12}  {'│'.join(map(show, symbols))}"

    lines = [line("start", chunk.start)]
    for step in chunk.steps:
        made = f"{show(step.left)} + {show(step.right)}"
        lines.append(f"{line(f'merge {step.rank + 1}', step.symbols)}    ({made})")
    ids = [f"{show(token)} = {i}" for token, i in zip(chunk.tokens, chunk.token_ids, strict=True)]
    lines.append(f"{'ids':>12}  {'  '.join(ids)}")
    return "\n".join(lines)


class ReferenceEncoder:
    """Encoder of plain text (without special tokens) with a vocabulary, its merges, and an optional unknown token."""

    def __init__(
        self,
        scheme: Scheme,
        vocab: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        frequencies: Mapping[str, int],
        unknown: str | None,
    ) -> None:
        """Set up the encoder; `frequencies` has all tokens except the special ones."""
        self._chunks = pipeline(scheme).chunks
        self._has_pieces = scheme != "whole_words"
        self._vocab = vocab
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._frequencies = frequencies
        self._longest = max(map(len, frequencies))
        self._unknown = unknown

    def encode(self, text: str, *, dropout: float = 0.0, rng: random.Random | None = None) -> list[int]:
        """Encode a text by applying all merges, or a random part of them with BPE-dropout from `rng`."""
        ids: list[int] = []
        for symbols in self._symbols(text):
            for _ in merge_steps(symbols, self._ranks, dropout, rng):
                pass
            ids += [self._vocab[symbol] for symbol in symbols]
        return ids

    def encode_longest_match(self, text: str) -> list[int]:
        """Encode a text by the longest match first."""
        ids: list[int] = []
        for chunk in self._chunks(text):
            tokens = self._split(chunk)  # raises UserError for an unknown character without [UNK]
            if self._has_pieces:
                tokens = longest_match(chunk, self._frequencies, self._unknown or "", self._longest)
            ids += [self._vocab[token] for token in tokens]
        return ids

    def explain(self, text: str) -> Iterator[ChunkExplanation]:
        """Yield the merges of each chunk."""
        for symbols in self._symbols(text):
            start = tuple(symbols)
            steps: list[MergeStep] = list(merge_steps(symbols, self._ranks))
            yield ChunkExplanation(start, tuple(steps), tuple(self._vocab[symbol] for symbol in symbols))

    def _symbols(self, text: str) -> Iterator[list[str]]:
        return map(self._split, self._chunks(text))

    def _split(self, chunk: str) -> list[str]:
        """Split a chunk into characters, with one unknown token per run of unknown ones (`whole_words`: one token)."""
        if not self._has_pieces:
            return [chunk if chunk in self._frequencies else self._unknown or ""]
        symbols: list[str] = []
        for character in chunk:
            if character in self._frequencies:
                symbols.append(character)
            elif self._unknown is None:
                raise UserError(
                    f"the character {character!r} (U+{ord(character):04X}) is not in the vocabulary, and there "
                    "is no [UNK] token; train a tokenizer with the special token [UNK], with this character, "
                    "or with the scheme byte"
                )
            elif not symbols or symbols[-1] != self._unknown:
                symbols.append(self._unknown)
        return symbols
