"""Encoding and decoding with one of glassformer's schemes, by the Rust library or by the reference encoder."""

import random
import re
import threading
from collections.abc import Callable, Collection, Iterable
from functools import cached_property, partial
from itertools import chain

import tokenizers

from glassformer.common.errors import UserError
from glassformer.tokenization import schemes
from glassformer.tokenization.chunks import BORDER, CharacterIds, Splitter, WordIds, cut, in_blocks, split_rows
from glassformer.tokenization.reference import ReferenceEncoder
from glassformer.tokenization.rust_tokenizer import Vocabulary


class SchemeCodec:
    """Encoder and decoder of a tokenizer of one of the schemes; its methods are those of `Tokenizer`."""

    def __init__(self, rust: tokenizers.Tokenizer, scheme: schemes.Scheme, vocabulary: Vocabulary) -> None:
        rust.encode_special_tokens = True  # special tokens in a text are ordinary text; the file cannot store this
        self._rust, self._scheme, self._vocabulary = rust, scheme, vocabulary
        self._vocab, self._unknown = vocabulary.ids, vocabulary.unknown
        self._special = frozenset(vocabulary.special_tokens)
        self._special_ids = frozenset(self._vocab[token] for token in self._special)
        self._drops_unknown = scheme != "byte" and self._unknown is None
        self._known_characters: set[str] = set()
        self._model, self._id_objects = rust.model, list(self._vocab.values())
        self._lock = threading.Lock()
        self._ids_of: WordIds | CharacterIds | None = None
        if Splitter.serves(scheme):
            self._ids_of = WordIds(scheme, self._encode_chunk)
        elif not vocabulary.merges:
            self._ids_of = CharacterIds(self._ordinary, self._unknown_id)

    @property
    def words_stand_alone(self) -> bool:
        return self._scheme in ("word", "whitespace", "whole_words")

    def encode(self, texts: Iterable[str], allow_special: Collection[str] = ()) -> list[list[int]]:
        return self._encode_between(texts, allow_special, self._encode_chunks)

    def encode_with_dropout(
        self, texts: Iterable[str], allow_special: Collection[str], dropout: float, seed: int
    ) -> list[list[int]]:
        encode = partial(self.reference.encode, dropout=dropout, rng=random.Random(seed))
        return self._encode_between(texts, allow_special, lambda pieces: list(map(encode, pieces)))

    def encode_with_offsets(
        self, text: str, allow_special: Collection[str] = ()
    ) -> tuple[list[int], list[tuple[int, int]]]:
        row = self._cut(text, allow_special) if allow_special else [text]
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        begin = 0
        for number, piece in enumerate(row):
            if number % 2:
                ids.append(self._vocab[piece])
                offsets.append((begin, begin + len(piece)))
            else:
                self.check_piece(piece)
                [encoded] = self._rust.encode_batch([piece], add_special_tokens=False)  # other threads run meanwhile
                ids += self._as_ordinary(encoded.ids)
                offsets += [(begin + first, begin + end) for first, end in encoded.offsets]
            begin += len(piece)
        return ids, offsets

    def encode_longest_match(self, text: str, allow_special: Collection[str]) -> list[int]:
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
                if self._drops_unknown or not text.isascii():  # saves a call for most lines
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
        schemes.check_text(piece)
        if self._drops_unknown:
            for character in sorted(set(piece) - self._known_characters):
                self.reference.encode(character)
                self._known_characters.add(character)

    def _encode_chunks(self, pieces: list[str]) -> list[list[int]]:
        """Encode with tables of words or characters; with the library for `char` with merges, or if it is faster."""
        rows: list[list[int]] = []
        for block in in_blocks(pieces):
            if (ids_of := self._ids_of) is None:
                break
            with self._lock:
                joined = chain.from_iterable(map(ids_of, cut(BORDER.join(block))))
                rows += split_rows(list(joined), len(block))
            if not ids_of.pays:
                self._ids_of = None
        encodings = self._rust.encode_batch_fast(pieces[len(rows) :], add_special_tokens=False)
        return rows + [self._as_ordinary(encoding.ids) for encoding in encodings]

    def _encode_chunk(self, chunk: str) -> list[int]:
        """Encode one chunk with the model of the library alone, which is faster than all its steps."""
        if self._scheme == "whole_words":
            assert self._unknown_id is not None
            return [self._ordinary.get(chunk, self._unknown_id)]
        tokens = self._model.tokenize(schemes.symbols_of(chunk, self._scheme))
        return [self._id_objects[token.id] for token in tokens]  # the same objects for all chunks: less memory

    @cached_property
    def _ordinary(self) -> dict[str, int]:
        return {token: i for token, i in self._vocab.items() if token not in self._special}

    @cached_property
    def _unknown_id(self) -> int | None:
        return None if self._unknown is None else self._vocab[self._unknown]

    def _as_ordinary(self, ids: list[int]) -> list[int]:
        """Replace special tokens by `[UNK]`: the model of `whole_words` encodes a word `[MASK]` as a special token."""
        if self._scheme != "whole_words":
            return ids
        assert self._unknown_id is not None
        return [self._unknown_id if i in self._special_ids else i for i in ids]

    @cached_property
    def reference(self) -> ReferenceEncoder:
        """The reference encoder, which gives the same ids but is slower."""
        # Without frequencies, tokens of earlier merges count as more frequent.
        frequencies = self._vocabulary.frequencies or range(len(self._vocab), 0, -1)
        ordinary = dict(zip(self._vocab, frequencies, strict=True))
        for token in self._special:
            del ordinary[token]
        return ReferenceEncoder(self._scheme, self._vocab, self._vocabulary.merges, ordinary, self._unknown)

    def decode(self, ids: Iterable[int], skip_special: bool) -> str:
        stream = self.stream(skip_special)
        return "".join([*map(stream.push, ids), stream.flush()])

    def stream(self, skip_special: bool) -> schemes.TextStream:
        skipped: frozenset[int] = frozenset()
        if skip_special:
            skipped = self._special_ids - {self._unknown_id}
        return schemes.TextStream(self.pieces, self._scheme, skipped)

    def show(self, token: str) -> str:
        if token in self._special:
            return token
        if self._scheme == "word":
            return token.replace(schemes.END_OF_WORD, "</w>")
        if self._scheme == "byte":
            return schemes.readable(schemes.token_bytes(token, "byte"))
        return token

    @cached_property
    def pieces(self) -> list[bytes]:
        return [schemes.token_bytes(token, self._scheme, special=token in self._special) for token in self._vocab]


def require_scheme(codec: object, what: str) -> SchemeCodec:
    """Return the codec; raise `UserError` if it is not of a scheme, because `what` needs one."""
    if not isinstance(codec, SchemeCodec):
        raise UserError(f"{what} needs a tokenizer with one of glassformer's schemes, and this tokenizer is imported")
    return codec
