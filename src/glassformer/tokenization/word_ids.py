"""The ids of words and of characters that have occurred: encoding a text is then mostly looking up.

Both classes encode several texts at once, joined with `BORDER`, and `split_rows` separates the ids of each text. The
`tokenizers` library gives the same ids; the tests compare both.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain

import numpy as np

from glassformer.tokenization.chunks import BORDER, Splitter
from glassformer.tokenization.pretokenize import Scheme

BORDER_ID = -1
"""Takes the place of `BORDER` among the ids."""
MAX_KEPT, MAX_CHARACTERS = 1 << 19, 1 << 23
"""Number of words, and of chunks, whose ids are kept, and of the characters of each: bounds of the memory."""
MIN_TEXT, MAX_NEW = 1 << 20, 0.5
"""A text of so many characters, in which new chunks have more than this share, is encoded faster by the library."""
WORD_IS_CHUNK: tuple[Scheme, ...] = ("word", "whole_words")
"""Schemes in which each word is one chunk."""


class _Table(dict[str, tuple[int, ...]]):
    """Ids by word or chunk. Those of one that occurs for the first time are computed and kept."""

    def __init__(self, encode: Callable[[str], tuple[int, ...]]) -> None:
        super().__init__()
        self._encode = encode
        self.n_characters = 0

    def __missing__(self, text: str) -> tuple[int, ...]:
        ids = self[text] = self._encode(text)
        self.n_characters += len(text)
        return ids

    def bound(self) -> None:
        """Remove all if there are too many."""
        if len(self) > MAX_KEPT or self.n_characters > MAX_CHARACTERS:
            self.clear()
            self.n_characters = 0


class WordIds:
    """Encoder that keeps the ids of words (`Splitter.words`), and those of chunks, of which new words are composed.

    In 8 MB of source code, 83 % of the words and 98 % of the chunks of `byte` have occurred before. There are half as
    many words as chunks, and an expression finds them in half the time. If a word is one chunk, only chunks are kept.
    """

    def __init__(self, scheme: Scheme, encode_chunk: Callable[[str], Iterable[int]]) -> None:
        self._encode_chunk = encode_chunk
        self._n_seen = self._n_new = 0  # characters of the text and of new chunks since the last test
        self.pays = True
        """False if too few chunks of the last text had occurred before."""
        splitter, chunks = Splitter(scheme), _Table(self._of_chunk)
        self._split, self._table_of_parts, self._tables = splitter.split, chunks, [chunks]
        if scheme not in WORD_IS_CHUNK:
            split, ids_of = splitter.split, chunks.__getitem__
            words = _Table(lambda word: tuple(chain.from_iterable(map(ids_of, split(word)))))
            self._split, self._table_of_parts, self._tables = splitter.words, words, [chunks, words]

    def __call__(self, text: str) -> list[int]:
        """Return the ids of texts joined with `BORDER`."""
        ids = list(chain.from_iterable(map(self._table_of_parts.__getitem__, self._split(text))))
        for table in self._tables:
            table.bound()
        self._n_seen += len(text)
        if self._n_seen >= MIN_TEXT:
            self.pays = self._n_new <= MAX_NEW * self._n_seen
            self._n_seen = self._n_new = 0
        return ids

    def _of_chunk(self, chunk: str) -> tuple[int, ...]:
        self._n_new += len(chunk)
        return (BORDER_ID,) if chunk == BORDER else tuple(self._encode_chunk(chunk))


class CharacterIds:
    """Encoder for a vocabulary of characters without merges: a table of all code points, read by numpy."""

    pays = True

    def __init__(self, vocab: Mapping[str, int], unknown: int | None) -> None:
        self._table = np.full(0x110000, BORDER_ID if unknown is None else unknown, np.int32)
        self._unknown = unknown
        for token, i in vocab.items():
            if len(token) == 1:
                self._table[ord(token)] = i
        self._table[ord(BORDER)] = BORDER_ID

    def __call__(self, text: str) -> list[int]:
        """Return the ids of texts joined with `BORDER`; a run of unknown characters, up to a line end, has one id."""
        code_points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        ids = self._table[code_points]
        is_unknown = ids == self._unknown
        if is_unknown.any():
            continues = is_unknown[1:] & is_unknown[:-1] & (code_points[:-1] != ord("\n"))
            ids = ids[np.concatenate([[True], ~continues])]
        as_list: list[int] = ids.tolist()
        return as_list


def split_rows(joined: list[int], n_rows: int) -> list[list[int]]:
    """Return the ids between `BORDER_ID`.

    >>> split_rows([5, 6, BORDER_ID, BORDER_ID, 7], 3)
    [[5, 6], [], [7]]
    """
    rows, begin = [], 0
    for _ in range(n_rows - 1):
        end = joined.index(BORDER_ID, begin)
        rows.append(joined[begin:end])
        begin = end + 1
    return [*rows, joined[begin:]]
