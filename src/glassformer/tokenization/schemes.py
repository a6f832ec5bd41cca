r"""Tokenizer schemes: rules that split a text into chunks, each an input of byte-pair encoding or itself a token.

| scheme      | a chunk is                                            | its symbols                            |
|--------------|-------------------------------------------------------|----------------------------------------|
| `byte`       | a word with the space before it (GPT-2's expression)  | the 256 bytes, each as one character   |
| `char`       | a line with its line end                              | characters, spaces included            |
| `whitespace` | a word, or a run of punctuation: `\w+` or `[^\w\s]+`  | characters                             |
| `word`       | a run of characters without white space               | characters, then `</w>`, also a symbol |
| `whole_words`| a run of characters without white space               | none: a frequent chunk is one token    |

Merges never cross the border of a chunk. A `Pipeline` splits the text with the `tokenizers` library, so that other
programs that read the saved `tokenizer.json` produce the same chunks. `chunks.py` does the same faster. A `TextStream`
decodes ids one at a time, without cutting a character of several bytes.
"""

import codecs
import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from glassformer.common.errors import UserError

Scheme = Literal["byte", "char", "word", "whitespace", "whole_words"]
SCHEMES: tuple[Scheme, ...] = ("byte", "char", "word", "whitespace")
"""The schemes with merges."""

END_OF_WORD = "␣"
"""Representation of `</w>` in the vocabulary: one character, U+2423, because a BPE model splits chunks into characters.

In a text, the same character is replaced by U+FFFD (the replacement character), so that it does not end a word.
"""

WORD_END = r"(?<=\S)(?=\s|\z)"
APART = ("whitespace", "whole_words")
"""Schemes whose decoded tokens are separated by spaces."""


def byte_characters() -> list[str]:
    """Return the character that represents each byte in the `byte` scheme, as in GPT-2 (Radford et al. 2019).

    A printable Latin-1 byte keeps its code point; the 68 other bytes get code points from U+0100 upwards, in order.

    >>> byte_characters()[ord("a")], byte_characters()[ord(" ")]
    ('a', 'Ġ')
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


BYTE_TO_CHARACTER = byte_characters()
"""The printable character that stands for each byte in the vocabulary of byte-level BPE."""
_CHARACTER_OF_BYTE = dict(enumerate(BYTE_TO_CHARACTER))
CHARACTER_TO_BYTE = {character: byte for byte, character in enumerate(BYTE_TO_CHARACTER)}
"""The byte for each character of `BYTE_TO_CHARACTER`."""


@dataclass(frozen=True)
class Pipeline:
    """The parts of a `tokenizer.json` before and after the BPE model; `None` for parts that a scheme does not use."""

    normalizer: normalizers.Normalizer | None
    pre_tokenizer: pre_tokenizers.PreTokenizer
    decoder: decoders.Decoder | None

    def chunks(self, text: str) -> list[str]:
        """Split a text into chunks, in order, each a string of the scheme's symbols."""
        if self.normalizer is not None:
            text = self.normalizer.normalize_str(text)
        return [chunk for chunk, _ in self.pre_tokenizer.pre_tokenize_str(text)]


def pipeline(scheme: Scheme) -> Pipeline:
    """Build the pipeline of a scheme.

    >>> pipeline("byte").chunks("Don't go, é")
    ['Don', "'t", 'Ġgo', ',', 'ĠÃ©']
    >>> pipeline("char").chunks("to be\\nor not")
    ['to be\\n', 'or not']
    >>> pipeline("whitespace").chunks("Don't go.")
    ['Don', "'", 't', 'go', '.']
    >>> pipeline("word").chunks("Don't  go. ")
    ["Don't␣", 'go.␣']
    >>> pipeline("whole_words").chunks("Don't  go. ")
    ["Don't", 'go.']
    """
    if scheme == "byte":
        return Pipeline(None, pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())
    if scheme == "char":
        # One line per chunk: a whole text as one chunk would make merging slow and memory use unbounded.
        return Pipeline(None, pre_tokenizers.Split("\n", "merged_with_previous"), decoders.Fuse())
    if scheme == "whitespace":
        return Pipeline(None, pre_tokenizers.Whitespace(), None)
    if scheme == "word":
        marks = [normalizers.Replace(END_OF_WORD, "\ufffd"), normalizers.Replace(Regex(WORD_END), END_OF_WORD)]
        decoder = decoders.BPEDecoder(suffix=END_OF_WORD)  # replaces each mark by a space, except the last one
        return Pipeline(normalizers.Sequence(marks), pre_tokenizers.WhitespaceSplit(), decoder)
    if scheme == "whole_words":
        return Pipeline(None, pre_tokenizers.WhitespaceSplit(), None)
    raise UserError(f"unknown tokenizer scheme {scheme!r}; use one of {', '.join(get_args(Scheme))}")


def symbols_of(chunk: str, scheme: Scheme) -> str:
    """Return the symbols of one chunk of a text, as `Pipeline.chunks` does.

    >>> symbols_of(" é", "byte"), symbols_of("go.", "word"), symbols_of("go", "whitespace")
    ('ĠÃ©', 'go.␣', 'go')
    """
    if scheme == "byte":
        return chunk.encode().decode("latin-1").translate(_CHARACTER_OF_BYTE)
    return chunk.replace(END_OF_WORD, "\ufffd") + END_OF_WORD if scheme == "word" else chunk


def checked_ids(ids: Iterable[int], n_ids: int) -> list[int]:
    """Return ids as integers; raise `UserError` unless all are ids of a vocabulary of `n_ids` tokens."""
    try:
        whole = [operator.index(token_id) for token_id in ids]
    except TypeError as error:
        raise UserError("ids: expected a list of token ids, which are integers") from error
    for token_id in whole:
        if not 0 <= token_id < n_ids:
            raise UserError(f"{token_id} is not a token id: the vocabulary has the ids 0 to {n_ids - 1}")
    return whole


def check_text(text: str) -> None:
    """Raise `UserError` for a text with a lone surrogate, which UTF-8 cannot encode."""
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"the text has a lone surrogate, U+{ord(text[error.start]):04X} at character {error.start}, which "
            "UTF-8 cannot encode; read the text with errors='replace', or remove the surrogate"
        ) from None


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
        """Return the text that this id adds, which may be ''; raise `UserError` for an invalid id."""
        if not 0 <= token_id < len(self._pieces):  # without a call for each id
            checked_ids([token_id], len(self._pieces))
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
