r"""Splitting a text into chunks with Python's `re`: those of the `tokenizers` library, in a tenth of its time.

The library splits by classes of characters, such as letters and white space, and its tables of these classes are not
those of Python. So the class of each character is asked from the library once, and the expression lists the characters
that occurred. The chunks are substrings of the text; `Pipeline.chunks` also converts them to a scheme's symbols.
"""

import re
import threading
from collections import Counter
from collections.abc import Iterable

from glassformer.tokenization.pretokenize import Scheme, check_text, pipeline

_PROBES: dict[Scheme, str] = {"byte": "a1!", "whitespace": "a!", "word": "a", "whole_words": "a"}
"""One character of each class of a scheme. A character between two equal ones is of their class if all three form one
chunk; if it forms one with none of them, it is white space."""
_EXPRESSIONS: dict[Scheme, str] = {
    "byte": r"'s|'t|'re|'ve|'m|'ll|'d| ?[{0}]+| ?[{1}]+| ?[^{0}{1}{space}]+|[{space}]+(?![^{space}])|[{space}]+",
    "whitespace": r"[{0}]+|[^{0}{space}]+",
    "word": r"[^{space}]+",
    "whole_words": r"[^{space}]+",
}
"""The expression of each scheme, with the characters of the classes; that of `byte` is GPT-2's (Radford 2019)."""
_ASCII = "".join(map(chr, range(128)))
_LOCK = threading.Lock()
"""Held while a splitter learns characters."""


class Splitter:
    """Splitter of texts for one scheme. The scheme `char`, whose chunks are lines, needs no splitter."""

    def __init__(self, scheme: Scheme) -> None:
        self._scheme, self._chunks = scheme, pipeline(scheme).chunks
        self._classes: list[set[str]] = [set() for _ in (*_PROBES[scheme], "white space")]
        self._known: set[str] = set()
        self._learn(_ASCII)

    @staticmethod
    def serves(scheme: Scheme) -> bool:
        """Return True if a scheme has a splitter."""
        return scheme in _PROBES

    def split(self, text: str) -> list[str]:
        """Return the chunks of a text, in order.

        >>> Splitter("byte").split("Don't go, é"), Splitter("word").split("Don't  go. ")
        (['Don', "'t", ' go', ',', ' é'], ["Don't", 'go.'])
        """
        if not text.isascii() and (unknown := set(text) - self._known):
            self._learn(sorted(unknown))
        return self._find(text)

    def _learn(self, characters: Iterable[str]) -> None:
        """Add characters to their classes, and compile the expression of all."""
        probes = _PROBES[self._scheme]
        with _LOCK:
            for character in characters:
                of_class = (i for i, probe in enumerate(probes) if len(self._chunks(probe + character + probe)) == 1)
                self._classes[next(of_class, len(probes))].add(character)
            *sets, space = ("".join(map(re.escape, sorted(found))) for found in self._classes)
            self._find = re.compile(_EXPRESSIONS[self._scheme].format(*sets, space=space)).findall
            self._known = set().union(*self._classes)  # last: another thread may split with the characters in it


def count_chunks(texts: Iterable[str], scheme: Scheme, *, characters_only: bool = False) -> Counter[str]:
    """Count each distinct chunk in the texts, which are read once, one at a time.

    With `characters_only` characters are counted instead of chunks: this gives the alphabet, with little memory.

    >>> count_chunks(["to be or", "not to be"], "whitespace")
    Counter({'to': 2, 'be': 2, 'or': 1, 'not': 1})
    """
    parts, splitter = pipeline(scheme), Splitter(scheme) if Splitter.serves(scheme) else None
    counts: Counter[str] = Counter()
    for text in texts:
        check_text(text)
        if splitter is None or characters_only:
            chunks = parts.chunks(text)
            counts.update("".join(chunks) if characters_only else chunks)
        else:
            counts.update(splitter.split(text))
    if splitter is None or characters_only:
        return counts
    in_symbols: Counter[str] = Counter()
    for chunk, n in counts.items():
        (symbols,) = parts.chunks(chunk)
        in_symbols[symbols] += n  # `word`: U+2423 and U+FFFD are the same symbol
    return in_symbols
