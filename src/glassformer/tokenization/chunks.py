r"""Splitting of text into chunks with Python's `re`, in a tenth of the library's time, and tables of the ids of chunks.

The library splits by classes of characters, such as letters and white space, and its tables of these classes are not
those of Python. So the library is asked once for the class of each character, and a regular expression lists the
characters that occurred. The chunks are substrings of the text; `Pipeline.chunks` also converts them to a scheme's
symbols.

`WordIds` and `CharacterIds` store the ids of words, chunks and characters, so that most of a text is only looked up.
They encode several texts at once, joined with `BORDER`; `split_rows` separates the ids of each text. The `tokenizers`
library gives the same chunks and ids; the tests compare both.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain

import numpy as np

from glassformer.tokenization.processes import in_order
from glassformer.tokenization.schemes import Scheme, check_text, pipeline, symbols_of

_PROBES: dict[Scheme, str] = {"byte": "a1!", "whitespace": "a!", "word": "a", "whole_words": "a"}
"""One character of each class of a scheme. To find the class of another character, it is put between two equal
characters of this table. If the three are one chunk, it is of their class. If it is of no class, it is white space."""
BORDER = "\ud800"
"""Separator of joined texts, and a chunk of its own: a lone surrogate, which no text contains (`check_text`)."""
_EXPRESSIONS: dict[Scheme, str] = {
    "byte": r"'(?:[stmd]|re|ve|ll)| ?(?:[{0}]+|[{1}]+|[^{0}{1}{space}{border}]+)|"
    r"[{space}]+(?![^{space}{border}])|[{space}]+|{border}",
    "whitespace": r"[{0}]+|[^{0}{space}{border}]+|{border}",
    "word": r"[^{space}{border}]+|{border}",
    "whole_words": r"[^{space}{border}]+|{border}",
}
"""Regular expression for the chunks of each scheme; `{0}`, `{1}` and `{space}` become the characters of the classes.
For `byte`, it equals GPT-2's (Radford 2019)."""
_WORDS = r"[{space}{border}]*[^{space}{border}]*"
"""Regular expression for words (`Splitter.words`) in every scheme. At the end of a text, it also matches an empty word.
"""
BLOCK_CHARACTERS = 1 << 16
"""Number of characters that are joined, cut and split at a time, so that their chunks stay in the processor's cache."""
_LINE_END = re.compile(r"(?<=[!-~]\n)(?=[!-~])")
"""The end of a line between two printable characters of ASCII, which ends a chunk in every scheme."""
COUNTED_CHARACTERS = 1 << 20
"""Number of characters whose chunks one worker process counts at a time. The counts are then added."""
PAYS_FROM = 8 << 20
"""Number of characters after which worker processes count. They start in half a second, the time to count so many.
"""
_ASCII = "".join(map(chr, range(128)))
_LOCK = threading.Lock()
"""Lock that a splitter holds while it adds characters."""
BORDER_ID = -1
"""Id of `BORDER`, which no token has."""
MAX_KEPT, MAX_CHARACTERS = 1 << 19, 1 << 23
"""`MAX_KEPT`: maximum number of words or chunks in a table of ids. `MAX_CHARACTERS`: maximum of their total length."""
MIN_TEXT, MAX_NEW = 1 << 20, 0.5
"""`MIN_TEXT`: number of characters after which `WordIds` decides if the library is faster. `MAX_NEW`: the library is
faster if new chunks have more than this share of the characters."""
WORD_IS_CHUNK: tuple[Scheme, ...] = ("word", "whole_words")
"""Schemes in which each word is one chunk."""


class Splitter:
    """Splitter of texts for one scheme. The scheme `char`, whose chunks are lines, needs no splitter."""

    def __init__(self, scheme: Scheme) -> None:
        self._scheme, self._chunks = scheme, pipeline(scheme).chunks
        self._classes: list[set[str]] = [set() for _ in (*_PROBES[scheme], "white space")]
        self._learn(_ASCII)

    def __reduce__(self) -> tuple[type["Splitter"], tuple[Scheme]]:
        return Splitter, (self._scheme,)

    @staticmethod
    def serves(scheme: Scheme) -> bool:
        return scheme in _PROBES

    def split(self, text: str) -> list[str]:
        """Return the chunks of a text in order, or of several texts joined with `BORDER`; each `BORDER` is a chunk too.

        >>> Splitter("byte").split("Don't go, é"), Splitter("word").split("Don't  go. ")
        (['Don', "'t", ' go', ',', ' é'], ["Don't", 'go.'])
        >>> Splitter("byte").split("to  " + BORDER + "be") == ["to", "  ", BORDER, "be"]
        True
        """
        self._learn_from(text)
        return self._find(text)

    def words(self, text: str) -> list[str]:
        r"""Cut a text before each run of white space or borders. The words have the same chunks as the text.

        A cut is never inside a chunk: in no scheme does a chunk have white space, or a border, after another character.
        A word has the same chunks alone as in the text. Regular expressions match from left to right, so only the
        character after the word could make a difference. This character is white space or a border, which no expression
        matches after the other characters of the word. So it ends the last chunk as the end of the text does. White
        space at the start of a word is followed by the rest of the word, so `(?!\S)` of GPT-2's expression reads the
        same characters.

        >>> Splitter("byte").words("def f(x):\n    return x\n"), Splitter("byte").split("\n    return")
        (['def', ' f(x):', '\n    return', ' x', '\n', ''], ['\n   ', ' return'])
        """
        self._learn_from(text)
        return self._find_words(text)

    def _learn_from(self, text: str) -> None:
        if not text.isascii() and (unknown := self._find_unknown(text)):
            self._learn(sorted(set(unknown)))

    def _learn(self, characters: Iterable[str]) -> None:
        """Add characters to their classes, and compile the regular expressions with all characters so far."""
        probes = _PROBES[self._scheme]
        with _LOCK:
            for character in characters:
                of_class = (i for i, probe in enumerate(probes) if len(self._chunks(probe + character + probe)) == 1)
                self._classes[next(of_class, len(probes))].add(character)
            *sets, space = ("".join(map(re.escape, sorted(found))) for found in self._classes)
            chunks, words = (x.format(*sets, space=space, border=BORDER) for x in (_EXPRESSIONS[self._scheme], _WORDS))
            self._find, self._find_words = re.compile(chunks).findall, re.compile(words).findall
            known = "".join([*sets, space, BORDER])
            self._find_unknown = re.compile(f"[^{known}]").findall  # last: another thread may split with it


