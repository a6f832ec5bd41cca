"""The encoder that can be read: what `Tokenizer` does in Rust, step by step in Python.

It is the oracle of the fast one, explains a token, and encodes where the fast one cannot: with BPE-dropout
(the Rust encoder takes no seed), and by the longest match.
"""

import random
from collections.abc import Iterator, Mapping, Sequence

from glassformer.errors import UserError
from glassformer.tokenization.bpe_encode import MergeStep, longest_match, merge_steps
from glassformer.tokenization.explain import ChunkExplanation
from glassformer.tokenization.pretokenize import Scheme, pipeline


class ReferenceEncoder:
    """Encodes plain text (no special tokens in it) with a vocabulary, its merges, and its unknown token if any."""

    def __init__(
        self,
        scheme: Scheme,
        vocab: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        frequencies: Mapping[str, int],
        unknown: str | None,
    ) -> None:
        """`frequencies` has the tokens that text can become: all but the special ones."""
        self._chunks = pipeline(scheme).chunks
        self._has_pieces = scheme != "whole_words"
        self._vocab = vocab
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._frequencies = frequencies
        self._longest = max(map(len, frequencies))
        self._unknown = unknown

    def encode(self, text: str, *, dropout: float = 0.0, rng: random.Random | None = None) -> list[int]:
        """The ids of a text by replaying the merges, all of them, or with BPE-dropout from `rng`."""
        ids: list[int] = []
        for symbols in self._symbols(text):
            for _ in merge_steps(symbols, self._ranks, dropout, rng):
                pass
            ids += [self._vocab[symbol] for symbol in symbols]
        return ids

    def encode_longest_match(self, text: str) -> list[int]:
        """The ids of a text by the longest match first."""
        ids: list[int] = []
        for chunk in self._chunks(text):
            self._split(chunk)  # names an unknown character if there is no token for it
            if self._has_pieces:
                tokens = longest_match(chunk, self._frequencies, self._unknown or "", self._longest)
            else:
                tokens = self._split(chunk)
            ids += [self._vocab[token] for token in tokens]
        return ids

    def explain(self, text: str) -> Iterator[ChunkExplanation]:
        """The merges that are made in each chunk."""
        for symbols in self._symbols(text):
            start = tuple(symbols)
            steps: list[MergeStep] = list(merge_steps(symbols, self._ranks))
            yield ChunkExplanation(start, tuple(steps), tuple(self._vocab[symbol] for symbol in symbols))

    def _symbols(self, text: str) -> Iterator[list[str]]:
        return map(self._split, self._chunks(text))

    def _split(self, chunk: str) -> list[str]:
        """The characters of a chunk, each run of unknown ones as one unknown token; or the whole word, known or not."""
        if not self._has_pieces:
            return [chunk if chunk in self._frequencies else self._unknown or ""]
        symbols: list[str] = []
        for character in chunk:
            if character in self._frequencies:
                symbols.append(character)
            elif self._unknown is None:
                raise UserError(
                    f"the character {character!r} (U+{ord(character):04X}) is not in the vocabulary, and there "
                    "is no [UNK] to stand for it; train with the special token [UNK], with this character, or "
                    "with the scheme byte"
                )
            elif not symbols or symbols[-1] != self._unknown:
                symbols.append(self._unknown)
        return symbols
