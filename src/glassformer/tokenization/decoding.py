"""Decoding of ids to text, all at once or one id at a time, without cutting multi-byte characters."""

import codecs
import re
from collections.abc import Iterable, Sequence

from glassformer.common.errors import UserError
from glassformer.tokenization.pretokenize import CHARACTER_TO_BYTE, END_OF_WORD, Scheme

APART = ("whitespace", "whole_words")
"""Schemes whose decoded tokens are separated by spaces."""


def token_bytes(token: str, scheme: Scheme, *, special: bool = False) -> bytes:
    """Return the UTF-8 bytes that a token adds to a decoded text; they may be a part of a character.

    The scheme `whitespace` does not keep the ends of words: every token begins with a space, as with `whole_words`.
    With the other schemes, the bytes of a special token are its name.

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
    """Return bytes as text, with bytes of incomplete characters as `<0x..>`.

    >>> readable("é".encode() + "é".encode()[:1])
    'é<0xC3>'
    """
    text = data.decode("utf-8", "surrogateescape")
    return re.sub("[\udc80-\udcff]", lambda match: f"<0x{ord(match[0]) - 0xDC00:02X}>", text)


class TextStream:
    """A streaming decoder: `push` each id, then `flush`; the concatenated results are the decoded text.

    An incomplete character is delayed until its last byte; bytes that are not UTF-8 become U+FFFD. The
    space after the last word (`word`) or before the first token (`whitespace`) is removed.
    """

    def __init__(self, pieces: Sequence[bytes], scheme: Scheme, skip: frozenset[int] = frozenset()) -> None:
        self._pieces = pieces
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = scheme in APART
        self._holds_spaces_back = scheme == "word"
        self._held = ""

    def push(self, token_id: int) -> str:
        """Return the text that the id completes, '' or several characters; raise `UserError` for an invalid id."""
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
        """Push ids whose text is already known, so that the next text continues it; raise `UserError` for invalid ids.

        >>> stream = TextStream([b" one", b" two"], "whitespace")
        >>> stream.continue_after([0])
        >>> stream.push(1)
        ' two'
        """
        for token_id in ids:
            self.push(token_id)

    def flush(self) -> str:
        """Return the text after the last id: U+FFFD for an incomplete character, else ''."""
        self._held = ""
        return self._decoder.decode(b"", final=True)
