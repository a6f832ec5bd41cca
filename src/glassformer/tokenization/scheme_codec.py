"""Encoding and decoding with one of glassformer's schemes, by the Rust library or by the reference encoder."""

import random
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain

import tokenizers

from glassformer.errors import UserError
from glassformer.tokenization.chunks import BORDER, Splitter, cut, in_blocks
from glassformer.tokenization.decoding import TextStream, readable, token_bytes
from glassformer.tokenization.pretokenize import BYTE_TO_CHARACTER, END_OF_WORD, Scheme, check_text
from glassformer.tokenization.reference import ReferenceEncoder

SPLIT_HERE: tuple[Scheme, ...] = ("byte", "whitespace")
"""Schemes whose chunks are kept. Chunks between white space, as in `word`, repeat less: the library is faster there."""
MAX_CHUNKS = 1 << 18
"""Number of chunks whose ids are kept, and of their characters: bounds of the memory."""
MAX_CHARACTERS = 1 << 22
MIN_TEXT, MAX_NEW = 1 << 20, 0.25
"""A text of so many characters, in which new chunks have more than this share, ends the splitting."""
_BORDER_ID = -1
_SYMBOLS = dict(enumerate(BYTE_TO_CHARACTER))


class _ChunkIds(dict[str, list[int]]):
    """The ids of chunks. A chunk without ids gets an empty list in `new`, which `add_new` fills for all of them."""

    def __init__(self) -> None:
        super().__init__({BORDER: [_BORDER_ID]})
        self.new: dict[str, list[int]] = {}
        self.n_characters = 0

    def __missing__(self, chunk: str) -> list[int]:
        return self.new.setdefault(chunk, [])

    def add_new(self, encode: Callable[[str], list[int]]) -> int:
        """Encode the new chunks and keep their ids; return the number of their characters."""
        for chunk, ids in self.new.items():
            ids += encode(chunk)
        self.update(self.new)
        n_new = sum(map(len, self.new))
        self.n_characters += n_new
        return n_new