def in_blocks(texts: Iterable[str], n_characters: int = BLOCK_CHARACTERS) -> Iterator[list[str]]:
    """Yield the texts in lists of at least `n_characters` in total; the last list may have fewer.

    >>> list(in_blocks(["to", "be", "or", "not"], 4))
    [['to', 'be'], ['or', 'not']]
    """
    block: list[str] = []
    n = 0
    for text in texts:
        block.append(text)
        n += len(text)
        if n >= n_characters:
            yield block
            block, n = [], 0
    if block:
        yield block


def cut(text: str) -> Iterator[str]:
    """Cut a text at ends of lines into parts of about `BLOCK_CHARACTERS`, which have the same chunks as the text.

    >>> list(cut("to be")), [len(part) for part in cut("to be\\n" * 20_000)]
    (['to be'], [65538, 54462])
    """
    begin = 0
    while match := _LINE_END.search(text, begin + BLOCK_CHARACTERS):
        yield text[begin : match.end()]
        begin = match.end()
    yield text[begin:]


def count_chunks(texts: Iterable[str], scheme: Scheme, *, characters_only: bool = False) -> Counter[str]:
    """Count each distinct chunk in the texts, which are read once, one at a time.

    With `characters_only` characters are counted instead of chunks: this gives the alphabet, with little memory.

    >>> count_chunks(["to be or", "not to be"], "whitespace")
    Counter({'to': 2, 'be': 2, 'or': 1, 'not': 1})
    """
    parts = pipeline(scheme)
    counts: Counter[str] = Counter()
    if not (Splitter.serves(scheme) or characters_only):
        for text in texts:  # lines rarely repeat, so their counts would take as long to send as to find
            check_text(text)
            counts.update(parts.chunks(text))
        return counts
    count = partial(_counts, scheme, None if characters_only else Splitter(scheme))
    blocks = in_blocks(texts, COUNTED_CHARACTERS)
    for of_block in in_order(count, blocks, lambda block: sum(map(len, block)), PAYS_FROM):
        counts.update(of_block)
    if characters_only:
        return counts
    in_symbols: Counter[str] = Counter()
    for chunk, n in counts.items():
        in_symbols[symbols_of(chunk, scheme)] += n  # `word`: U+2423 and U+FFFD are the same symbol
    return in_symbols


def _counts(scheme: Scheme, splitter: Splitter | None, texts: list[str]) -> Counter[str]:
    """Count the chunks of several texts, or their characters without a splitter."""
    for text in texts:
        check_text(text)
    counts: Counter[str] = Counter()
    if splitter is None:
        chunks = pipeline(scheme).chunks
        for text in texts:
            counts.update("".join(chunks(text)))
        return counts
    for block in in_blocks(texts):
        for part in cut(BORDER.join(block)):
            counts.update(splitter.split(part))
    del counts[BORDER]
    return counts


class _Table(dict[str, tuple[int, ...]]):
    """Table from words or chunks to their ids, which are computed and stored when a word or chunk first occurs."""

    def __init__(self, encode: Callable[[str], tuple[int, ...]]) -> None:
        super().__init__()
        self._encode = encode
        self.n_characters = 0

    def __missing__(self, text: str) -> tuple[int, ...]:
        ids = self[text] = self._encode(text)
        self.n_characters += len(text)
        return ids

    def bound(self) -> None:
        """Remove all ids if there are too many."""
        if len(self) > MAX_KEPT or self.n_characters > MAX_CHARACTERS:
            self.clear()
            self.n_characters = 0


class WordIds:
    """Encoder that stores the ids of words (`Splitter.words`), and the ids of chunks, of which new words consist.

    In 8 MB of source code, 83 % of the words and 98 % of the chunks of `byte` have occurred before. There are half as
    many words as chunks, and a regular expression finds words in half the time. In schemes in which a word is one
    chunk, only chunks are stored.
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
    """Encoder for a vocabulary of characters without merges: numpy looks up the id of each code point in a table."""

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
    """Split joined ids at each `BORDER_ID`; return the ids of each text.

    >>> split_rows([5, 6, BORDER_ID, BORDER_ID, 7], 3)
    [[5, 6], [], [7]]
    """
    rows, begin = [], 0
    for _ in range(n_rows - 1):
        end = joined.index(BORDER_ID, begin)
        rows.append(joined[begin:end])
        begin = end + 1
    return [*rows, joined[begin:]]
