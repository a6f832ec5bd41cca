"""From ids back to text, one id at a time or all at once; a character of several bytes is never cut."""

import codecs
import re
from collections.abc import Iterable, Sequence

from glassformer.errors import UserError
from glassformer.tokenization.pretokenize import CHARACTER_TO_BYTE, END_OF_WORD, Scheme

APART = ("whitespace", "whole_words")
"""Schemes whose tokens stand apart from their neighbours by a space."""


def token_bytes(token: str, scheme: Scheme, *, special: bool = False) -> bytes:
    """What a token of the vocabulary adds to a decoded text, as UTF-8, perhaps only a part of a character.

    `whitespace` has thrown away where words end, so every token stands alone: it brings a space before it, as a whole
    word does.
    Otherwise a special token is just its own name.

    >>> token_bytes("Ġcafé"[:4], "byte"), token_bytes("er␣", "word"), token_bytes("er", "whitespace")
    (b' caf', b'er ', b' er')
    """
    if scheme == "byte" and not special:
        return bytes(CHARACTER_TO_BYTE[character] for character in token)
    if scheme == "word" and not special:
        token = token.replace(END_OF_WORD, " ")
    elif scheme in APART:
        token = " " + token
    return token.encode("utf-8")


def readable(data: bytes) -> str:
    """Bytes as text, those that are not part of a whole character as `<0x..>`.

    >>> readable("é".encode() + "é".encode()[:1])
    'é<0xC3>'
    """
    text = data.decode("utf-8", "surrogateescape")
    return re.sub("[\udc80-\udcff]", lambda match: f"<0x{ord(match[0]) - 0xDC00:02X}>", text)


class TextStream:
    """Turns ids into text as they come: `push` each id, `flush` at the end; what they return is the whole text.

    An incomplete character waits until its last byte is there; bytes that are no UTF-8 become U+FFFD. The
    space that ends the last word (`word`) or stands before the first token (`whitespace`) is left out.
    """

    def __init__(self, pieces: Sequence[bytes], scheme: Scheme, skip: frozenset[int] = frozenset()) -> None:
        self._pieces = pieces
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = scheme in APART
        self._holds_spaces_back = scheme == "word"
        self._held = ""

    def push(self, token_id: int) -> str:
        """The text that can be shown now; often '' or more than one character. `UserError` for an id out of range."""
        if not 0 <= token_id < len(self._pieces):
            raise UserError(f"{token_id} is not a token id: the vocabulary has the ids 0 to {len(self._pieces) - 1}")
        if token_id in self._skip:
            return ""
        text = self._held + self._decoder.decode(self._pieces[token_id])
        self._held = ""
        if self._at_start:
            text = text.removeprefix(" ")
            self._at_start = False
        if self._holds_spaces_back and text.endswith(" "):
            text, self._held = text[:-1], " "
        return text

    def continue_after(self, ids: Iterable[int]) -> None:
        """Take ids as shown already: what comes next is their continuation. `UserError` for an id out of range.

        >>> stream = TextStream([b" one", b" two"], "whitespace")
        >>> stream.continue_after([0])
        >>> stream.push(1)
        ' two'
        """
        for token_id in ids:
            self.push(token_id)

    def flush(self) -> str:
        """What is left when no more ids come: U+FFFD where a character has not been completed, else ''."""
        self._held = ""
        return self._decoder.decode(b"", final=True)