class SchemeCodec:
    """Encoder and decoder of a tokenizer of one of the schemes; see the module docstring of `tokenizer.py`."""

    def __init__(
        self,
        rust: tokenizers.Tokenizer,
        scheme: Scheme,
        vocab: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        special_tokens: Sequence[str],
        unknown: str | None,
        frequencies: Sequence[int] | None,
    ) -> None:
        rust.encode_special_tokens = True  # special tokens in a text are ordinary text; the file cannot store this
        self._rust, self._scheme, self._vocab, self._merges = rust, scheme, vocab, merges
        self._special_tokens, self._unknown, self._frequencies = special_tokens, unknown, frequencies
        self._known_characters: set[str] = set()
        self._splitter = Splitter(scheme) if scheme in SPLIT_HERE else None
        self._model = rust.model
        self._ids, self._lock = _ChunkIds(), threading.Lock()
        self._n_seen = self._n_new = 0  # characters since the last test of the share of new chunks

    @property
    def words_stand_alone(self) -> bool:
        """True if a word has the same tokens alone and after a space."""
        return self._scheme in ("word", "whitespace", "whole_words")

    def encode(self, texts: Iterable[str], allow_special: Collection[str] = ()) -> list[list[int]]:
        """Return the ids of each text."""
        return self._encode_between(texts, allow_special, self._encode_chunks)

    def encode_with_dropout(
        self, texts: Iterable[str], allow_special: Collection[str], dropout: float, seed: int
    ) -> list[list[int]]:
        """Encode with BPE-dropout, with one random stream for all texts."""
        encode = partial(self.reference.encode, dropout=dropout, rng=random.Random(seed))
        return self._encode_between(texts, allow_special, lambda pieces: list(map(encode, pieces)))

    def encode_longest_match(self, text: str, allow_special: Collection[str]) -> list[int]:
        """Encode by the longest match anywhere in the text first."""
        encode = self.reference.encode_longest_match
        (ids,) = self._encode_between([text], allow_special, lambda pieces: list(map(encode, pieces)))
        return ids

    def _encode_between(
        self, texts: Iterable[str], allow_special: Collection[str], encode: Callable[[list[str]], list[list[int]]]
    ) -> list[list[int]]:
        """Split the texts at the allowed special tokens, and encode the text between them."""
        if not allow_special:
            texts = list(texts)
            for text in texts:
                self.check_piece(text)
            return encode(texts)
        rows = [self._cut(text, allow_special) for text in texts]
        pieces = [piece for row in rows for piece in row[::2]]
        for piece in pieces:
            self.check_piece(piece)
        encoded = iter(encode(pieces))
        rows_of_ids = []
        for row in rows:
            ids = next(encoded)
            for special in row[1::2]:
                ids += [self._vocab[special], *next(encoded)]
            rows_of_ids.append(ids)
        return rows_of_ids

    def _cut(self, text: str, allow_special: Collection[str]) -> list[str]:
        """Split a text: ordinary text at even indices, allowed special tokens at odd indices."""
        longest_first = sorted(allow_special, key=len, reverse=True)
        return re.split(f"({'|'.join(map(re.escape, longest_first))})", text)

    def check_piece(self, piece: str) -> None:
        """Raise `UserError` for text that the Rust encoder cannot encode, or would drop silently."""
        check_text(piece)
        if self._scheme != "byte" and self._unknown is None:
            for character in sorted(set(piece) - self._known_characters):
                self.reference.encode(character)
                self._known_characters.add(character)

    def _encode_chunks(self, pieces: list[str]) -> list[list[int]]:
        """Encode each distinct chunk once, and keep its ids: in text, about 95 % of the chunks have occurred before."""
        rows: list[list[int]] = []
        for block in in_blocks(pieces):
            if (splitter := self._splitter) is None:
                break
            with self._lock:
                rows += self._encode_block(block, splitter)
        return rows + self._encode_in_rust(pieces[len(rows) :])

    def _encode_block(self, pieces: list[str], splitter: Splitter) -> list[list[int]]:
        joined: list[int] = []
        for text in cut(BORDER.join(pieces)):
            ids = self._ids
            ids.new = {}
            of_chunks = list(map(ids.__getitem__, splitter.split(text)))
            self._n_new += ids.add_new(self._encode_chunk)
            self._n_seen += len(text)
            joined += chain.from_iterable(of_chunks)
            if len(ids) > MAX_CHUNKS or ids.n_characters > MAX_CHARACTERS:
                self._ids = _ChunkIds()
        if self._n_seen >= MIN_TEXT:
            if self._n_new > MAX_NEW * self._n_seen:
                self._splitter = None  # too few chunks repeat: this text is encoded faster without splitting it here
            self._n_seen = self._n_new = 0
        rows, begin = [], 0
        for _ in pieces[1:]:
            end = joined.index(_BORDER_ID, begin)
            rows.append(joined[begin:end])
            begin = end + 1
        return [*rows, joined[begin:] if rows else joined]

    def _encode_chunk(self, chunk: str) -> list[int]:
        """Encode one chunk with the model of the library alone, which is faster than all its steps."""
        symbols = chunk.encode().decode("latin-1").translate(_SYMBOLS) if self._scheme == "byte" else chunk
        return [token.id for token in self._model.tokenize(symbols)]

    def _encode_in_rust(self, pieces: list[str]) -> list[list[int]]:
        rows = [encoding.ids for encoding in self._rust.encode_batch_fast(pieces, add_special_tokens=False)]
        if self._scheme != "whole_words":
            return rows
        # A model of whole words also encodes words of ordinary text to special tokens: replace these by `[UNK]`.
        assert self._unknown is not None
        special, unknown = {self._vocab[token] for token in self._special_tokens}, self._vocab[self._unknown]
        return [[unknown if token in special else token for token in row] for row in rows]

    @cached_property
    def reference(self) -> ReferenceEncoder:
        """The reference encoder, which gives the same ids but is slower."""
        # Without frequencies, tokens of earlier merges count as more frequent.
        frequencies = self._frequencies or range(len(self._vocab), 0, -1)
        ordinary = dict(zip(self._vocab, frequencies, strict=True))
        for token in self._special_tokens:
            del ordinary[token]
        return ReferenceEncoder(self._scheme, self._vocab, self._merges, ordinary, self._unknown)

    def decode(self, ids: Iterable[int], skip_special: bool) -> str:
        """Return the text of ids."""
        stream = self.stream(skip_special)
        return "".join([*map(stream.push, ids), stream.flush()])

    def stream(self, skip_special: bool) -> TextStream:
        """Return a streaming decoder, which takes one id at a time."""
        skipped = {self._vocab[token] for token in self._special_tokens if token != self._unknown}
        return TextStream(self.pieces, self._scheme, frozenset(skipped if skip_special else ()))

    def show(self, token: str) -> str:
        """Return a token in readable form."""
        if token in self._special_tokens:
            return token
        if self._scheme == "word":
            return token.replace(END_OF_WORD, "</w>")
        return readable(token_bytes(token, "byte")) if self._scheme == "byte" else token

    @cached_property
    def pieces(self) -> list[bytes]:
        """Bytes of each token, by id."""
        special = set(self._special_tokens)
        return [token_bytes(token, self._scheme, special=token in special) for token in self._vocab]


def require_scheme(codec: object, what: str) -> SchemeCodec:
    """Return the codec; raise `UserError` if it is not of a scheme, because `what` needs one."""
    if not isinstance(codec, SchemeCodec):
        raise UserError(f"{what} needs a tokenizer with one of glassformer's schemes, and this tokenizer is imported")
    return codec
